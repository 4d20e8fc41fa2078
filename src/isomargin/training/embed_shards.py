"""Embed items with a model as it is, and write them as shards of parquet: the loop of `isomargin embed --model`.

Each shard is written atomically once it is complete, so an interrupted run continues with the next one. A file beside
them says what they were made from; other settings in the same folder are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core import checks
from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write, locked
from isomargin.io._common import IDS
from isomargin.models.encoders import Encoder
from isomargin.training.embed_items import Items

RECORD = "embed.json"
FORMAT = "isomargin embedded shards"
SHARD = 10_000


@dataclass(frozen=True)
class Embedded:
    """What was written."""

    items: int
    """Embeddings in all shards."""
    shards: int
    """Files."""
    resumed: int
    """Files that were there already."""
    left_out: tuple[str, ...]
    """Ids of images that could not be decoded."""


def embed_shards(
    encoder: Encoder,
    items: Items,
    folder: Path,
    batch: int = 64,
    shard: int = SHARD,
    workers: int = 4,
    skip_bad: bool = False,
    report: Callable[[float], None] | None = None,
) -> Embedded:
    """Embed items in their order and write `part-00000.parquet`, `part-00001.parquet` and so on into a folder.

    Shards that are there are kept if the folder's record says that they were made from the same input by the same
    model. Columns are `embeddings`, `ids` and, if the items have some, `labels`.
    """
    checks.whole(batch, "batch")
    checks.whole(shard, "shard")
    record = {
        "format": FORMAT,
        "model": encoder.name,
        "weights_sha256": encoder.digest,
        "precision": encoder.precision,
        "input": items.what,
        "input_sha256": items.digest,
        "items": len(items),
        "shard": shard,
        "skip_bad_images": skip_bad,
    }
    _check_folder(folder)
    with locked(folder, wait=False) as free:
        if not free:
            raise InputError(f"another process writes to {folder}: wait for it, or give another folder")
        _check_record(folder, record)
        return _write_all(encoder, items, folder, batch, shard, workers, skip_bad, report)


def _write_all(
    encoder: Encoder,
    items: Items,
    folder: Path,
    batch: int,
    shard: int,
    workers: int,
    skip_bad: bool,
    report: Callable[[float], None] | None,
) -> Embedded:
    written, shards, resumed = 0, 0, 0
    left_out: list[str] = []
    starts = range(0, len(items), shard)
    with ThreadPoolExecutor(max(workers, 1)) as pool:
        for number, start in enumerate(starts):
            path = folder / f"part-{number:05}.parquet"
            rows = np.arange(start, min(start + shard, len(items)))
            if path.is_file():
                kept = _rows_of(path)
                resumed += 1
            else:
                done, vectors = _embed_rows(encoder, items, rows, batch, skip_bad, pool, report)
                kept = len(done)
                left_out += items.ids[np.setdiff1d(rows, done)].astype(str).tolist()
                if kept:
                    _write_shard(path, vectors, items, done)
            shards += bool(kept)
            written += kept
            if report is not None:
                report((int(rows[-1]) + 1) / len(items))
    if not written:
        raise InputError("none of the images could be decoded: check the files")
    return Embedded(written, shards, resumed, tuple(left_out))


def _embed_rows(
    encoder: Encoder,
    items: Items,
    rows: NDArray[np.int64],
    batch: int,
    skip_bad: bool,
    pool: ThreadPoolExecutor,
    report: Callable[[float], None] | None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the rows that could be read, and their vectors (rows, d)."""
    done: list[int] = []
    blocks: list[NDArray[np.float32]] = []
    for found in _prepared(encoder, items, rows, batch, skip_bad, pool):
        if found:
            done += [row for row, _ in found]
            blocks.append(encoder.encode([value for _, value in found]))
        if report is not None and done:
            report((done[-1] + 1) / len(items))
    vectors = np.concatenate(blocks) if blocks else np.empty((0, 0), np.float32)
    return np.array(done, np.int64), vectors


def _prepared(
    encoder: Encoder,
    items: Items,
    rows: NDArray[np.int64],
    batch: int,
    skip_bad: bool,
    pool: ThreadPoolExecutor,
) -> Iterator[list[tuple[int, Any]]]:
    """Yield batches of rows with what the model takes; threads read the next batch while the model works."""

    def prepare(row: int) -> tuple[int, Any] | None:
        try:
            return row, encoder.prepare(items.read(row))
        except InputError:
            if not skip_bad:
                raise
            return None

    def begin(start: int) -> list[Any]:
        return [pool.submit(prepare, int(row)) for row in rows[start : start + batch]]

    waiting = begin(0)
    for start in range(0, len(rows), batch):
        current, waiting = waiting, begin(start + batch)
        try:
            yield [found for task in current if (found := task.result()) is not None]
        except BaseException:
            for task in waiting:
                task.cancel()
            raise


def _write_shard(path: Path, vectors: NDArray[np.float32], items: Items, rows: NDArray[np.int64]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    lists = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), vectors.shape[1])
    columns = {"embeddings": lists, IDS: arrow.array(items.ids[rows])}
    if items.labels is not None:
        columns["labels"] = arrow.array(items.labels[rows])
    with atomic_write(path) as temporary:
        parquet.write_table(arrow.table(columns), temporary, use_dictionary=["labels"])


def _rows_of(path: Path) -> int:
    import pyarrow.parquet as parquet

    return int(parquet.read_metadata(path).num_rows)


def _check_folder(folder: Path) -> None:
    """Refuse a file, and a folder with anything else in it, before the model is asked."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give a folder for the shards with --output")
    if folder.is_dir() and not (folder / RECORD).is_file() and any(folder.iterdir()):
        raise InputError(f"{folder} has other files and no {RECORD}: give an empty or a new folder with --output")


def _check_record(folder: Path, record: dict[str, Any]) -> None:
    """Write the record of a folder without shards; refuse one whose shards were made otherwise, and say what differs.

    Images that cannot be decoded may be left out from now on: complete shards have none.
    """
    path = folder / RECORD
    known: Any = None
    if path.is_file() and any(folder.glob("part-*.parquet")):
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is damaged: give a new folder with --output") from error
        if known == record:
            return
        known = known if isinstance(known, dict) else {}
        differs = [name for name, value in record.items() if known.get(name) != value]
        if differs != ["skip_bad_images"] or not record["skip_bad_images"]:
            raise InputError(
                f"{folder} has shards of another run (other {', '.join(differs).replace('_', ' ')}): give a new folder "
                "with --output, or delete this one"
            )
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
