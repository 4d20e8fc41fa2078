"""torch's `.pt`, of which only plain data is unpickled, and `.safetensors`; both can hold bfloat16."""

from __future__ import annotations

import json
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write
from isomargin.core.labels import is_tensor
from isomargin.core.memory import check_memory
from isomargin.io._common import IDS, UNPACKED, Vectors, as_common, as_tensor, check_keys

_LARGEST_NAMES = 90_000_000  # bytes; the format allows a header of 100 MB


def read_pt(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any, Any]:
    """Read embeddings, labels and, if present, `ids` from a dictionary; labels and ids may be tensors or lists."""
    import torch

    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_memory(sum(stored.file_size for stored in archive.infolist()), str(path), UNPACKED)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is damaged, or has more than tensors, numbers, text, lists and dictionaries, which can run code "
            "when it is read: save a dictionary of tensors, with torch.from_numpy for numpy arrays"
        ) from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path} has a {type(content).__name__}: a dictionary with {embeddings_key!r} and 'labels' is needed"
        )
    check_keys(path, content, embeddings_key, labels_key)
    vectors = content[embeddings_key]
    labels = None if labels_key is None else content[labels_key]
    return vectors.detach() if is_tensor(vectors) else vectors, labels, content.get(IDS)


def write_pt(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None) -> None:
    """Write a dictionary; text becomes lists, which torch reads without unpickling objects."""
    import torch

    columns = {"labels": labels} if ids is None else {"labels": labels, IDS: ids}
    content: dict[str, Any] = {"embeddings": as_tensor(vectors)}
    for name, values in columns.items():
        content[name] = values.tolist() if values.dtype.kind == "U" else as_tensor(values)
    with atomic_write(path) as temporary:
        torch.save(content, temporary)


def read_safetensors(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any, Any]:
    """Read embeddings and labels, and from the metadata the class names and `ids`, if present."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        check_keys(path, file.keys(), embeddings_key, labels_key)
        vectors = _read_tensor(path, file, embeddings_key)
        metadata = file.metadata() or {}
        ids = None
        if IDS in metadata:
            with suppress(ValueError):  # not JSON: this package did not write it
                ids = json.loads(metadata[IDS])
        if labels_key is None:
            return vectors, None, ids
        labels = _read_tensor(path, file, labels_key)
        names = metadata.get(_names_key(labels_key))
        return vectors, labels if names is None else _name_labels(path, labels, names), ids


MAPPED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1", "U8": "<u1"}
"""Types of tensors that numpy can map; bfloat16 is mapped as integers."""


class MappedHalves:
    """A memory-mapped tensor (n, d) of bfloat16, whose rows become float32 when they are read."""

    def __init__(self, halves: npt.NDArray[Any]) -> None:
        self.halves = halves
        self.shape = halves.shape

    def __getitem__(self, rows: slice) -> npt.NDArray[np.float32]:
        return (self.halves[rows].astype(np.uint32) << 16).view(np.float32)


def map_tensor(path: Path, key: str) -> Any:
    """Map a tensor of a safetensors file into memory, without reading it."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:  # checks the header
        check_keys(path, file.keys(), key, None)
    with path.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        header = json.loads(content.read(length))[key]
    kind, start = header["dtype"], 8 + length + header["data_offsets"][0]
    if kind != "BF16" and kind not in MAPPED:
        raise InputError(f"{path} has {key!r} as {kind}: save it as float16, bfloat16 or float32")
    shape = tuple(header["shape"])
    if 0 in shape:
        return np.empty(shape, np.float32)
    mapped = np.memmap(path, MAPPED.get(kind, "<u2"), "r", start, shape)
    return MappedHalves(mapped) if kind == "BF16" else mapped


def read_tensor_labels(path: Path, labels_key: str) -> npt.NDArray[Any]:
    """Read the labels of a safetensors file alone, with their names if the metadata has them."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        check_keys(path, file.keys(), next(iter(file.keys()), ""), labels_key)
        labels = _read_tensor(path, file, labels_key)
        names = (file.metadata() or {}).get(_names_key(labels_key))
    return labels if names is None else _name_labels(path, labels, names)


def _read_tensor(path: Path, file: Any, key: str) -> npt.NDArray[Any]:
    """Read a tensor as a numpy array; bfloat16, which numpy lacks, becomes float32 with the same values."""
    part = file.get_slice(key)
    kind = part.get_dtype()
    if kind == "BF16":
        with path.open("rb") as content:
            header_length = int.from_bytes(content.read(8), "little")
            start, end = json.loads(content.read(header_length))[key]["data_offsets"]
        upper_half = np.fromfile(path, "<u2", (end - start) // 2, offset=8 + header_length + start)
        return (upper_half.astype(np.uint32) << 16).view(np.float32).reshape(part.get_shape())
    if kind.startswith(("F8_", "F6_", "F4")):
        raise InputError(f"{path} has {key!r} as {kind}: save it as float16, bfloat16 or float32")
    array: npt.NDArray[Any] = file.get_tensor(key)
    return array


def _names_key(labels_key: str) -> str:
    return f"{labels_key}.names"


def _name_labels(path: Path, codes: npt.NDArray[Any], text: str) -> npt.NDArray[Any]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path} has class names in its metadata that are not a JSON list of text: write it again")
    if codes.dtype.kind not in "iu" or (codes.size and not 0 <= codes.min() <= codes.max() < len(names)):
        raise InputError(f"{path} has labels that its {len(names)} class names do not cover: write it again")
    named: npt.NDArray[Any] = np.array(names, dtype=object)[
        codes
    ]  # objects keep NUL characters, which as_labels checks
    return named


def write_safetensors(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None) -> None:
    """Write text labels as numbers into the distinct names; names and ids go into the metadata as JSON lists."""
    metadata = {}
    if labels.dtype.kind == "U":
        names, labels = np.unique(labels, return_inverse=True)
        metadata[_names_key("labels")] = json.dumps(names.tolist())
    if ids is not None:
        metadata[IDS] = json.dumps(ids.tolist())
    if sum(map(len, metadata.values())) > _LARGEST_NAMES:
        raise InputError(f"{path} has no room for class names or ids of this length: save as .npz or .parquet")
    with atomic_write(path) as temporary:
        if is_tensor(vectors):
            from safetensors.torch import save_file as save_tensors

            save_tensors(
                {"embeddings": as_tensor(vectors), "labels": as_tensor(labels)}, temporary, metadata=metadata or None
            )
        else:
            from safetensors.numpy import save_file as save_arrays

            arrays = {"embeddings": as_common(np.asarray(vectors)), "labels": as_common(labels)}
            save_arrays(arrays, temporary, metadata=metadata or None)
