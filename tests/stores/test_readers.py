"""Every reader gives what was put into the real store: vectors to the last bit, labels and ids in the store's order."""

import numpy as np
import pytest

import isomargin as im
from isomargin import EmbeddingSet
from stores import filled

PAGE = 50  # several pages, the last of which is not full


@pytest.fixture(scope="module")
def items():
    return filled.drawn()


@pytest.fixture(scope="module")
def postgres(items, postgres_server):
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    with psycopg.connect(**postgres_server) as connection:
        filled.fill_postgres(connection, *items, name="read_items")
        yield connection


def check(found, items, ids=True):
    vectors, labels, names = items
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, vectors)
    assert found.labels.tolist() == labels.tolist()
    if ids:
        assert [int(name) for name in found.ids] == names.tolist()
    else:
        assert found.ids is None


def test_a_collection_of_qdrant(items):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    client = qdrant.QdrantClient(":memory:")
    filled.fill_qdrant(client, *items)
    check(EmbeddingSet.from_qdrant(client, "items", label="sku", page=PAGE), items)
    nested = EmbeddingSet.from_qdrant(client, "items", label="made.by", page=PAGE)
    assert nested.labels.tolist() == [label[-1] for label in items[1].tolist()]
    with pytest.raises(im.InputError, match="has no 'brand' for item 7, which has 'made', 'sku': name what holds"):
        EmbeddingSet.from_qdrant(client, "items", label="brand")
    client.set_payload("items", {"sku": None}, points=[10])
    with pytest.raises(im.InputError, match="has no 'sku' for item 10, which has 'made': name what holds"):
        EmbeddingSet.from_qdrant(client, "items", label="sku")
    with pytest.raises(im.InputError, match="has no collection 'item': it has 'items'"):
        EmbeddingSet.from_qdrant(client, "item", label="sku")


def test_named_vectors_of_qdrant_and_ids_of_both_kinds(items):
    qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    client, models = qdrant.QdrantClient(":memory:"), qdrant.models
    width = models.VectorParams(size=2, distance=models.Distance.EUCLID)
    client.create_collection("items", vectors_config={"image": width, "text": width})
    name = "11111111-2222-3333-4444-555555555555"
    points = [
        models.PointStruct(id=i, vector={"image": [1.0, i], "text": [2.0, i]}, payload={"sku": i}) for i in (1, 2)
    ]
    named = models.PointStruct(id=name, vector={"image": [1.0, 3.0], "text": [2.0, 3.0]}, payload={"sku": 3})
    client.upsert("items", [*points, named])
    found = EmbeddingSet.from_qdrant(client, "items", label="sku", vector="text")
    rows = {str(i): row.tolist() for i, row in zip(found.ids, found.vectors, strict=True)}
    assert rows == {"1": [2.0, 1.0], "2": [2.0, 2.0], name: [2.0, 3.0]}
    with pytest.raises(im.InputError, match="has named vectors, 'image', 'text': name one with vector="):
        EmbeddingSet.from_qdrant(client, "items", label="sku")


def test_a_table_of_lancedb(items, tmp_path):
    table = filled.fill_lancedb(tmp_path, *items)
    check(EmbeddingSet.from_lancedb(table, label="sku", id="id", page=PAGE), items)
    check(EmbeddingSet.from_lancedb(table, label="sku"), items, ids=False)
    with pytest.raises(im.InputError, match=r"no column 'brand': it has 'id', 'sku', 'vector'; name .* with label="):
        EmbeddingSet.from_lancedb(table, label="brand")


def test_a_collection_of_chroma(items, tmp_path):
    collection = filled.fill_chroma(tmp_path, *items)
    check(EmbeddingSet.from_chroma(collection, label="sku", page=PAGE), items)
    with pytest.raises(im.InputError, match="has no 'brand' for item '7', which has 'sku'"):
        EmbeddingSet.from_chroma(collection, label="brand")


