"""Embeddings to numbers: arrays in, frozen dataclasses out; no files, no printing."""
