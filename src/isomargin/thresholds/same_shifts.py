"""Whether similarities are shifted by what a card or an evaluation says: its equalizer, its class thresholds."""

from typing import Any

from isomargin.core.errors import InputError

OPTIONS = {"equalizer": "equalizer (--equalizer)", "class_thresholds": "class thresholds (--class-thresholds)"}


def digest_of(shifts: dict[str, Any] | None) -> str:
    """Return the digest of what shifts similarities; empty for plain similarities."""
    return "" if shifts is None else str(shifts["digest"])


def parts_of(shifts: dict[str, Any] | None) -> set[str]:
    """Return which of an equalizer and class thresholds a record names.

    >>> parts_of(None), parts_of({"class_thresholds": {}, "digest": ""})
    (set(), {'class_thresholds'})
    """
    found = {"equalizer"} if "neighbours" in (shifts or {}) else set()
    return found | ({"class_thresholds"} if "class_thresholds" in (shifts or {}) else set())


def check_same_shifts(known: dict[str, Any] | None, given: dict[str, Any] | None, owner: str) -> None:
    """Refuse shifts other than those that the owner, such as "the card", was measured with.

    >>> check_same_shifts({"class_thresholds": {}, "digest": "a1"}, None, "the card")
    Traceback (most recent call last):
    isomargin.InputError: the card was measured with class thresholds: give its class thresholds (--class-thresholds)
    """
    if digest_of(known) == digest_of(given):
        return
    missing, added = parts_of(known) - parts_of(given), parts_of(given) - parts_of(known)
    for part in sorted(missing, reverse=True):
        kind = "with class thresholds" if part == "class_thresholds" else "on equalized similarities"
        raise InputError(f"{owner} was measured {kind}: give its {OPTIONS[part]}")
    for part in sorted(added):
        raise InputError(f"{owner} was measured without {part.replace('_', ' ')}: leave out the {OPTIONS[part]}")
    names = " and ".join(part.replace("_", " ") for part in sorted(parts_of(known), reverse=True))
    raise InputError(
        f"{owner} was measured with {names} {digest_of(known)[:16]} and not with {digest_of(given)[:16]}: give the same"
    )
