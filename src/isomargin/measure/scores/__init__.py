"""Turn counts of pairs into scores: utility, curves per class, threshold consistency, and the registry of scores."""
