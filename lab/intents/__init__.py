"""The experiment ``intents``: a text model fine-tuned with sentence-transformers, tested on intents it has not seen.

``python -m lab.intents --data clinc150.tsv.gz`` compares plain training with TCM, class alignment and equalizing.
"""
