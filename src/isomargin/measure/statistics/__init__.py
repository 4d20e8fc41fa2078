"""How reliable a score is: resampling, confidence intervals, and the noise of classes with few items."""
