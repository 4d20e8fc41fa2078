"""Text that is safe and short enough to print, whatever names came in from outside."""

from rich.cells import cell_len, set_cell_size

PARAGRAPH = 88  # columns of running text
LONGEST = 100  # columns of a name


def printable(name: str) -> str:
    """Make a class's name safe to print: control characters could rewrite the terminal.

    >>> printable("cat\\x1b[2J")
    'cat\\\\x1b[2J'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name) if name.strip() else repr(name)


def shortened(name: str, width: int = LONGEST) -> str:
    """Make a name safe to print and at most so many columns wide; an ellipsis stands for what was cut off.

    >>> shortened("cat\\n"), shortened("hippopotamus", 5)
    ('cat\\\\n', 'hipp…')
    """
    safe = printable(name[: width + 1])
    if len(name) <= width and cell_len(safe) <= width:
        return safe
    return set_cell_size(safe, min(cell_len(safe), width - 1)) + "…"
