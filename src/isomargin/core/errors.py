"""The one exception for input that cannot be used: a sentence on what was expected, what came, how to mend it."""

from collections.abc import Sequence

_LONGEST = 2000  # characters of a sentence; a value that is shown in it may be of any size


class InputError(ValueError):
    """Input that cannot be used; its text is one sentence for the person who gave it.

    `details` are lines to print below it, where a list belongs to the sentence.

    >>> raise InputError("labels has 100 entries, embeddings has 120 rows: one label per row is needed")
    Traceback (most recent call last):
    isomargin.InputError: labels has 100 entries, embeddings has 120 rows: one label per row is needed
    """

    def __init__(self, sentence: str, details: Sequence[str] = ()) -> None:
        if len(sentence) > _LONGEST:  # its beginning says what is wrong, its end how to fix it
            sentence = f"{sentence[: _LONGEST // 2]} … {sentence[-_LONGEST // 2 :]}"
        super().__init__(sentence)
        self.details = tuple(details)


InputError.__module__ = "isomargin"  # its public home, which tracebacks show


class DivergedError(InputError):
    """Training that cannot go on: the loss is NaN or infinite, or all embeddings have collapsed to one point."""
