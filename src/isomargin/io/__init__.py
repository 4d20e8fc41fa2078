"""Embeddings with their labels, and the file formats for both."""
