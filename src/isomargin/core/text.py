"""Make names from files safe and short enough to print."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size

PARAGRAPH = 88  # columns of running text
LONGEST = 100  # columns of a name


def printable(name: str) -> str:
    """Escape characters that could change the terminal, such as control characters.

    >>> printable("cat\\x1b[2J")
    'cat\\\\x1b[2J'
    """
    if not name.strip():
        return repr(name)
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in name)


def shortened(name: str, width: int = LONGEST) -> str:
    """Escape a name and shorten it to at most `width` columns, with an ellipsis at the end.

    >>> shortened("cat\\n"), shortened("hippopotamus", 5)
    ('cat\\\\n', 'hipp…')
    """
    safe = printable(name[: width + 1])
    if len(name) <= width and cell_len(safe) <= width:
        return safe
    return set_cell_size(safe, min(cell_len(safe), width - 1)) + "…"


def percent(value: float | None, digits: int = 3) -> str:
    """Format a share as a percentage with this many significant digits; a dash where it is unknown.

    >>> percent(0.012345), percent(1e-6), percent(None), percent(0.0123456, 6)
    ('1.23%', '0.0001%', '-', '1.23456%')
    """
    return "-" if value is None else f"{100 * value:.{digits}g}%"


def listed_numbers(numbers: Iterable[int], most: int = 8) -> str:
    """List a few numbers for a sentence, and how many more there are.

    >>> listed_numbers([3]), listed_numbers([3, 5, 8]), listed_numbers(range(1, 100), 2)
    ('3', '3, 5 and 8', '1, 2 and 97 more')
    """
    shown = [str(number) for number in numbers]
    if len(shown) > most:
        return f"{', '.join(shown[:most])} and {len(shown) - most:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def say_missing(missing: Sequence[int], parts: int) -> str:
    """Say which parts of how many are missing.

    >>> say_missing([3], 7), say_missing([3, 5], 7)
    ('part 3 of 7 is missing', 'parts 3 and 5 of 7 are missing')
    """
    noun, verb = ("part", "is") if len(missing) == 1 else ("parts", "are")
    return f"{noun} {listed_numbers(missing)} of {parts} {verb} missing"
