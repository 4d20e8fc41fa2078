"""Draw docs/images/equalize.png: the FAR of each class at one threshold, with raw and with equalized similarities.

python docs/equalize_picture.py embeddings.npz
"""

import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np

import isomargin as im

matplotlib.use("Agg")
import matplotlib.pyplot as plt

OUTSIDE, INSIDE, GREY = "#c2410c", "#1d4ed8", "#6b7280"
TARGET = 0.01
LEAST = 2e-4  # smaller rates are drawn here


def draw(axis: plt.Axes, evaluation: im.Evaluation, title: str) -> None:
    far = np.sort(evaluation.at(im.choose_threshold(evaluation, far=TARGET).distance).class_far)
    inside = (far >= TARGET / 2) & (far <= 2 * TARGET)
    axis.axhspan(TARGET / 2, 2 * TARGET, color="#dbeafe", lw=0)
    axis.axhline(TARGET, color="black", lw=1)
    place = np.arange(1, len(far) + 1)
    for chosen, colour in ((inside, INSIDE), (~inside, OUTSIDE)):
        axis.plot(place[chosen], np.maximum(far[chosen], LEAST), "o", ms=3.5, color=colour)
    axis.set(yscale="log", ylim=(LEAST * 0.8, 0.1), xlabel="classes, by their FAR", xlim=(-2, len(far) + 3))
    axis.set_yticks([5e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2], ["0.05%", "0.1%", "0.5%", "1%", "2%", "5%"])
    axis.minorticks_off()
    axis.set_title(f"{title}: {inside.mean():.0%} of the classes within a factor of two", loc="left", fontsize=10.5)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    found = im.EmbeddingSet.load(sys.argv[1])
    rows = found.labels != "oos"
    vectors, labels = np.asarray(found.vectors)[rows], found.labels[rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
    draw(left, im.evaluate(vectors, labels), "Cosines")
    draw(right, im.evaluate(vectors, labels, equalizer=im.Equalizer().fit(vectors)), "Equalized")
    left.set_ylabel("false accept rate of a class")
    left.text(2, TARGET * 1.06, "the one threshold is for 1%", fontsize=9, va="bottom")
    figure.savefig(Path(__file__).parent / "images" / "equalize.png", dpi=130)


if __name__ == "__main__":
    main()
