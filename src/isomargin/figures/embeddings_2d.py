"""Two-dimensional embeddings on the unit circle: where each class lies, and how compact it is.

Rows are scaled to unit length first, because distances do not depend on their length. Each row is then an angle, so
densities over the angle are drawn around the circle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.text import printable
from isomargin.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isomargin.io.embedding_set import EmbeddingSet

Floats = NDArray[np.float64]

MOST_CLASSES = 20  # the most names that fit around a circle
GRID = 1440  # number of angles at which a density is computed
LEAST_BANDWIDTH = np.radians(0.5)  # two steps of the grid, about the width of a line
HEIGHT = 0.55  # height of the largest density above the circle, which has radius 1
LABELS = 1.72  # radius of the names
BARS = (0.96, 0.92, 0.88)  # alternating radii of the bars, so that neighbours do not overlap
ROOM = 0.34  # least angle between two names, in radians
NOTE = (
    "Outside the circle: density of the embeddings of a class by angle. Arrow: mean of a class.\n"
    "Bar, and the number below the name: spread, the root mean square distance from the direction of the mean."
)


@dataclass(frozen=True)
class CircleClass:
    """One class of two-dimensional unit vectors."""

    direction: float
    """Angle of the mean in radians, from -π to π."""
    length: float
    """Length of the mean: 1 if all embeddings are equal."""
    spread: float
    """Root mean square distance of the embeddings from the direction of the mean, √(2 - 2·length)."""
    density: Floats
    """(grid,) density at the angles `grid_angles()`; its integral is 1."""


@style.styled
def embeddings_2d(embeddings: Mapping[str, EmbeddingSet]) -> Figure:
    """Draw the classes of two-dimensional embeddings around the circle, one panel per set, on the same scale.

    The title gives the mean spread of the classes, and the distance between the directions of the two nearest classes.

    Parameters
    ----------
    embeddings: sets of embeddings by the names to show, with two dimensions and at most 20 classes.

    >>> from isomargin.io.embedding_set import EmbeddingSet
    >>> vectors = EmbeddingSet(np.array([[1.0, 0.1], [2.0, -0.2], [0.0, 1.0], [0.0, 3.0]]), ["a", "a", "b", "b"])
    >>> embeddings_2d({"mine": vectors}).axes[0].get_title(loc="left")
    'mine\\nmean spread 0.050, nearest classes 1.414 apart'
    """
    _check(embeddings)
    sets = {name: circle_classes(vectors, name) for name, vectors in embeddings.items()}
    known = sorted(
        {label for classes in sets.values() for label in classes}, key=lambda label: (str(type(label)), label)
    )
    if len(known) > MOST_CLASSES:
        raise InputError(f"there are {len(known):,} classes: there is room for {MOST_CLASSES} around the circle")
    looks = {label: style.look(number) for number, label in enumerate(known)}
    shown = dict(zip(known, style.labels(known, longest=12), strict=True))
    highest = max(float(found.density.max()) for classes in sets.values() for found in classes.values())
    columns = min(3, len(sets))
    figure, axes = style.panels(-(-len(sets) // columns), columns, width=3.5, height=3.9)
    for axis, name, classes in zip(axes, style.labels(list(sets)), sets.values(), strict=False):
        _draw_panel(axis, classes, looks, shown, highest)
        axis.set_title(f"{name}\n{_summary(list(classes.values()))}")
    for axis in axes[len(sets) :]:
        axis.remove()
    style.remark(figure, NOTE)
    return figure


def _check(embeddings: Mapping[str, EmbeddingSet]) -> None:
    """Refuse anything but a non-empty mapping of names to two-dimensional embeddings."""
    from isomargin.io.embedding_set import EmbeddingSet

    if not isinstance(embeddings, Mapping) or not all(
        isinstance(vectors, EmbeddingSet) for vectors in embeddings.values()
    ):
        kind = type(embeddings).__name__
        raise InputError(
            f"embeddings is a {kind}: sets of embeddings by name are needed, such as {{'mine': embeddings}}"
        )
    if not embeddings:
        raise InputError("there are no embeddings to draw: at least one set is needed")
    for name, stored in embeddings.items():
        if stored.vectors.shape[1] != 2:
            raise InputError(
                f"{printable(name)} has embeddings of {stored.vectors.shape[1]:,} dimensions: this figure shows those "
                "of 2, which a recipe with model.dimensions=2 trains"
            )


# ----- measuring


def grid_angles() -> Floats:
    """(grid,) the angles at which densities are computed, starting at -π."""
    return np.asarray(-np.pi + 2 * np.pi * np.arange(GRID) / GRID)


def circle_classes(embeddings: EmbeddingSet, name: str = "embeddings") -> dict[int | str, CircleClass]:
    """Measure each class on the circle, by its label.

    >>> from isomargin.io.embedding_set import EmbeddingSet
    >>> found = circle_classes(EmbeddingSet(np.array([[0.6, 0.8], [0.6, -0.8]]), [7, 7]))[7]
    >>> round(found.direction, 6), round(found.length, 6), round(found.spread, 6)
    (0.0, 0.6, 0.894427)
    """
    from isomargin.measure.pairs.inputs import as_matrix, unit_rows

    try:
        vectors = unit_rows(as_matrix(embeddings.vectors), np.arange(len(embeddings.labels)), np.float64)
    except InputError as error:
        raise InputError(f"{printable(name)}: {error}") from error
    labels, numbers = np.unique(embeddings.labels, return_inverse=True)
    return {label: _measure(vectors[numbers == number]) for number, label in enumerate(labels.tolist())}


def _measure(vectors: Floats) -> CircleClass:
    """Measure one class of unit vectors (n, 2)."""
    mean = vectors.mean(axis=0)
    direction = float(np.arctan2(mean[1], mean[0]))
    length = min(float(np.hypot(*mean)), 1.0)
    angles = np.arctan2(vectors[:, 1], vectors[:, 0])
    return CircleClass(direction, length, float(np.sqrt(2 - 2 * length)), _density(angles, direction))


def _density(angles: Floats, direction: float) -> Floats:
    """Estimate the density of angles (n,) with a normal kernel wrapped around the circle; (grid,).

    The bandwidth follows Silverman's rule for the deviations from the direction of the class.
    """
    deviations = np.angle(np.exp(1j * (angles - direction)))
    quarter, three_quarters = np.quantile(deviations, (0.25, 0.75))
    width = min(float(deviations.std()), float(three_quarters - quarter) / 1.34)
    bandwidth = max(0.9 * width * len(angles) ** -0.2, LEAST_BANDWIDTH)
    places = np.rint((angles + np.pi) / (2 * np.pi) * GRID).astype(np.int64) % GRID
    counts = np.bincount(places, minlength=GRID)
    # A product of Fourier series is a convolution around the circle; its cost does not depend on the number of angles.
    series = np.fft.rfft(counts) * np.exp(-((np.arange(GRID // 2 + 1) * bandwidth) ** 2) / 2)
    return np.asarray(np.maximum(np.fft.irfft(series, GRID), 0) * GRID / (2 * np.pi * len(angles)))


def _summary(classes: Sequence[CircleClass]) -> str:
    """Say how compact the classes are, and how far apart the nearest two are."""
    text = f"mean spread {np.mean([found.spread for found in classes]):.3f}"
    directions = np.sort([found.direction for found in classes])
    if len(directions) < 2:
        return text
    gaps = np.diff(directions, append=directions[0] + 2 * np.pi)
    nearest = min(gaps.min(), np.pi)
    return f"{text}, nearest classes {2 * np.sin(nearest / 2):.3f} apart"


# ----- drawing


def _draw_panel(
    axis: Any,
    classes: Mapping[int | str, CircleClass],
    looks: Mapping[int | str, Mapping[str, Any]],
    shown: Mapping[int | str, str],
    highest: float,
) -> None:
    """Draw the circle and its classes."""
    around = np.append(grid_angles(), np.pi)
    axis.plot(np.cos(around), np.sin(around), color=style.GREY, lw=0.8)
    ordered = sorted(classes, key=lambda label: classes[label].direction)
    places = spread_out([classes[label].direction for label in ordered], ROOM)
    for number, (label, place) in enumerate(zip(ordered, places, strict=True)):
        found, colour = classes[label], looks[label]["color"]
        _draw_density(axis, found.density * HEIGHT / highest, looks[label])
        x, y = found.length * np.cos(found.direction), found.length * np.sin(found.direction)
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
        axis.annotate("", (x, y), (0, 0), arrowprops=arrow)
        last_of_odd = number == len(ordered) - 1 and number % 2 == 0
        _draw_bar(axis, found, BARS[2 if last_of_odd else number % 2], colour)
        _draw_name(axis, f"{shown[label]}\n{found.spread:.3f}", found, place, highest)
    axis.set(xlim=(-1.9, 1.9), ylim=(-1.9, 1.9), aspect="equal")
    axis.set_axis_off()


def _draw_density(axis: Any, heights: Floats, look: Mapping[str, Any]) -> None:
    """Draw a density as an area outside the circle."""
    angles = np.append(grid_angles(), np.pi)
    radii = 1 + np.append(heights, heights[0])
    x, y = np.cos(angles), np.sin(angles)
    outline = np.where(radii > 1.008, radii, np.nan)  # no outline where the density is close to zero
    axis.fill(np.append(radii * x, x[::-1]), np.append(radii * y, y[::-1]), color=look["color"], alpha=0.4, lw=0)
    axis.plot(outline * x, outline * y, **{**look, "lw": 1.0})


def _draw_bar(axis: Any, found: CircleClass, radius: float, colour: str) -> None:
    """Draw a bar across the arrow that reaches as far as the spread on both sides."""
    half = 2 * np.arcsin(found.spread / 2)
    angles = np.linspace(found.direction - half, found.direction + half, 50)
    axis.plot(radius * np.cos(angles), radius * np.sin(angles), color=colour, lw=2.4, solid_capstyle="butt")


def _draw_name(axis: Any, text: str, found: CircleClass, place: float, highest: float) -> None:
    """Write the name of a class outside the circle, with a thin line to the top of its density."""
    x, y = np.cos(place), np.sin(place)
    top = 1 + HEIGHT * float(found.density[int((found.direction + np.pi) / (2 * np.pi) * GRID) % GRID]) / highest
    ends = (
        [(top + 0.02) * np.cos(found.direction), (LABELS - 0.16) * x],
        [
            (top + 0.02) * np.sin(found.direction),
            (LABELS - 0.16) * y,
        ],
    )
    axis.plot(*ends, color=style.PALE, lw=0.7, zorder=0)
    axis.text(LABELS * x, LABELS * y, text, ha="center", va="center", fontsize=7.5, linespacing=1.1)


def spread_out(angles: Sequence[float], room: float) -> list[float]:
    """Push ascending angles apart until all gaps are at least `room`, or all gaps are equal.

    >>> [round(angle, 3) for angle in spread_out([-1.0, 0.0, 0.1], 0.3)]
    [-1.0, -0.1, 0.2]
    """
    if len(angles) < 2:
        return list(angles)
    room = min(room, 0.999 * 2 * np.pi / len(angles))
    moved = np.array(angles, np.float64)
    for _ in range(1000):
        gaps = np.diff(moved, append=moved[0] + 2 * np.pi)
        short = np.maximum(room - gaps, 0) / 2
        if short.max() < 1e-6:
            break
        moved += np.roll(short, 1) - short
    angles_apart: list[float] = moved.tolist()
    return angles_apart
