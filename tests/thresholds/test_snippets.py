"""The code of a snippet, run as it stands against the real engine, accepts exactly the pairs that the card accepts.

Engines compute in float32, so the sets are drawn with no pair within 2e-6 of the threshold, which is asserted; what
lies exactly at the threshold is tested with vectors whose products are exact.
"""

import contextlib

import numpy as np
import pytest

import isomargin as im
from compare import clusters

METRICS = ("cosine", "inner_product", "l2")
ROWS = 90


@contextlib.contextmanager
def faiss_index(rows, metric, folder, request):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    index = (faiss.IndexFlatL2 if metric == "l2" else faiss.IndexFlatIP)(rows.shape[1])
    index.add(rows)
    yield {"index": index}


@contextlib.contextmanager
def qdrant_client(rows, metric, folder, request):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    kinds = {"cosine": "COSINE", "inner_product": "DOT", "l2": "EUCLID"}
    client = qdrant.QdrantClient(":memory:")
    kind = qdrant.models.Distance[kinds[metric]]
    client.create_collection("items", vectors_config=qdrant.models.VectorParams(size=rows.shape[1], distance=kind))
    client.upload_collection("items", vectors=rows, ids=range(len(rows)))
    yield {"client": client}
    client.close()


@contextlib.contextmanager
def lancedb_table(rows, metric, folder, request):
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    data = [{"id": i, "vector": row.tolist()} for i, row in enumerate(rows)]
    yield {"table": lancedb.connect(str(folder)).create_table("items", data=data)}


@contextlib.contextmanager
def chroma_collection(rows, metric, folder, request):
    chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")
    space = {"cosine": "cosine", "inner_product": "ip", "l2": "l2"}[metric]
    client = chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("items", configuration={"hnsw": {"space": space}})
    collection.add(ids=[str(i) for i in range(len(rows))], embeddings=rows)
    yield {"collection": collection}


@contextlib.contextmanager
def pgvector_table(rows, metric, folder, request):
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    with psycopg.connect(**request.getfixturevalue("postgres_server")) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(f"CREATE TEMPORARY TABLE items (id integer, embedding vector({rows.shape[1]}))")
        with connection.cursor() as cursor:
            values = [(i, str(row.tolist())) for i, row in enumerate(rows)]
            cursor.executemany("INSERT INTO items VALUES (%s, %s)", values)
        yield {"connection": connection}


@contextlib.contextmanager
def milvus_client(rows, metric, folder, request):
    pymilvus = pytest.importorskip("pymilvus", reason="pymilvus is not installed")
    pytest.importorskip("milvus_lite", reason="milvus-lite is not installed")
    client = pymilvus.MilvusClient(str(folder / "milvus.db"))
    kind = {"cosine": "COSINE", "inner_product": "IP", "l2": "L2"}[metric]
    client.create_collection("items", dimension=rows.shape[1], metric_type=kind)
    client.insert("items", [{"id": i, "vector": row.tolist()} for i, row in enumerate(rows)])
    yield {"client": client}
    client.close()


ENGINES = {
    "faiss": faiss_index,
    "qdrant": qdrant_client,
    "lancedb": lancedb_table,
    "chroma": chroma_collection,
    "pgvector": pgvector_table,
    "milvus": milvus_client,
}
IN_ONE_WORKER = {"pgvector": [pytest.mark.xdist_group("PostgreSQL")]}  # so that it starts once
COMBINATIONS = [
    pytest.param(engine, metric, marks=IN_ONE_WORKER.get(engine, []))
    for engine in ENGINES
    for metric in METRICS
    if (engine, metric) != ("faiss", "cosine")
]


def unit(rows):
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def plain():
    """(rows of any length, card)."""
    rows, labels = clusters(ROWS, 9, dimensions=16, noise=1.0, seed=3)
    lengths = np.exp(np.random.default_rng(4).uniform(-1.5, 1.5, (ROWS, 1)))
    rows = (lengths * rows).astype(np.float32)
    evaluation = im.evaluate(rows, labels)
    return rows, im.make_card(im.choose_threshold(evaluation, far=0.1, draws=100), evaluation)


