"""Choose a threshold for production and say how reliable it is, from an Evaluation, without the vectors."""
