"""Draw docs/images/figure-*.png, the figures of docs/figures.md, from runs on rendered letters.

    python docs/draw_figures.py

Runs that are missing in runs and runs/figures are trained first: 15 runs, and a search of 17 short runs. The script
mnist_figure.py draws the two-dimensional figure.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from isomargin.cli.figures import figure
from isomargin.training.loop import train
from isomargin.training.recipe import load_recipe
from isomargin.training.tune import tune

ROOT = Path(__file__).parent.parent
IMAGES, RUNS = ROOT / "docs" / "images", ROOT / "runs" / "figures"
SMOOTH_AP = ("loss.base={name: smooth_ap}",)
SMOOTH_AP_TCM = (*SMOOTH_AP, "loss.regularizer.weight=1")  # Smooth-AP lies between 0 and 1, the scale of ProxyNCA is 18
SHORT = ("epochs=6", "evaluation.every=6")
EVERY_EPOCH = ("epochs=6", "evaluation.every=1")
MARGINS: dict[str, Any] = {"positive_margins": (0.8, 0.85, 0.9, 0.95), "negative_margins": (0.3, 0.4, 0.5, 0.6)}

# Folder of each run, its recipe and the changes to it. All runs see the same number of images, so small batches take
# more steps.
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "proxy-nca-256": ("glyphs", EVERY_EPOCH),
    "proxy-nca-256-tcm": ("glyphs-tcm", EVERY_EPOCH),
    "proxy-nca-256-tcm-plus": ("glyphs-tcm", (*EVERY_EPOCH, "loss.regularizer.negative_weight=0")),
    "proxy-nca-256-tcm-minus": ("glyphs-tcm", (*EVERY_EPOCH, "loss.regularizer.positive_weight=0")),
    "proxy-nca-256-tcm-prime": ("glyphs-tcm", (*EVERY_EPOCH, "loss.regularizer.hard_only=false")),
    "smooth-ap-256": ("glyphs", (*SMOOTH_AP, *SHORT)),
    "smooth-ap-256-tcm": ("glyphs-tcm", (*SMOOTH_AP_TCM, *SHORT)),
    "proxy-nca-64": ("glyphs", ("batch.classes=16", *SHORT)),
    "proxy-nca-64-tcm": ("glyphs-tcm", ("batch.classes=16", *SHORT)),
    "smooth-ap-64": ("glyphs", (*SMOOTH_AP, "batch.classes=16", *SHORT)),
    "smooth-ap-64-tcm": ("glyphs-tcm", (*SMOOTH_AP_TCM, "batch.classes=16", *SHORT)),
    "proxy-nca-128": ("glyphs", ("batch.classes=32", *SHORT)),
    "proxy-nca-128-tcm": ("glyphs-tcm", ("batch.classes=32", *SHORT)),
}


# The runs that each figure shows: those of `isomargin train glyphs` and `glyphs-tcm`, and those above.
LETTERS = ("glyphs", "glyphs-tcm")
VARIANTS = tuple(f"figures/{name}" for name in RECIPES if name.startswith("proxy-nca-256"))
TWINS = tuple(f"figures/{name}" for name in RECIPES if not name.endswith(("plus", "minus", "prime")))
DRAWN: dict[str, tuple[str, ...]] = {
    "utility_curves": LETTERS,
    "teaser": LETTERS[:1],
    "error_against_opis": TWINS,
    "margins_grid": ("figures/margins",),
    "gaussian_curves": (),
    "calibration_ranges": TWINS,
    "distance_distributions": VARIANTS,
    "recall_over_epochs": VARIANTS,
}


def train_missing() -> None:
    """Train the runs that do not exist yet."""
    wanted = {ROOT / "runs" / name: load_recipe(name) for name in LETTERS}
    wanted |= {RUNS / name: load_recipe(recipe, changes) for name, (recipe, changes) in RECIPES.items()}
    for folder, recipe in wanted.items():
        if not (folder / "evaluation.json").is_file():
            folder.parent.mkdir(parents=True, exist_ok=True)
            train(recipe, folder, resume=folder.exists())
    tune(load_recipe("glyphs-tcm", ("epochs=2", "evaluation.every=2")), RUNS / "margins", **MARGINS, report=print)


def draw_all() -> None:
    """Draw all figures into docs/images."""
    for name, runs in DRAWN.items():
        path = IMAGES / f"figure-{name}.png"
        figure(name, [ROOT / "runs" / run for run in runs], path)
        with Image.open(path) as drawn:
            few_colours = drawn.convert("RGB").quantize(128)  # a third of the size, with no visible difference
        few_colours.save(path, optimize=True)


if __name__ == "__main__":
    train_missing()
    draw_all()
