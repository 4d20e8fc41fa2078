"""Prepare embeddings for counting in parts: unit vectors sorted by class, in a folder, memory-mapped.

The rows of all shards are sorted by class through files on disk, so that the set may be larger than memory. What comes
out is bit for bit what ``inputs.sort_by_class`` makes of the same rows in memory.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import hidden_beside, reading
from isomargin.core.json_values import digest
from isomargin.core.memory import forget_pages, map_new_array, read_size
from isomargin.io.shards import Shard, Shards, open_shards
from isomargin.measure.pairs.axis import L2
from isomargin.measure.pairs.inputs import (
    ClassSortedVectors,
    LengthCounts,
    Shifts,
    check_classes,
    note_on_singles,
    unit_rows,
)

FORMAT = "isomargin prepared embeddings"
VERSION = 1
DESCRIPTION, VECTORS, CLASSES = "prepared.json", "vectors.npy", "classes.npz"
MEMORY = "4GB"
BYTES_PER_ROW = 40  # of labels, their order and its inverse, while rows are sorted
WORKING = 256 << 20  # bytes for the program itself and for one block of rows in float64
LEAST_BUCKET = 16 << 20
BLOCK_VALUES = 1 << 21  # values of a shard that are read at a time


@dataclass(frozen=True)
class Prepared:
    """A folder of unit vectors sorted by class."""

    folder: Path
    """The folder."""
    vectors: NDArray[np.float32]
    """(n, d) memory-mapped unit vectors."""
    sizes: NDArray[np.int64]
    """(classes,) number of items in each class."""
    names: NDArray[Any]
    """(classes,) the distinct labels, sorted."""
    notes: tuple[str, ...]
    """What the user should know about this input."""
    reach: float
    """An upper bound on all distances."""
    digest: str
    """SHA-256 of vectors, sizes and names."""
    sources: str
    """SHA-256 of names, sizes and times of the files that were read; empty if the embeddings were in memory."""

    def __repr__(self) -> str:
        n, width = self.vectors.shape
        return f"<Prepared: {n:,} items of {width} dimensions, {len(self.sizes):,} classes>"

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        """Send the folder to another process, not the vectors: it opens the folder itself."""
        return Prepared.open, (self.folder.resolve(),)

    @property
    def mapped(self) -> dict[str, str]:
        """The file of each field that maps one."""
        return {"vectors": VECTORS}

    def data(self, shifts: Shifts | None = None) -> ClassSortedVectors:
        """Return all rows, as the pass over pairs takes them; the vectors stay on disk."""
        class_of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        values, axis = (None, L2) if shifts is None else (shifts.values, shifts.axis)
        data = ClassSortedVectors(self.vectors, class_of, self.sizes, self.names, self.notes, values, axis)
        vars(data)["reach"] = self.reach  # known already: to compute it would read all vectors
        return data

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Prepared":
        """Open a folder that `prepare` wrote."""
        path = Path(folder)
        if not is_prepared(path):
            raise InputError(f"{path} is not a folder of prepared embeddings: write one with isomargin prepare")
        with reading(path / DESCRIPTION):
            found = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
            if found.get("format") != FORMAT or found.get("version") != VERSION:
                raise InputError(f"{path} was prepared by another version of isomargin: prepare it again")
            shape, notes, reach = (found["rows"], found["width"]), tuple(found["notes"]), float(found["reach"])
            digests = found["digest"], found["sources"]
        with reading(path / CLASSES), np.load(path / CLASSES, allow_pickle=False) as arrays:
            names, sizes = arrays["names"], arrays["sizes"]
        with reading(path / VECTORS):
            vectors = np.load(path / VECTORS, mmap_mode="r", allow_pickle=False)
        if vectors.shape != shape or sizes.sum() != len(vectors) or len(names) != len(sizes):
            raise InputError(f"the files in {path} do not fit together: prepare it again")
        return cls(path, vectors, sizes, names, notes, reach, *digests)


def is_prepared(folder: Path) -> bool:
    """Whether a folder has been prepared."""
    with reading(folder):
        return (folder / DESCRIPTION).is_file()


def prepare(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    memory: str | int = MEMORY,
    embeddings_key: str = "embeddings",
    labels_key: str = "labels",
) -> Prepared:
    """Sort embeddings by class into a new folder, as unit vectors that parts of an evaluation read.

    Needs as much disk space as the vectors take in float32, twice that if they are larger than a third of ``memory``.

    Args:
        source: a folder or pattern of `.parquet`, `.npy` or `.safetensors` files, one such file, or a list of them.
            The labels of `X.npy` are in `X.labels.npy` or `X.labels.txt`.
        folder: the folder to create.
        memory: memory to use, such as ``"4GB"``.
        embeddings_key: name of the column or tensor that holds the embeddings.
        labels_key: name of the column or tensor that holds the labels.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     for shard in range(2):
    ...         np.save(f"{name}/{shard}.npy", np.eye(4))
    ...         np.save(f"{name}/{shard}.labels.npy", np.array(["owl", "wren", "owl", "tit"]))
    ...     prepare(f"{name}/*.npy", f"{name}/prepared").sizes
    array([4, 2, 2])
    """
    shards, target = open_shards(source, embeddings_key, labels_key), Path(folder)
    check_new(target)
    bucket_bytes = room_for_buckets(shards.rows, read_size(memory))
    with created(target) as temporary:
        write_prepared(shards, temporary, bucket_bytes)
    return Prepared.open(target)


def check_new(folder: Path) -> None:
    """Refuse a folder to create that exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} already exists: remove it, or choose another folder")


