"""From a recipe to a trained model: recipes, the training loop, runs and their folders, the search for margins."""
