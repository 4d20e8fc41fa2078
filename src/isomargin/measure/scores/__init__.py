"""From counts to scores: utility, curves, consistency."""
