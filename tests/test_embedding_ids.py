"""Names of the rows of an `EmbeddingSet`: kept through every format that has a place for them."""

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.numpy import save_file

from isomargin.core.errors import InputError
from isomargin.io.embedding_set import EmbeddingSet

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = [3, 3, 1, 1]
IDS = {"text": ["b/2.jpg", "a/é.jpg", "a/1.jpg", ""], "integers": [40, 10, 30, 20]}


@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".pt", ".safetensors"])
def test_ids_are_kept(tmp_path, suffix, kind):
    EmbeddingSet(VECTORS, LABELS, IDS[kind]).save(tmp_path / f"set{suffix}")
    read = EmbeddingSet.load(tmp_path / f"set{suffix}")
    assert read.ids.tolist() == IDS[kind]
    assert read.labels.tolist() == LABELS


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".parquet", ".pt", ".safetensors"])
def test_a_set_without_ids_has_none(tmp_path, suffix):
    EmbeddingSet(VECTORS, LABELS).save(tmp_path / f"set{suffix}")
    assert EmbeddingSet.load(tmp_path / f"set{suffix}").ids is None


@pytest.mark.parametrize("ids", [["a", "b"], [0.5, 1, 2, 3], [[1], [2], [3], [4]], ["a", 1, 2, 3]])
def test_ids_that_do_not_fit_are_refused(ids):
    with pytest.raises(InputError, match="ids"):
        EmbeddingSet(VECTORS, LABELS, ids)


def test_something_else_of_that_name_in_a_file_is_left_out(tmp_path):
    plain = {"embeddings": VECTORS, "labels": np.array(LABELS)}
    np.savez(tmp_path / "a.npz", **plain, ids=np.zeros((4, 2)))
    np.savez(tmp_path / "b.npz", **plain, ids=np.array([{}, {}, {}, {}]))
    torch.save({**{name: torch.from_numpy(values) for name, values in plain.items()}, "ids": {}}, tmp_path / "a.pt")
    save_file(plain, tmp_path / "a.safetensors", metadata={"ids": "{"})
    table = {"embeddings": VECTORS.tolist(), "labels": LABELS, "ids": ["a", None, "b", "c"]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    for path in tmp_path.iterdir():
        assert EmbeddingSet.load(path).ids is None, path.name