def test_a_query_of_duckdb(items, tmp_path):
    connection = filled.fill_duckdb(tmp_path / "items.db", *items)
    query = "SELECT * FROM items ORDER BY id"
    check(EmbeddingSet.from_sql(connection, query, label="sku", id="id", page=PAGE), items)
    doubles = EmbeddingSet.from_sql(
        connection, "SELECT sku, embedding::DOUBLE[] AS v FROM items", label="sku", vector="v"
    )
    assert doubles.vectors.dtype == np.float64
    with pytest.raises(im.InputError, match=r"no column 'label': it has 'id', 'sku', 'embedding'; .* label="):
        EmbeddingSet.from_sql(connection, query)
    connection.execute("CREATE TEMPORARY TABLE more AS FROM items")  # which only this connection sees
    temporary = EmbeddingSet.from_sql(connection, "SELECT * FROM more", label="sku", page=PAGE)
    assert len(temporary.labels) == filled.ROWS
    with pytest.raises(im.InputError, match="result of the query has no rows"):
        EmbeddingSet.from_sql(connection, "SELECT * FROM items WHERE id < 0", label="sku")


@pytest.mark.parametrize("stored", ["bytes", "text"])
def test_a_query_of_sqlite(items, tmp_path, stored):
    connection = filled.fill_sqlite(tmp_path / "items.db", *items)
    if stored == "text":
        texts = [(str(row.tolist()), int(i)) for row, i in zip(items[0], items[2], strict=True)]
        connection.executemany("UPDATE items SET embedding = ? WHERE id = ?", texts)
    query = "SELECT id, sku, embedding FROM items ORDER BY id"
    check(EmbeddingSet.from_sql(connection, query, label="sku", id="id", page=PAGE), items)
    connection.execute("INSERT INTO items VALUES (0, 'x', 'no vector')")
    with pytest.raises(im.InputError, match=r"has 'no vector' as the embedding of row 0 \(from 0\): a list of numbers"):
        EmbeddingSet.from_sql(connection, query, label="sku")


@pytest.mark.xdist_group("PostgreSQL")
@pytest.mark.parametrize("column", ["embedding", "plain"])
def test_a_query_of_postgresql_with_pgvector(items, postgres, column):
    query = f"SELECT id, sku, {column} AS v FROM read_items ORDER BY id"
    check(EmbeddingSet.from_sql(postgres, query, label="sku", vector="v", id="id", page=PAGE), items)


@pytest.mark.xdist_group("PostgreSQL")
def test_postgresql_is_read_by_a_cursor_on_the_server(items, postgres):
    endless = "SELECT i AS label, ARRAY[i, 1] AS embedding FROM (SELECT generate_series(1, 1000000000) AS i) AS rows"
    # All rows at once would take hours; the reader must come to the first bad row after a few pages.
    bad = f"SELECT label, CASE WHEN label = 300 THEN NULL ELSE embedding END AS embedding FROM ({endless}) AS rows"
    with pytest.raises(im.InputError, match=r"has no embedding in row 299 \(from 0\)"):
        EmbeddingSet.from_sql(postgres, bad, page=PAGE)
    assert postgres.execute("SELECT count(*) FROM read_items").fetchone() == (filled.ROWS,)  # still usable


@pytest.mark.parametrize("kind", ["Flat", "IDMap,Flat", "IVF4,Flat"])
def test_an_index_of_faiss(items, kind):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    vectors, labels, ids = items
    index = faiss.index_factory(filled.WIDTH, kind)
    index.train(vectors)
    if kind == "IDMap,Flat":
        index.add_with_ids(vectors, ids)
    else:
        index.add(vectors)
    check(EmbeddingSet.from_faiss(index, labels, page=PAGE), items, ids=kind == "IDMap,Flat")
    with pytest.raises(im.InputError, match="labels has 229 entries, embeddings has 230 rows"):
        EmbeddingSet.from_faiss(index, labels[1:])
    if kind != "IDMap,Flat":
        assert index.remove_ids(np.array([0])) == 1  # reading leaves the index as it was


def test_an_index_of_faiss_where_its_functions_return_tensors(items):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    __import__("faiss.contrib.torch_utils")  # as pytorch-metric-learning does
    index = faiss.IndexFlatL2(filled.WIDTH)
    index.add(items[0])
    check(EmbeddingSet.from_faiss(index, items[1], page=PAGE), items, ids=False)


