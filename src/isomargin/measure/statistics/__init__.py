"""How far a score can be trusted: resampling, confidence intervals, the noise of small classes."""
