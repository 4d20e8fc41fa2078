"""Equalize similarities so that one threshold holds for every class, without retraining the embeddings."""
