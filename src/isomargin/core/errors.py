"""The exception for unusable input. Its text is one sentence: what was expected, what came and how to fix it."""

from collections.abc import Sequence

_LONGEST = 2000  # characters of a sentence; a value in it may have any size


class InputError(ValueError):
    """Unusable input; the text is one sentence for the user.

    `details` are lines to print below the sentence, such as the entries of a list.

    >>> raise InputError("labels has 100 entries, embeddings has 120 rows: one label per row is needed")
    Traceback (most recent call last):
    isomargin.InputError: labels has 100 entries, embeddings has 120 rows: one label per row is needed
    """

    def __init__(self, sentence: str, details: Sequence[str] = ()) -> None:
        if len(sentence) > _LONGEST:  # the beginning says what is wrong, the end how to fix it
            sentence = f"{sentence[: _LONGEST // 2]} … {sentence[-_LONGEST // 2 :]}"
        super().__init__(sentence)
        self.details = tuple(details)


InputError.__module__ = "isomargin"  # tracebacks show the public name


class MissingLabelsError(InputError):
    """A file of embeddings without labels, where labels were expected."""


class LostProcessError(InputError):
    """Training that cannot go on, because the connection to another of its processes was lost."""


class StoppedElsewhereError(InputError):
    """Training that cannot go on in this process, because of an error that another of its processes raises."""


class DivergedError(InputError):
    """Training that cannot go on: the loss is NaN or infinite, or all embeddings have collapsed to one point."""
