"""The style of all figures (fonts, sizes, colours, dashes), and how figures are saved.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Each has its own dashes and marker,
so that figures can be read in black and white. Nothing here uses pyplot or changes global settings.

The function of a figure is decorated with `styled`, takes its axes from `panels`, passes every name given by the user
through `label`, and returns a matplotlib Figure for `save`.
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
COLOURS = (
    BLUE,
    VERMILLION,
    GREEN,
    PURPLE,
    ORANGE,
    SKY,
    BLACK,
)  # Okabe and Ito without yellow, which is too pale for lines
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

POSITIVE, NEGATIVE = BLUE, VERMILLION  # pairs of the same class, pairs of different classes
RANGE = "#F0E442"  # Okabe and Ito's yellow, for areas
GREY, PALE = "#6b7280", "#d1d5db"

SUFFIXES = (".svg", ".pdf", ".png")
LONGEST = 32  # the most characters of a name that are shown
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
    "pdf.fonttype": 42,  # TrueType fonts, which publishers require
    "svg.hashsalt": "isomargin",  # the same figure gives the same file
}


@contextmanager
def style() -> Iterator[None]:
    """Use this style within the block, whatever the settings of the user; they are restored afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = {**_SETTINGS, "font.family": list(_fonts())}
        matplotlib.rcParams.update(settings)
        yield


def styled(draw: Callable[Arguments, Figure]) -> Callable[Arguments, Figure]:
    """Decorate a function so that it draws its figure in this style."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **options: Arguments.kwargs) -> Figure:
        with style():
            return draw(*arguments, **options)

    return drawn


def panels(
    rows: int = 1, columns: int = 1, width: float = 3.4, height: float = 2.6, same_axes: bool = True, **options: Any
) -> tuple[Figure, list[Any]]:
    """Return a figure and its axes, row by row; panels are sized in inches, and `options` go to `subplots`."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(wspace=0.04, hspace=0.06)
    figure = Figure(figsize=(width * columns, height * rows), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False, sharex=same_axes, sharey=same_axes, **options)
    return figure, list(axes.ravel())


def look(number: int, marker: bool = False) -> dict[str, Any]:
    """Return the colour and dashes of line `number`, and its marker if requested; 35 lines are all different.

    >>> look(1)["color"] == VERMILLION, look(1)["linestyle"] == look(2)["linestyle"], look(0, marker=True)["marker"]
    (True, False, 'o')
    """
    chosen = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
    return {**chosen, "marker": MARKERS[number % len(MARKERS)]} if marker else chosen


def label(name: object, longest: int = LONGEST) -> str:
    r"""Make a name safe to show in a figure: short, on one line, not a formula, with characters that a font has.

    Characters that no installed font has are escaped as in Python. Long names are shortened in the middle.

    >>> label("$x_"), label("cat\x1b"), label("a" * 20 + "b" * 20, longest=9)
    ('\\$x_', 'cat\\x1b', 'aaaa…bbbb')
    """
    text = printable(str(name))
    shown = "".join(character if _has_glyph(character) else ascii(character)[1:-1] for character in text)
    if len(shown) > longest:
        half = (longest - 1) // 2
        shown = f"{shown[:half]}…{shown[-half:]}"
    # matplotlib hides legend entries that begin with an underscore, and a dollar sign begins a formula.
    return (INVISIBLE + shown if shown.startswith("_") else shown).replace("$", r"\$")


def labels(names: Sequence[object], longest: int = LONGEST) -> list[str]:
    """Return the labels of several names, numbered where shortening made them equal.

    >>> labels(["a" * 20, "aaaa" + "b" * 12 + "aaaa", "c"], longest=9)
    ['aaaa…aaaa (1)', 'aaaa…aaaa (2)', 'c']
    """
    short = [label(name, longest) for name in names]
    return [
        text if short.count(text) == 1 else f"{text} ({short[: place + 1].count(text)})"
        for place, text in enumerate(short)
    ]


def scientific(value: float) -> str:
    """Write a number in scientific notation with three digits.

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
    """Place a legend below the figure, in as many columns as fit."""
    widest = max(len(str(handle.get_label())) for handle in handles)
    room = figure.get_figwidth() / (0.6 + 0.07 * widest)  # width of an entry in inches: its line, and its characters
    figure.legend(handles=handles, loc="outside lower center", ncols=int(min(max(room, 1), len(handles))))


def remark(figure: Figure, sentence: str) -> None:
    """Write a sentence in small print below the figure."""
    figure.supxlabel(sentence, x=0.01, ha="left", fontsize=7.5, color=GREY)


def check_output(path: str | os.PathLike[str]) -> Path:
    """Return the path of a figure to write; refuse an unknown format.

    >>> check_output("figure.jpg")
    Traceback (most recent call last):
    isomargin.InputError: figure.jpg should end in .svg, .pdf or .png
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"{target} should end in .svg, .pdf or .png")
    return target


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure atomically as SVG, PDF or PNG, depending on the suffix, without the date.

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
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # in texts that did not pass through `label`
        figure.savefig(temporary, format=kind, metadata=metadata)


@cache
def _fonts() -> tuple[str, ...]:
    """List the fonts that are searched for a character: the default of matplotlib, then fonts for other scripts."""
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
