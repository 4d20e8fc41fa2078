"""Shared by every layer: errors, checks of values, labels, vectors, text, progress and files."""
