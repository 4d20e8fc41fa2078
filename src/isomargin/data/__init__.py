"""Data sets as plain objects of arrays, batches, and augmentation."""
