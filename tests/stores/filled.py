"""Real stores, filled with the same items, for the tests that read them."""

import sqlite3

import numpy as np
import pytest

ROWS, WIDTH = 230, 8


def drawn():
    """(vectors (n, d) of float32, labels (n,) of text, ids (n,) of integers in ascending order)."""
    generator = np.random.default_rng(5)
    labels = np.array([f"sku-{number}" for number in np.arange(ROWS) % 11])
    centres = generator.normal(size=(11, WIDTH))
    vectors = centres[np.arange(ROWS) % 11] + generator.normal(size=(ROWS, WIDTH))
    return vectors.astype(np.float32), labels, 7 + 3 * np.arange(ROWS)


def fill_qdrant(client, vectors, labels, ids, name="items"):
    models = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed").models
    width = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
    client.create_collection(name, vectors_config=width)
    payloads = [{"sku": str(label), "made": {"by": str(label)[-1]}} for label in labels]
    client.upload_collection(name, vectors=vectors, payload=payloads, ids=ids.tolist())


def fill_lancedb(folder, vectors, labels, ids, name="items"):
    lancedb = pytest.importorskip("lancedb", reason="lancedb is not installed")
    rows = [
        {"id": int(i), "sku": str(label), "vector": row.tolist()}
        for i, label, row in zip(ids, labels, vectors, strict=True)
    ]
    return lancedb.connect(str(folder)).create_table(name, data=rows)


def fill_chroma(folder, vectors, labels, ids, name="items"):
    chromadb = pytest.importorskip("chromadb", reason="chromadb is not installed")
    client = chromadb.PersistentClient(str(folder), settings=chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection(name)
    metadatas = [{"sku": str(label)} for label in labels]
    collection.add(ids=[str(i) for i in ids], embeddings=vectors, metadatas=metadatas)
    return collection


def fill_duckdb(file, vectors, labels, ids):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    connection = duckdb.connect(str(file))
    connection.execute(f"CREATE TABLE items (id INTEGER, sku TEXT, embedding FLOAT[{vectors.shape[1]}])")
    rows = [(int(i), str(label), row.tolist()) for i, label, row in zip(ids, labels, vectors, strict=True)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    return connection


def fill_sqlite(file, vectors, labels, ids):
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE items (id INTEGER, sku TEXT, embedding BLOB)")
    rows = [(int(i), str(label), row.tobytes()) for i, label, row in zip(ids, labels, vectors, strict=True)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
    connection.commit()
    return connection


def fill_postgres(connection, vectors, labels, ids, name="items"):
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    connection.execute(
        f"CREATE TABLE {name} (id integer, sku text, embedding vector({vectors.shape[1]}), plain real[])"
    )
    rows = [
        (int(i), str(label), str(row.tolist()), row.tolist())
        for i, label, row in zip(ids, labels, vectors, strict=True)
    ]
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {name} VALUES (%s, %s, %s, %s)", rows)
    connection.commit()
