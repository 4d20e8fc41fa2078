"""Text that is safe and short enough to print, whatever names came in from outside."""

PIPED = 88  # columns; a pipe has no width of its own
LONGEST = 100  # characters of a name that are looked at: many may share one column


def printable(name: str) -> str:
    """Make a class's name safe to print: control characters could rewrite the terminal.

    >>> printable("cat\\x1b[2J")
    'cat\\\\x1b[2J'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name) if name.strip() else repr(name)
