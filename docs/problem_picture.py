"""Draw docs/images/problem.png, the figure at the top of the README, from rendered letters.

python docs/problem_picture.py
"""

from pathlib import Path

import matplotlib
import numpy as np

import isomargin as im

matplotlib.use("Agg")
import matplotlib.pyplot as plt

WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 2}
DIMENSIONS = 64
ACCEPTS, REJECTS, GREY = "#c2410c", "#1d4ed8", "#6b7280"


def project(train: np.ndarray, test: np.ndarray, dimensions: int) -> np.ndarray:
    """(n, dimensions) the test images projected on the principal components of the training images."""
    train_pixels = train.reshape(len(train), -1).astype(np.float32) / 255
    test_pixels = test.reshape(len(test), -1).astype(np.float32) / 255
    mean = train_pixels.mean(axis=0)
    components = np.linalg.eigh(np.cov((train_pixels - mean).T))[1][:, ::-1][:, :dimensions]
    return np.asarray((test_pixels - mean) @ components, np.float32)


def main() -> None:
    train, test = im.load_glyphs("train"), im.load_glyphs("test")
    vectors = project(train.images, test.images, DIMENSIONS)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    evaluation = im.evaluate(vectors, test.labels)
    target = evaluation.target
    loose, strict = int(np.argmax(target.class_far)), int(evaluation.worst_classes(1)["class"].item())
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained")
    bins = np.linspace(0, 2, 81)
    for which, colour, sign in ((loose, ACCEPTS, 1), (strict, REJECTS, -1)):
        own = test.labels == which
        distances = np.sqrt(np.maximum(2 - 2 * vectors[own] @ vectors.T, 0))
        inside = distances[:, own][np.triu_indices(own.sum(), 1)]
        name = test.class_names[which].split()[0]
        for values, alpha, label in (
            (inside, 0.9, f"{name}: same letter"),
            (distances[:, ~own].ravel(), 0.35, f"{name}: other letters"),
        ):
            height, _ = np.histogram(values, bins, density=True)
            left.stairs(sign * height, bins, fill=True, color=colour, alpha=alpha, label=label)
        far, frr = target.class_far[which], target.class_frr[which]
        text = f"{name}: accepts {far:.1%} of other letters, rejects {frr:.0%} of its own"
        left.text(
            0.02, 0.95 if sign > 0 else 0.05, text, color=colour, transform=left.transAxes, va="center", bbox=WHITE
        )
    left.axvline(target.distance, color="black", lw=1.2)
    left.axhline(0, color="white", lw=1)
    above = {"transform": left.get_xaxis_transform(), "ha": "left", "va": "bottom"}
    left.text(target.distance + 0.03, 1.01, "threshold for FAR 1%", **above)
    left.set(xlim=(0, 2), yticks=[], xlabel="distance of two embeddings")
    left.set_title("One threshold, two classes", loc="left")
    left.margins(y=0.2)
    left.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 0.1), fontsize=8)
    wide = evaluation.with_settings(distances=(0.3, 1.8), grid=301)
    right.plot(wide.curves.distances, wide.curves.utility.T, color=GREY, lw=0.5, alpha=0.35)
    right.plot(wide.curves.distances, wide.curves.mean_utility, color="black", lw=2, label="mean")
    for which, colour in ((loose, ACCEPTS), (strict, REJECTS)):
        label = test.class_names[which].split()[0]
        right.plot(wide.curves.distances, wide.curves.utility[which], color=colour, lw=2, label=label)
    right.axvspan(*evaluation.calibration_range, color="#fde68a", alpha=0.5, lw=0, label="calibration range")
    right.set(xlabel="threshold (distance)", ylabel="utility", ylim=(0, 1.02), xlim=(0.3, 1.8))
    title = f"Utility of {evaluation.class_count} classes: OPIS is their variance, {evaluation.opis:.4f}"
    right.set_title(title, loc="left")
    right.legend(frameon=False, fontsize=8, loc="upper left")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    left.spines["left"].set_visible(False)
    figure.savefig(Path(__file__).parent / "images" / "problem.png", dpi=130)


if __name__ == "__main__":
    main()