def accepted_by_definition(rows, card):
    similarity = unit(rows) @ unit(rows).T
    near = np.sqrt(np.maximum(2 - 2 * similarity, 0)) <= card.threshold["l2"]
    gaps = np.abs(similarity - card.threshold["cosine_similarity"])
    assert gaps[~np.eye(len(rows), dtype=bool)].min() > 2e-6
    return near


@pytest.mark.parametrize(("engine", "metric"), COMBINATIONS)
def test_a_snippet_accepts_the_pairs_that_the_card_accepts(plain, engine, metric, tmp_path, request):
    rows, card = plain
    near = accepted_by_definition(rows, card)
    stored = rows if metric == "cosine" else unit(rows).astype(np.float32)
    with ENGINES[engine](stored, metric, tmp_path, request) as names:
        exec(card.snippet(engine, metric=metric), names)
        for i, row in enumerate(rows):
            found = [(int(item), score) for item, score in names["matches"](row)]
            assert {item for item, _ in found} == set(np.flatnonzero(near[i]).tolist())
            order = [item for item, _ in found]
            nearest = np.argsort(-(unit(rows) @ unit(rows)[i]), kind="stable")[: len(order)]
            assert order == nearest.tolist()
    assert near.sum() > 3 * ROWS


@pytest.mark.parametrize(("engine", "metric"), COMBINATIONS)
def test_a_pair_exactly_at_the_threshold_is_accepted_as_on_the_card(engine, metric, tmp_path, request):
    halves = np.array([[1, 0, 0, 0], [0.5, 0.5, 0.5, 0.5], [0.5, 0.5, -0.5, -0.5], [0, 0, 0, 1]], np.float32)
    rows, labels = np.repeat(halves, 3, axis=0), np.repeat([0, 0, 1, 2], 3)
    evaluation = im.evaluate(rows, labels, far=(0.2, 0.5), target_far=0.2)
    card = im.make_card(im.choose_threshold(evaluation, distance=1.0, draws=100), evaluation)
    assert card.threshold["cosine_similarity"] == 0.5
    similarity = halves @ halves.T  # exact: 1, 0.5, 0 and -0.5
    with ENGINES[engine](halves, metric, tmp_path, request) as names:
        exec(card.snippet(engine, metric=metric), names)
        for i, row in enumerate(halves):
            found = {int(item) for item, _ in names["matches"](row)}
            assert found == set(np.flatnonzero(similarity[i] >= 0.5).tolist())
    assert (similarity == 0.5).sum() == 6


NEIGHBOURS, SKIP, WEIGHT = 20, 5, 0.5


@pytest.mark.parametrize("engine", [pytest.param(name, marks=IN_ONE_WORKER.get(name, [])) for name in ENGINES])
def test_the_snippet_of_an_equalized_card_serves_it(plain, engine, tmp_path, request):
    rows, _ = plain
    labels = np.arange(ROWS) % 9
    equalizer = im.Equalizer(neighbours=NEIGHBOURS, skip=SKIP, weight=WEIGHT).fit(rows)
    evaluation = im.evaluate(rows, labels, equalizer=equalizer)
    card = im.make_card(im.choose_threshold(evaluation, far=0.1, draws=100), evaluation)
    equalizer.save(tmp_path / "it's mine.json")
    similarity = unit(rows) @ unit(rows).T
    others = similarity[~np.eye(ROWS, dtype=bool)].reshape(ROWS, ROWS - 1)
    offsets = -np.sort(-others, axis=1)[:, SKIP : SKIP + NEIGHBOURS].mean(axis=1)
    shifted = similarity - WEIGHT * (offsets[:, None] + offsets) + 2 * WEIGHT * offsets.mean()
    threshold = card.threshold["equalized_similarity"]
    assert np.abs(shifted - threshold)[~np.eye(ROWS, dtype=bool)].min() > 2e-6
    with ENGINES[engine](equalizer.transform_reference(), "inner_product", tmp_path, request) as names:
        exec(card.snippet(engine, equalizer=str(tmp_path / "it's mine.json")), names)
        for i, row in enumerate(rows):
            own = str(i) if engine == "chroma" else i
            found = {int(item) for item in names["matches"](row, own_id=own)}
            assert found == set(np.flatnonzero(shifted[i] >= threshold).tolist()) - {i}