@contextmanager
def created(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the folder when the block ends without an error."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = hidden_beside(folder)
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            folder.rmdir()
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def room_for_buckets(rows: int, budget: int) -> int:
    """Return the bytes of vectors to hold, about twice, while so many rows are sorted; too little memory is refused."""
    needed = WORKING + BYTES_PER_ROW * rows + 2 * LEAST_BUCKET
    if needed > budget:
        raise InputError(f"memory is {budget / 1e9:.3g} GB: sorting {rows:,} rows needs at least {needed / 1e9:.3g} GB")
    return (budget - WORKING - BYTES_PER_ROW * rows) // 2


def write_prepared(shards: Shards, folder: Path, bucket_bytes: int) -> None:
    """Sort the rows of all shards by class into a folder, holding ``bucket_bytes`` of vectors about twice."""
    names, codes = shards.read_labels()
    sizes = np.bincount(codes, minlength=len(names)).astype(np.int64)
    check_classes(names, sizes)
    place = places_by_class(codes)
    del codes
    lengths = LengthCounts()
    vectors = sort_rows(shards, place, folder, bucket_bytes, lengths)
    notes = (*note_on_singles(sizes), *lengths.note())
    describe(ClassSortedVectors(vectors, np.empty(0, np.int64), sizes, names, notes), shards.fingerprint(), folder)


def prepare_sorted(data: ClassSortedVectors, folder: Path) -> Prepared:
    """Write float32 vectors that are sorted by class already into an existing, empty folder."""
    np.save(folder / VECTORS, data.vectors)
    describe(data, "", folder)
    return Prepared.open(folder)


def describe(data: ClassSortedVectors, sources: str, folder: Path) -> None:
    """Write the classes, and what is known of the vectors in the folder: whoever finds it takes both to be there."""
    np.savez(folder / CLASSES, names=data.names, sizes=data.sizes)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "rows": len(data.vectors),
        "width": data.vectors.shape[1],
        "classes": len(data.names),
        "reach": data.reach,
        "notes": list(data.notes),
        "digest": data_digest(data.vectors, data.sizes, data.names),
        "sources": sources,
    }
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")


def places_by_class(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) where each row goes if rows are sorted by class, and those of a class stay in order.

    >>> places_by_class(np.array([1, 0, 1, 0]))
    array([2, 0, 3, 1])
    """
    order = np.argsort(codes, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return place


def sort_rows(
    shards: Shards, place: NDArray[np.int64], folder: Path, bucket_bytes: int, lengths: LengthCounts
) -> NDArray[np.float32]:
    """Write the unit vectors of all shards to their places in one memory-mapped file.

    Rows first go to files of neighbouring places (buckets), in the order in which they come; then each bucket is put
    in order in memory. Both steps read and write from beginning to end, whatever the order of the labels.
    """
    n, width = shards.rows, shards.width
    vectors = map_new_array(folder / VECTORS, np.float32, (n, width))
    bucket_rows = max(1, bucket_bytes // (4 * width))
    if n <= bucket_rows:
        for rows, block in unit_blocks(shards, lengths):
            vectors[place[rows]] = block
        vectors.flush()
        forget_pages(vectors)
        return vectors
    buckets = -(-n // bucket_rows)
    paths = [folder / f"bucket-{number}" for number in range(buckets)]
    for rows, block in unit_blocks(shards, lengths):
        bucket = place[rows] // bucket_rows
        for number in np.unique(bucket):
            with paths[number].open("ab") as file:
                file.write(np.ascontiguousarray(block[bucket == number]).data)
    for number, path in enumerate(paths):
        first, end = number * bucket_rows, min((number + 1) * bucket_rows, n)
        arrived = place[(place >= first) & (place < end)] - first
        ordered = np.empty((end - first, width), np.float32)
        ordered[arrived] = np.fromfile(path, np.float32).reshape(-1, width)
        path.unlink()
        vectors[first:end] = ordered
        forget_pages(vectors)
    vectors.flush()
    return vectors


def unit_blocks(shards: Shards, lengths: LengthCounts) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """Yield blocks of rows of all shards as unit vectors, and which rows of the set they are."""
    first = 0
    for shard in shards.files:
        seen = 0
        for block in shard.blocks(max(1, BLOCK_VALUES // shards.width)):
            yield slice(first, first + len(block)), unit_block(shard, block, seen, lengths)
            first, seen = first + len(block), seen + len(block)
        if seen != shard.rows:
            raise InputError(f"{shard.path} has {seen:,} rows instead of {shard.rows:,}: it was changed, start again")


def unit_block(shard: Shard, block: NDArray[Any], first_row: int, lengths: LengthCounts) -> NDArray[np.float32]:
    """(rows, d) the rows of a block as unit vectors; rows without a direction are refused by the shard's name."""
    its_lengths = np.empty(len(block))
    try:
        vectors = unit_rows(block, np.arange(len(block)), np.float32, its_lengths, first_row)
    except InputError as error:
        raise InputError(f"{shard.path}: {error}") from error
    lengths.add(its_lengths)
    return vectors


def data_digest(vectors: NDArray[np.float32], sizes: NDArray[np.int64], names: NDArray[Any]) -> str:
    """Compute the SHA-256 of vectors, sizes and names, a few megabytes at a time."""
    found = hashlib.sha256()
    step = max(1, BLOCK_VALUES // vectors.shape[1])
    for first in range(0, len(vectors), step):
        found.update(np.ascontiguousarray(vectors[first : first + step]).data)
        forget_pages(vectors)
    classes = hashlib.sha256(np.ascontiguousarray(sizes).data)
    classes.update(json.dumps(names.tolist()).encode())
    return digest({"shape": list(vectors.shape), "vectors": found.hexdigest(), "classes": classes.hexdigest()})
