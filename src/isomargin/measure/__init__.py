"""Measure threshold consistency: from embeddings and labels to frozen dataclasses of scores. No printing here."""
