"""From a model, data and a loss to a trained model."""
