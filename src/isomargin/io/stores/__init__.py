"""Embeddings where they already are: vector stores, databases, data frames and data sets. One reader per file."""
