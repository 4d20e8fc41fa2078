"""The readers on docs/stores.md run as they stand, and the snippet on it is what the package writes."""

import re
from pathlib import Path

import numpy as np
import pytest

import isomargin as im
from stores import filled

PAGE = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "im.EmbeddingSet" in block]
PACKAGES = [re.match(r"(?:import|from) (\w+)", block)[1] for block in BLOCKS]


def fill_faiss(items):
    import faiss

    index = faiss.IndexFlatIP(filled.WIDTH)
    index.add(items[0])
    faiss.write_index(index, "items.faiss")


def fill_dataset(items):
    from datasets import Dataset

    Dataset.from_dict({"embedding": items[0].tolist(), "sku": items[1].tolist()}).save_to_disk("dataset")


def fill_polars(items):
    import polars

    polars.DataFrame({"embedding": items[0].tolist(), "sku": items[1].tolist()}).write_parquet("items.parquet")


def fill_qdrant(items):
    from qdrant_client import QdrantClient

    client = QdrantClient(path="qdrant")
    filled.fill_qdrant(client, *items)
    client.close()


def fill_chroma(items):
    from chromadb.api.shared_system_client import SharedSystemClient

    filled.fill_chroma("chroma", *items)
    SharedSystemClient.clear_system_cache()  # Chroma refuses a second client of a folder with other settings


FILL = {
    "qdrant_client": fill_qdrant,
    "lancedb": lambda items: filled.fill_lancedb("lancedb", *items),
    "chromadb": fill_chroma,
    "duckdb": lambda items: filled.fill_duckdb("items.db", *items).close(),
    "faiss": fill_faiss,
    "datasets": fill_dataset,
    "polars": fill_polars,
}


def fill_postgres(items, server, monkeypatch):
    import psycopg

    with psycopg.connect(**server) as connection:
        filled.fill_postgres(connection, *items, name="page_items")
    for name, value in server.items():
        monkeypatch.setenv({"dbname": "PGDATABASE"}.get(name, f"PG{name.upper()}"), value)


def cases():
    for package, block in zip(PACKAGES, BLOCKS, strict=True):
        marks = [pytest.mark.xdist_group("PostgreSQL")] if package == "psycopg" else []
        yield pytest.param(package, block, id=package, marks=marks)


@pytest.mark.parametrize(("package", "block"), list(cases()))
def test_the_readers_of_the_page_run(package, block, tmp_path, monkeypatch, request):
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    items = filled.drawn()
    if package == "psycopg":
        fill_postgres(items, request.getfixturevalue("postgres_server"), monkeypatch)
    else:
        FILL[package](items)
    names = {"im": im, "labels": items[1]}
    exec(block, names)
    np.testing.assert_array_equal(names["items"].vectors, items[0])
    assert names["items"].labels.tolist() == items[1].tolist()


def test_the_page_has_every_reader_and_the_snippet_as_it_is_written():
    assert {"psycopg", *FILL} == set(PACKAGES)
    rows, labels, _ = filled.drawn()
    evaluation = im.evaluate(rows, labels)
    written = im.make_card(im.choose_threshold(evaluation, far=0.05, draws=100), evaluation).snippet(
        "qdrant", name="requests"
    )
    (shown,) = re.findall(r"```python\n(# Threshold.*?)```", PAGE, flags=re.DOTALL)

    def without_numbers(text):
        return re.sub(r"\d+\.\d+|card \w+, [\d-]+", "N", text)

    assert without_numbers(shown) == without_numbers(written)
