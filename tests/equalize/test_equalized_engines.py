"""An equalizer served as docs/equalize-serving.md shows returns exactly the pairs that its card counts.

The blocks of that page run here as they stand. Engines compute in float32, so the set is drawn with no pair within 2e-6
of the threshold, which is asserted.
"""

import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import isomargin as im

pytestmark = pytest.mark.xdist_group("PostgreSQL")  # so that it starts once

PAGE = Path(__file__).parents[2] / "docs" / "equalize-serving.md"
ENGINES = {  # words of the engine's block on the page, and the packages that it needs
    "faiss": ("import faiss", ("faiss",)),
    "qdrant": ("QdrantClient", ("qdrant_client",)),
    "LanceDB": ("import lancedb", ("lancedb",)),
    "pgvector": ("import psycopg", ("psycopg", "pgserver")),
}
ITEMS, CLASSES, QUERIES = 240, 15, 40
NEIGHBOURS, SKIP, WEIGHT = 100, 30, 0.5  # the defaults of Equalizer


def block(words):
    """The one Python block of the page that has these words in it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (found,) = [each for each in blocks if words in each]
    return found


def drawn_rows(labels, seed):
    """Rows of any length around the centres of their classes; classes are between 0.4 and 1.6 wide."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, 32))
    generator = np.random.default_rng(seed)
    rows = centres[labels] + np.linspace(0.4, 1.6, CLASSES)[labels, None] * generator.normal(size=(len(labels), 32))
    return (rows * generator.uniform(0.2, 5, (len(labels), 1))).astype(np.float32)


def cosines(left, right):
    """(n, m) cosines in float64."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    return (left / np.linalg.norm(left, axis=1)[:, None]) @ (right / np.linalg.norm(right, axis=1)[:, None]).T


def mean_of_neighbours(similarity):
    """(n,) r by definition, from the cosines of each row to its possible neighbours."""
    return -np.sort(-similarity, axis=1)[:, SKIP : SKIP + NEIGHBOURS].mean(axis=1)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A saved equalizer and card, and by brute force the equalized similarities of the items and of new queries."""
    labels = np.arange(ITEMS) % CLASSES
    embeddings, queries = drawn_rows(labels, seed=1), drawn_rows(np.arange(QUERIES) % CLASSES, seed=2)
    names = {"embeddings": embeddings, "labels": labels}
    folder = tmp_path_factory.mktemp("equalizer")
    with contextlib.chdir(folder):
        exec(block("choose_threshold"), names)
    similarity, between = cosines(embeddings, embeddings), cosines(queries, embeddings)
    offsets = mean_of_neighbours(similarity[~np.eye(ITEMS, dtype=bool)].reshape(ITEMS, ITEMS - 1))
    query_offsets, constant = mean_of_neighbours(between), 2 * WEIGHT * offsets.mean()
    return SimpleNamespace(
        names=names,
        folder=folder,
        labels=labels,
        embeddings=embeddings,
        queries=queries,
        threshold=json.loads((folder / "card.json").read_text())["threshold"]["equalized_similarity"],
        items=similarity - WEIGHT * (offsets[:, None] + offsets) + constant,  # (items, items)
        new=between - WEIGHT * (query_offsets[:, None] + offsets) + constant,  # (queries, items)
    )


def serve(served, engine, **names):
    """Run the page's code with an engine's block, and give all names that it defines."""
    with contextlib.chdir(served.folder):
        exec(block("def matches"), names)
        exec(engine, names)
    return names


@pytest.fixture(scope="module", params=ENGINES)
def matches(request, served):
    """The function `matches` of the page, with one engine behind it."""
    words, packages = ENGINES[request.param]
    for package in packages:
        pytest.importorskip(package, reason=f"{package} is not installed")
    if request.param != "pgvector":
        yield serve(served, block(words), im=im)["matches"]
        return
    import psycopg

    address = psycopg.conninfo.make_conninfo(**request.getfixturevalue("postgres_server"))
    names = serve(served, block(words), im=im, address=address)
    with names["connection"]:
        yield names["matches"]


def test_the_card_counts_the_pairs_of_the_definition(served):
    first, second = np.triu_indices(ITEMS, 1)
    values, same = served.items[first, second], served.labels[first] == served.labels[second]
    assert np.abs(values - served.threshold).min() > 2e-6
    near, evaluation, card = values >= served.threshold, served.names["evaluation"], served.names["card"]
    point = evaluation.at(card.threshold["equalized_distance"])
    assert point.far * evaluation.negative_pairs == pytest.approx((near & ~same).sum(), abs=1e-6)
    assert (1 - point.frr) * evaluation.positive_pairs == pytest.approx((near & same).sum(), abs=1e-6)
    assert card.measured["far"]["value"] == pytest.approx(near[~same].mean(), abs=1e-12)
    assert card.measured["frr"]["value"] == pytest.approx(1 - near[same].mean(), abs=1e-12)
    assert near.sum() > 500


def test_items_of_the_index_find_the_pairs_that_the_card_counts(served, matches):
    for i, row in enumerate(served.embeddings):
        expected = set(np.flatnonzero(served.items[i] >= served.threshold).tolist()) - {i}
        assert matches(row, own_id=i) == expected


def test_new_queries_find_the_pairs_of_the_definition(served, matches):
    assert np.abs(served.new - served.threshold).min() > 2e-6
    for row, values in zip(served.queries, served.new, strict=True):
        assert matches(row) == set(np.flatnonzero(values >= served.threshold).tolist())


def test_a_cosine_collection_finds_other_pairs(served):
    pytest.importorskip("qdrant_client", reason="qdrant_client is not installed")
    names = serve(served, block("QdrantClient").replace("Distance.DOT", "Distance.COSINE"), im=im)
    found = {(i, j) for i, row in enumerate(served.queries) for j in names["matches"](row)}
    expected = set(zip(*np.nonzero(served.new >= served.threshold), strict=True))
    assert len(found ^ expected) > len(expected) / 10
