"""How figures look, and how they are written: one set of fonts, sizes, colours and dashes for all of them.

Colours are those of Okabe and Ito, which colour-blind readers can tell apart; each comes with its own dashes and
marker, so that a figure printed in black and white can still be read. Nothing here touches pyplot or leaves settings
behind.

A figure's function is decorated with `styled`, takes its axes from `panels`, passes every name that comes from outside
through `label`, and gives back a matplotlib Figure, which `save` writes.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.core.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)  # Okabe and Ito without yellow, too pale for lines
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

POSITIVE, NEGATIVE = BLUE, VERMILLION  # of pairs: the same class, different classes
RANGE = "#F0E442"  # Okabe and Ito's yellow, for areas
GREY, PALE = "#6b7280", "#d1d5db"

SUFFIXES = (".svg", ".pdf", ".png")
LONGEST = 32  # characters of a name that are shown
INVISIBLE = "\u200a"  # a hair space
_FALLBACK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "WenQuanYi Zen Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Malgun Gothic",
    "Arial Unicode MS",
)

_SETTINGS: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,  # whole fonts, which publishers ask for
    "svg.hashsalt": "isomargin",  # the same figure is the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in this style within the block, whatever the user's own settings are; they are as before afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = {**_SETTINGS, "font.family": list(_fonts())}
        matplotlib.rcParams.update(settings)
        yield


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Make a function draw its figure in this style."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **options: Arguments.kwargs) -> Figure:
        with style():
            return draw(*arguments, **options)

    return drawn


def panels(
    rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.6, same_axes: bool = True, **more: Any
) -> tuple[Figure, list[Any]]:
    """Give a figure and its axes, row by row, each about so many inches wide and high; `more` goes on to `subplots`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.04, hspace=0.06)
    figure = Figure(figsize=(width * columns, height * rows), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=same_axes, sharey=same_axes, **more)
    return figure, list(axes.ravel())


def look(number: int, marker: bool = False) -> dict[str, Any]:
    """Give the colour and dashes of the line of that number, and its marker if asked for; 35 lines are all different.

    >>> look(1)["color"] == VERMILLION, look(1)["linestyle"] == look(2)["linestyle"], look(0, marker=True)["marker"]
    (True, False, 'o')
    """
    chosen = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
    return {**chosen, "marker": MARKERS[number % len(MARKERS)]} if marker else chosen


def label(name: object, longest: int = LONGEST) -> str:
    r"""Make a name from outside fit to stand in a figure: short, on one line, no formula, only characters there are.

    Characters that no font has are written as Python writes them. Long names lose their middle.

    >>> label("$x_"), label("cat\x1b"), label("a" * 20 + "b" * 20, longest=9)
    ('\\$x_', 'cat\\x1b', 'aaaa…bbbb')
    """
    text = printable(str(name))
    shown = "".join(each if _has_glyph(each) else ascii(each)[1:-1] for each in text)
    if len(shown) > longest:
        half = (longest - 1) // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    # A legend leaves out what begins with an underscore; a dollar sign would begin a formula.
    return (INVISIBLE + shown if shown.startswith("_") else shown).replace("$", r"\$")


def labels(names: Sequence[object], longest: int = LONGEST) -> list[str]:
    """Give several names their labels, with a number where shortening made them equal.

    >>> labels(["a" * 20, "aaaa" + "b" * 12 + "aaaa", "c"], longest=9)
    ['aaaa…aaaa (1)', 'aaaa…aaaa (2)', 'c']
    """
    short = [label(name, longest) for name in names]
    return [
        each if short.count(each) == 1 else f"{each} ({short[: place + 1].count(each)})"
        for place, each in enumerate(short)
    ]


def scientific(value: float) -> str:
    """Write a small number with three digits.

    >>> scientific(0.0018436), scientific(0.0), scientific(float("nan"))
    ('1.84×10⁻³', '0', 'unknown')
    """
    if not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}×10{str(int(exponent)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """Put a legend under the figure, in as many columns as it is wide enough for."""
    widest = max(len(str(handle.get_label())) for handle in handles)
    room = figure.get_figwidth() / (0.6 + 0.07 * widest)  # inches of an entry: its line, and its characters
    figure.legend(handles=handles, loc="outside lower center", ncols=int(min(max(room, 1), len(handles))))


def remark(figure: Figure, sentence: str) -> None:
    """Write a sentence in small print under the figure."""
    figure.supxlabel(sentence, x=0.01, ha="left", fontsize=7.5, color=GREY)


def check_output(path: str | os.PathLike[str]) -> Path:
    """Give the path of a figure to write; refuse one of another format.

    >>> check_output("figure.jpg")
    Traceback (most recent call last):
    isomargin.InputError: figure.jpg should end in .svg, .pdf or .png
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"{target} should end in .svg, .pdf or .png")
    return target


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as SVG, PDF or PNG by the path's suffix, whole or not at all, without the date in it.

    >>> from tempfile import TemporaryDirectory
    >>> from isomargin.figures import gaussian_curves
    >>> with TemporaryDirectory() as folder:
    ...     save(gaussian_curves(), f"{folder}/curves.svg")
    ...     [path.name for path in Path(folder).iterdir()]
    ['curves.svg']
    """
    target = check_output(path)
    kind = target.suffix.lower().removeprefix(".")
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with style(), warnings.catch_warnings(), atomic_write(target) as temporary:
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # of texts that did not go through `label`
        figure.savefig(temporary, format=kind, metadata=metadata)


@cache
def _fonts() -> tuple[str, ...]:
    """List the fonts that are looked through for a character: matplotlib's own, then those of other scripts."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in _FALLBACK_FONTS if name in installed))


@cache
def _has_glyph(character: str) -> bool:
    """Whether one of the fonts can show the character."""
    return any(ord(character) in glyphs for glyphs in _characters())


@cache
def _characters() -> tuple[frozenset[int], ...]:
    """List the characters that each font has."""
    from matplotlib.font_manager import findfont, get_font

    return tuple(frozenset(get_font(findfont(name)).get_charmap()) for name in _fonts())
