"""Embeddings in data sets of Hugging Face's `datasets`, on disk or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from isomargin.core.errors import InputError
from isomargin.io.stores.pages import Page, Rows, arrow_pages, check_columns, collect, page_size

WHAT = "the data set"


def read_dataset(dataset: Any, label: str | None, vector: str, identifier: str | None, page: int) -> Rows:
    """Read a Dataset or an IterableDataset page by page; numbers of a ClassLabel become the names of classes."""
    if isinstance(dataset, dict):
        raise InputError(
            f"dataset has the splits {', '.join(map(repr, dataset))}: give one of them, such as "
            f"dataset[{next(iter(dataset), 'train')!r}]"
        )
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "iter"):
        raise InputError(f"dataset is of type {type(dataset).__name__}: a Dataset of Hugging Face is needed")
    if dataset.column_names is not None:  # unknown for some streams
        check_columns(WHAT, dataset.column_names, vector, label, identifier)
        dataset = dataset.select_columns([name for name in (vector, label, identifier) if name is not None])
    batches = dataset.with_format("arrow").iter(batch_size=page_size(page))
    pages = arrow_pages(batches, WHAT, vector, label, identifier)
    expected = len(dataset) if hasattr(dataset, "__len__") else None
    return collect(_with_names(pages, dataset, label), WHAT, expected)


def _with_names(pages: Iterator[Page], dataset: Any, label: str | None) -> Iterator[Page]:
    feature = None if label is None or dataset.features is None else dataset.features.get(label)
    names = getattr(feature, "names", None)
    if names is None:
        yield from pages
        return
    for page in pages:
        numbers = list(page.labels or ())
        # -1 stands for a missing label in many data sets.
        named = [names[number] if number is not None and 0 <= number < len(names) else None for number in numbers]
        yield Page(page.vectors, named, page.ids)
