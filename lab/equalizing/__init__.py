"""The experiment ``equalize``: what makes one threshold hold for every class without retraining, and when it fails.

``python -m lab.equalizing --data NAME=FILE`` takes embeddings of classes that the model was not trained on. Each random
split divides the classes into two halves: settings are chosen, and whatever needs labels is fitted, on the first half;
every number is measured on the second.
"""
