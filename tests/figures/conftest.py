"""Fixtures of the tests of figures: small sets, and what each kind of figure is drawn from, with hostile names."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from by_hand import HOSTILE, make_set, tuned_run

import isomargin as im
from isomargin.figures import TrainedModel
from isomargin.io.embedding_set import EmbeddingSet


@pytest.fixture(scope="session")
def sets():
    """Three small sets, each looser than the one before."""
    return {name: make_set(seed, spread=spread) for name, seed, spread in (("a", 1, 0.3), ("b", 2, 0.5), ("c", 3, 0.8))}


@pytest.fixture(scope="session")
def evaluations(sets):
    return {name: made.evaluation for name, made in sets.items()}


@pytest.fixture(scope="session")
def hostile_sources(sets):
    """What each kind of figure is drawn from, with hostile names wherever names can be."""
    names = np.array([name for name in HOSTILE if name != "\udcff"], dtype=object)  # which no evaluation takes
    made = make_set(4, classes=len(names), images=4)
    own = im.evaluate(made.vectors, names[made.labels])
    plane = np.random.default_rng(0).normal(size=(60, 2)) + 4 * np.eye(2)[np.arange(60) % 2]
    table = pandas.DataFrame({"epoch": [1.0, 2.0], "recall@1": [0.5, 0.6]})
    grid = [tuned_run(), tuned_run(0.9, 0.5, 1.0, picked=True), tuned_run(0.8, 0.5, 1.0, recall=0.7)]
    return {
        "evaluations": (dict.fromkeys(HOSTILE[:3], own), dict.fromkeys(HOSTILE[3:6], own), {"own": own}),
        "models": ([TrainedModel(name, 0.5, 1e-3, name, 64, name, "twin") for name in HOSTILE],),
        "metrics": (dict.fromkeys(HOSTILE, table),),
        "search": (grid,),
        "embeddings": ({name: EmbeddingSet(plane, names[np.arange(60) % 2]) for name in HOSTILE[:2]},),
        "nothing": (None,),
    }


@pytest.fixture
def make_run(tmp_path, sets):
    """Make the folder of a finished run, with the settings of its recipe that matter to figures."""

    def make(name, made="a", regularizer="null", classes=16, base="smooth_ap") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        sets[made].evaluation.save(folder / "evaluation.json")
        loss = f"{{base: {base}, regularizer: {regularizer}}}"
        settings = (
            f"data: {{name: glyphs}}, model: {{backbone: small_conv}}, loss: {loss}, batch: {{classes: {classes}}}"
        )
        (folder / "recipe.yaml").write_text(f"{{name: any, {settings}}}", encoding="utf-8")
        (folder / "metrics.csv").write_text("epoch,recall@1,opis\n1.0,0.5,0.003\n2.0,0.75,0.002\n", encoding="utf-8")
        np.savez(folder / "embeddings.npz", embeddings=sets[made].vectors, labels=sets[made].labels)
        return folder

    return make
