"""Draw docs/images/overview.png, how TCM and class alignment change OPIS, from results/*/table.csv.

python docs/overview_picture.py
"""

from pathlib import Path
from typing import Any

import fill_results
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from isomargin.figures.style import BLUE, GREY, VERMILLION, legend_below, panels, save, styled

USUAL = "base-losses/cub-heads,base-losses/omniglot-heads,two-sides/omniglot,base-losses-nets/glyphs"
LONG = "convergence/omniglot-heads,convergence/omniglot,convergence/glyphs"
SETTINGS = {
    "omniglot-heads": "Omniglot, heads",
    "omniglot": "Omniglot, networks",
    "glyphs": "Letters, networks",
    "cub-heads": "CUB, heads",
}
LOOKS: dict[str, dict[str, Any]] = {
    "tcm": {"color": VERMILLION, "marker": "s"},
    "alignment": {"color": BLUE, "marker": "o"},
}
RANGE = (-0.68, 0.58)  # changes of OPIS that the axes show


@styled
def draw() -> Figure:
    """Draw one panel per setting: one row for the usual training, one for three times the training."""
    figure, axes = panels(2, 4, 2.6, 2.3)
    losses = fill_results.losses_of(fill_results.read_cases(USUAL, "tcm"))
    handles: list[Any] = []
    for across, title, sources in ((axes[:4], "", USUAL), (axes[4:], "; 3 × training", LONG)):
        cases = fill_results.read_cases(sources, "tcm,alignment")
        for panel, (setting, name) in zip(across, SETTINGS.items(), strict=True):
            here = {loss: rows for (which, loss), rows in cases.items() if which == setting}
            if here:
                handles = draw_setting(panel, here, losses)
                panel.set_title(f"{name}{title}")
            else:
                panel.set_axis_off()
                text = "CUB's heads gain\nnothing from\nlonger training"
                panel.text(0.5, 0.5, text, ha="center", va="center", color=GREY, transform=panel.transAxes)
    legend_below(figure, handles)
    return figure


def draw_setting(panel: Axes, cases: dict[str, dict[str, dict[str, str]]], losses: list[str]) -> list[Any]:
    """Draw the changes of OPIS in one setting, one line per loss; hollow where the interval includes zero."""
    handles = []
    for offset, (training, look) in zip((-0.16, 0.16), LOOKS.items(), strict=True):
        for loss, rows in cases.items():
            row, height = rows[training], losses.index(loss) + offset
            change, low, high = (float(row[f"opis change{part}"]) for part in ("", " low", " high"))
            significant = bool(fill_results.sign(row, "opis"))
            panel.plot((low, high), (height, height), color=look["color"], lw=1.4, alpha=1 if significant else 0.5)
            panel.plot(change, height, **look, ms=4.5, ls="none", mfc=look["color"] if significant else "white")
        label = {"tcm": "TCM", "alignment": "class alignment"}[training]
        handles += panel.plot([], [], **look, ls="solid", lw=1.4, ms=4.5, label=f"{label}, 95% confidence interval")
    handles += panel.plot([], [], color=GREY, marker="o", mfc="white", ls="none", label="not significant")
    panel.axvline(0, color=GREY, lw=0.8)
    panel.set(xlim=RANGE, ylim=(len(losses) - 0.5, -0.5))
    panel.set_yticks(range(len(losses)), [fill_results.name(loss) for loss in losses])
    panel.set_xticks((-0.6, -0.3, 0, 0.3))
    panel.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panel.set_xlabel("change of OPIS")
    panel.tick_params(labelbottom=True)
    return handles


if __name__ == "__main__":
    save(draw(), Path(__file__).parent / "images" / "overview.png")
