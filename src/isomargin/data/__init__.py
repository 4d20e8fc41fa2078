"""Data sets, each a plain object of arrays."""