def test_an_index_with_a_map_of_its_own_ids_is_refused_and_keeps_it(items):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    index = faiss.index_factory(filled.WIDTH, "IVF4,Flat")
    index.train(items[0])
    index.set_direct_map_type(faiss.DirectMap.Hashtable)
    index.add_with_ids(items[0], items[2])
    with pytest.raises(im.InputError, match="does not give its vectors back in the order of addition"):
        EmbeddingSet.from_faiss(index, items[1])
    np.testing.assert_array_equal(index.reconstruct(int(items[2][3])), items[0][3])


def test_an_index_that_does_not_give_its_vectors_back_is_refused(items):
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    flat = faiss.IndexFlatL2(filled.WIDTH)
    flat.add(items[0])
    index = faiss.IndexShards(filled.WIDTH)
    index.add_shard(flat)
    with pytest.raises(im.InputError, match="IndexShards, which does not give its vectors back"):
        EmbeddingSet.from_faiss(index, items[1])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_dataset_of_hugging_face(items, streamed):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    vectors, labels, ids = items
    names = sorted(set(labels.tolist()))
    features = datasets.Features(
        {
            "embedding": datasets.Sequence(datasets.Value("float32")),
            "sku": datasets.ClassLabel(names=names),
            "id": datasets.Value("int64"),
            "text": datasets.Value("string"),
        }
    )
    columns = {"embedding": vectors.tolist(), "sku": labels.tolist(), "id": ids.tolist(), "text": ["x"] * len(ids)}
    dataset = datasets.Dataset.from_dict(columns, features=features)
    dataset = dataset.to_iterable_dataset() if streamed else dataset
    check(EmbeddingSet.from_dataset(dataset, label="sku", id="id", page=PAGE), items)
    with pytest.raises(im.InputError, match=r"has the splits 'train': give one of them, such as dataset\['train'\]"):
        EmbeddingSet.from_dataset({"train": dataset}, label="sku")


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_frame(items, package):
    frames = pytest.importorskip(package, reason=f"{package} is not installed")
    vectors, labels, ids = items
    frame = frames.DataFrame({"embedding": list(vectors), "label": labels.tolist(), "id": ids.tolist()})
    check(EmbeddingSet.from_frame(frame, id="id"), items)
    wide = frames.DataFrame({"label": labels.tolist(), **{f"d{i}": vectors[:, i] for i in range(filled.WIDTH)}})
    check(EmbeddingSet.from_frame(wide, vector=[f"d{i}" for i in range(filled.WIDTH)]), items, ids=False)
    missing = frames.DataFrame({"embedding": list(vectors[:2]), "label": ["a", None]})
    with pytest.raises(im.InputError, match=r"labels\[1\] is"):
        EmbeddingSet.from_frame(missing)
    ragged = frames.DataFrame({"embedding": [[1.0, 2.0], [1.0]], "label": ["a", "b"]})
    with pytest.raises(im.InputError, match=r"an embedding of 1 numbers in row 1 \(from 0\) and 2 in row 0"):
        EmbeddingSet.from_frame(ragged)
    with pytest.raises(im.InputError, match="no column 'labels'"):
        EmbeddingSet.from_frame(frame, label="labels")


def test_a_frame_with_numbers_as_names_of_columns(items):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(items[0]).assign(label=items[1])
    check(EmbeddingSet.from_frame(frame, vector=range(filled.WIDTH)), items, ids=False)
    with pytest.raises(im.InputError, match="no column '0': it has 0, 1, "):
        EmbeddingSet.from_frame(frame, vector=["0"])


def test_what_is_not_a_store_is_refused():
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    with pytest.raises(im.InputError, match="IndexBinaryFlat, of bits"):
        EmbeddingSet.from_faiss(faiss.IndexBinaryFlat(8), [])
    for read in (EmbeddingSet.from_lancedb, EmbeddingSet.from_chroma):
        with pytest.raises(im.InputError, match=r"is of type list: a .* is needed"):
            read([], label="sku")
    for read in (EmbeddingSet.from_frame, EmbeddingSet.from_dataset):
        with pytest.raises(im.InputError, match=r"is of type list: a .* is needed"):
            read([])
    with pytest.raises(im.InputError, match="page is 0: a whole number"):
        EmbeddingSet.from_sql(__import__("sqlite3").connect(":memory:"), "SELECT 1", page=0)
