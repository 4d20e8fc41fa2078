"""What every layer shares: errors, checks of values, labels, vectors, text, progress and files."""