def test_the_snippet_of_a_gallery_identifies_as_the_card_counts(plain, tmp_path, request):
    rows, _ = plain
    labels = np.arange(ROWS) % 9
    enrolled, probes = np.arange(ROWS) < 54, np.arange(ROWS) >= 54
    enrolled &= labels < 6  # the others are unknown
    evaluation = im.evaluate_gallery(rows[enrolled], labels[enrolled], rows[probes], labels[probes])
    card = im.make_card(im.choose_threshold(evaluation, fpir=0.2, draws=100), evaluation)
    templates, names_of = im.make_templates(rows[enrolled], labels[enrolled])
    with faiss_index(np.asarray(templates, np.float32), "inner_product", tmp_path, request) as names:
        exec(card.snippet("faiss"), names)
        first = [next((names_of[item] for item, _ in names["matches"](row)), None) for row in rows[probes]]
    known = labels[probes] < 6
    accepted = np.array([name is not None for name in first])
    right = np.array([name == label for name, label in zip(first, labels[probes], strict=True)])
    assert accepted[~known].mean() == pytest.approx(card.gallery["fpir"]["value"])
    assert 1 - right[known].mean() == pytest.approx(card.gallery["fnir"]["value"])
    assert 0 < accepted[~known].sum() < (~known).sum()
    assert "one template per class" in card.snippet("qdrant")


def test_redis_says_that_it_is_untested_and_no_other_does(plain):
    _, card = plain
    for engine in (*ENGINES, "redis"):
        assert ("UNTESTED" in card.snippet(engine)) == (engine == "redis")
        compile(card.snippet(engine), engine, "exec")


def test_cards_that_no_search_can_apply_are_refused_in_one_sentence(plain):
    rows, card = plain
    labels = np.arange(ROWS) % 9
    generator = np.random.default_rng(0)
    scored = im.evaluate_pairs(generator.normal(size=400) + (np.arange(400) % 2), np.arange(400) % 2 == 1)
    trials = im.make_card(im.choose_threshold(scored, far=0.1, draws=100), scored)
    with pytest.raises(im.InputError, match="one of scores that were given, not of vectors"):
        trials.snippet("faiss")
    gallery = im.evaluate_gallery(rows, labels, leave_one_out=True, margin=0.01)
    with_margin = im.make_card(im.choose_threshold(gallery, far=0.1, draws=100), gallery)
    with pytest.raises(im.InputError, match="margin between the first and the second class"):
        with_margin.snippet("faiss")
    equalizer = im.Equalizer(neighbours=5, skip=2).fit(rows)
    equalized = im.evaluate_gallery(rows, labels, leave_one_out=True, equalizer=equalizer, sides="template")
    with pytest.raises(im.InputError, match="similarities of a gallery that are equalized"):
        im.make_card(im.choose_threshold(equalized, far=0.1, draws=100), equalized).snippet("faiss")
    cohort = im.Equalizer(neighbours=5, skip=0, method="cohort").fit(generator.normal(size=(40, rows.shape[1])))
    apart = im.evaluate(rows, labels, equalizer=cohort)
    with pytest.raises(im.InputError, match="similarities of a cohort that are equalized"):
        im.make_card(im.choose_threshold(apart, far=0.1, draws=100), apart).snippet("faiss")
    for wrong, said in (
        ({"engine": "fais"}, "did you mean 'faiss'"),
        ({"engine": "faiss", "metric": "cosine"}, "faiss has no metric 'cosine': take one of inner_product, l2"),
        ({"engine": "qdrant", "metric": "dot"}, "metric is 'dot': one of"),
        ({"engine": "pgvector", "name": "items; DROP TABLE items"}, "the name of a collection or table is needed"),
        ({"engine": "qdrant", "equalizer": "e.json"}, "plain similarities: leave the equalizer out"),
    ):
        with pytest.raises(im.InputError, match=said):
            card.snippet(**wrong)


def test_the_command_prints_the_snippet(plain, run, tmp_path):
    _, card = plain
    card.save(tmp_path / "card.json")
    code, output, _ = run("snippet", tmp_path / "card.json", "lancedb", "--metric", "l2", "--name", "shop")
    assert code == 0
    assert output == card.snippet("lancedb", metric="l2", name="shop")
    code, output, error = run("snippet", tmp_path / "card.json", "oracle")
    assert (code, output) == (2, "")
    assert "known are faiss, qdrant, lancedb" in error
