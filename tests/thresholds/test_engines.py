"""A card's number, put into search engines as they are, returns exactly the pairs that the evaluation accepted.

Engines compare float32 values, so each set is drawn with no pair within 2e-6 of the threshold, which is asserted.
"""

import json

import numpy as np
import pytest

import isomargin as im
from compare import clusters
from isomargin.thresholds.card import make_card
from isomargin.thresholds.choose import choose_threshold

TARGETS = {
    "far": {"far": 0.02},
    "frr": {"frr": 0.1},
    "utility": {"utility": "best"},
    "cost": {"cost": (1.0, 10.0, 0.01)},
}


@pytest.fixture(scope="module")
def drawn():
    """Rows of all lengths from 0.2 to 5, as a model without normalisation gives them, and the same of length one."""
    rows, labels = clusters(240, 15, dimensions=32, noise=1.0, seed=1)
    lengths = np.exp(np.random.default_rng(2).uniform(np.log(0.2), np.log(5), (len(rows), 1)))
    raw = (lengths * rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    precise = raw.astype(np.float64)
    unit = (precise / np.linalg.norm(precise, axis=1, keepdims=True)).astype(np.float32)
    return raw, unit, labels, im.evaluate(raw, labels)


@pytest.fixture(scope="module", params=TARGETS)
def case(request, drawn, tmp_path_factory):
    """(rows of any length, of length one, the card's JSON, the pairs that it should accept)."""
    raw, unit, labels, evaluation = drawn
    file = tmp_path_factory.mktemp("card") / "card.json"
    make_card(choose_threshold(evaluation, **TARGETS[request.param], draws=100), evaluation).save(file)
    card = json.loads(file.read_text())
    vectors = raw.astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distance = np.linalg.norm(vectors[:, None, :] - vectors[None, :, :], axis=2)
    near = distance <= card["threshold"]["l2"]
    first, second = np.triu_indices(len(raw), 1)
    assert np.abs(np.square(distance[first, second]) - card["threshold"]["squared_l2"]).min() > 2e-6
    expected = set(zip(*(each[near[first, second]].tolist() for each in (first, second)), strict=True))
    point, same = evaluation.at(card["threshold"]["l2"]), labels[first] == labels[second]
    assert point.far * evaluation.negative_pairs == pytest.approx((near[first, second] & ~same).sum(), abs=1e-6)
    assert (1 - point.frr) * evaluation.positive_pairs == pytest.approx((near[first, second] & same).sum(), abs=1e-6)
    assert 100 < len(expected) < len(first) / 2
    return raw, unit, card["threshold"], expected


# Which target the number comes from makes no difference to an engine; faiss, the fastest, is asked for all.
one_target = pytest.mark.parametrize("case", ["far"], indirect=True)


def each_once(found):
    """The pairs (i, j), i < j, that an engine gave, each of which it must have given from both ends."""
    found = set(found)
    assert all((j, i) in found for i, j in found)
    return {(i, j) for i, j in found if i < j}


@pytest.mark.parametrize(("index", "key"), [("IndexFlatL2", "squared_l2"), ("IndexFlatIP", "inner_product")])
@pytest.mark.parametrize("at_once", [1, 240])  # faiss computes few and many queries in different ways
def test_faiss_range_search_returns_the_accepted_pairs(case, index, key, at_once):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    _, unit, threshold, expected = case
    made = getattr(faiss, index)(unit.shape[1])
    made.add(unit)
    found = []
    for first in range(0, len(unit), at_once):
        limits, _, neighbours = made.range_search(unit[first : first + at_once], threshold[key])
        queries = first + np.repeat(np.arange(len(limits) - 1), np.diff(limits).astype(np.int64))
        found += zip(queries.tolist(), neighbours.tolist(), strict=True)
    assert each_once(found) == expected


@one_target
@pytest.mark.parametrize(
    ("metric", "normalised", "key"),
    [
        ("COSINE", False, "cosine_similarity"),
        ("COSINE", True, "cosine_similarity"),
        ("EUCLID", True, "l2"),
        ("DOT", True, "inner_product"),
    ],
)
def test_qdrant_score_threshold_returns_the_accepted_pairs(case, metric, normalised, key):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    raw, unit, threshold, expected = case
    rows = unit if normalised else raw
    client = qdrant.QdrantClient(":memory:")
    kind = qdrant.models.Distance[metric]
    client.create_collection("rows", vectors_config=qdrant.models.VectorParams(size=rows.shape[1], distance=kind))
    client.upload_collection("rows", vectors=rows, ids=range(len(rows)))
    found = []
    for i, row in enumerate(rows):
        answer = client.query_points("rows", query=row.tolist(), limit=len(rows), score_threshold=threshold[key])
        found += [(i, point.id) for point in answer.points]
    client.close()
    assert each_once(found) == expected


@one_target
@pytest.mark.parametrize(
    ("metric", "normalised", "key"),
    [
        ("cosine", False, "cosine_distance"),
        ("cosine", True, "cosine_distance"),
        ("l2", True, "squared_l2"),
        ("dot", True, "cosine_distance"),
    ],
)
def test_lancedb_distance_range_returns_the_accepted_pairs(case, metric, normalised, key, tmp_path):
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    raw, unit, threshold, expected = case
    rows = unit if normalised else raw
    data = [{"id": i, "vector": row.tolist()} for i, row in enumerate(rows)]
    table = lancedb.connect(str(tmp_path)).create_table("rows", data=data)
    found = []
    for i, row in enumerate(rows):
        query = table.search(row).distance_type(metric).distance_range(upper_bound=threshold[key]).limit(len(rows))
        found += [(i, each) for each in query.select(["id", "_distance"]).to_arrow()["id"].to_pylist()]
    assert each_once(found) == expected
