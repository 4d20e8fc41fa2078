"""The one exception for input that cannot be used: a sentence on what was expected, what came, how to mend it."""


class InputError(ValueError):
    """Input that cannot be used; its text is one sentence for the person who gave it.

    >>> raise InputError("labels has 100 entries, embeddings has 120 rows: one label a row is needed")
    Traceback (most recent call last):
    isomargin.errors.InputError: labels has 100 entries, embeddings has 120 rows: one label a row is needed
    """
