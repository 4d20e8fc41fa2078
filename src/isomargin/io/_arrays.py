"""numpy's formats: `.npz` with embeddings and labels, `.npy` with embeddings only. Nothing is unpickled."""

from __future__ import annotations

import math
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, atomic_writes
from isomargin.core.memory import check_memory
from isomargin.io._common import IDS, UNPACKED, Vectors, as_numpy, check_keys, check_shapes

_MAGIC = b"\x93NUMPY"


def _check_magic(path: Path, magic: bytes, writer: str) -> None:
    with path.open("rb") as file:
        start = file.read(len(magic))
    if start[:1] == b"\x80":
        raise InputError(f"{path} is a pickle, which can run code when it is read: write it with {writer}")
    if start != magic:
        raise InputError(f"{path} is not a {path.suffix} file, or is damaged: write it with {writer}")


def _objects_refused(path: Path, name: str) -> InputError:
    plain = "labels.astype(str)" if name == "labels" else "numpy.stack(embeddings).astype(numpy.float32)"
    return InputError(f"{path} has {name} as Python objects, which can run code when they are read: save {plain}")


def read_npz(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any, Any]:
    """Read embeddings, labels and, if present, `ids` from an archive. Headers are checked before it is unpacked."""
    _check_magic(path, b"PK", "numpy.savez")
    with np.load(path, allow_pickle=False) as archive:
        check_keys(path, archive.files, embeddings_key, labels_key)
        wanted = {"embeddings": embeddings_key} | ({} if labels_key is None else {"labels": labels_key})
        headers = [_read_header(path, archive.zip, name, key) for name, key in wanted.items()]
        try:
            check_shapes(*headers)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
        has_ids = False
        if IDS in archive.files:
            with suppress(InputError):  # Python objects, or not an array: this package did not write it
                ids_header = _read_header(path, archive.zip, IDS, IDS)
                has_ids = ids_header.shape == headers[0].shape[:1]
                headers += [ids_header] if has_ids else []
        check_memory(sum(header.nbytes for header in headers), str(path), UNPACKED)
        labels = None if labels_key is None else archive[labels_key]
        return archive[embeddings_key], labels, archive[IDS] if has_ids else None


def _read_header(path: Path, archive: zipfile.ZipFile, name: str, key: str) -> npt.NDArray[Any]:
    """Return an array with the shape and type that a member has according to its header, without its values."""
    stored = archive.getinfo(key if key in archive.namelist() else f"{key}.npy")
    with archive.open(stored) as member:
        if member.read(len(_MAGIC)) != _MAGIC:
            raise InputError(f"{path} has {key!r}, but it is not an array: write it with numpy.savez")
        major, _ = member.read(2)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        size = stored.file_size - member.tell()
    if dtype.hasobject:
        raise _objects_refused(path, name)
    if size != math.prod(shape) * dtype.itemsize:
        raise InputError(
            f"{path} has {key!r} of shape {shape} and dtype {dtype} in {size:,} bytes: it is damaged, write it again"
        )
    return np.broadcast_to(np.zeros((), dtype), shape)


def write_npz(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None) -> None:
    """Write the arrays `embeddings`, `labels` and, if given, `ids`, without compression."""
    more: dict[str, Any] = {} if ids is None else {IDS: ids}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez(file, embeddings=as_numpy(vectors), labels=labels, **more)


def read_npy_array(path: Path, name: str = "labels", mmap_mode: str | None = None) -> npt.NDArray[Any]:
    """Read one array; `name` is what errors call it."""
    _check_magic(path, _MAGIC, "numpy.save")
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)  # type: ignore[arg-type]
    except ValueError as error:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise _objects_refused(path, name) from error
        raise
    return array


def read_npy(path: Path, embeddings_key: str, labels_key: str | None) -> tuple[Any, Any, Any]:
    """Memory-map an array of embeddings; the file has neither labels nor ids."""
    return read_npy_array(path, "embeddings", mmap_mode="r"), None, None


def write_npy(path: Path, vectors: Vectors, labels: npt.NDArray[Any], ids: npt.NDArray[Any] | None) -> None:
    """Write `X.npy` and `X.labels.npy`; ids are not saved."""
    beside = path.with_name(f"{path.stem}.labels.npy")
    with atomic_writes(path, beside) as (temporary, temporary_labels):
        np.save(temporary_labels, labels, allow_pickle=False)
        np.save(temporary, as_numpy(vectors), allow_pickle=False)
