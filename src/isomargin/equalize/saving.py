"""The files of equalizers, adapters and class thresholds.

A .json file has a checksum, and its arrays are in a .safetensors file beside it. The .json file holds the checksums of
the arrays, so files that were changed or do not belong together are refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_writes, check_file, reading
from isomargin.core.json_values import array_digest, digest
from isomargin.equalize import tensor_files

Kind = Literal["equalizer", "adapter", "class thresholds"]
WITH_ARTICLE: dict[Kind, str] = {
    "equalizer": "an equalizer",
    "adapter": "an adapter",
    "class thresholds": "a file of class thresholds",
}
VERSION = 1
LARGEST_HEAD = 1 << 12  # bytes that are searched for the name of the format

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Content:
    """What one .json file and the .safetensors file beside it hold."""

    kind: Kind
    values: dict[str, Any]
    """JSON values."""
    arrays: Arrays
    """Contiguous arrays: safetensors writes others wrongly."""


def write(contents: Mapping[Path, Content]) -> None:
    """Write both files of each content, by the path of its .json file: all of them, or none after an error."""
    for path, content in contents.items():
        check_place(path, content.kind)
    targets = [file for path in contents for file in (path, beside(path))]
    with atomic_writes(*targets) as files:
        for content, as_json, as_tensors in zip(contents.values(), files[::2], files[1::2], strict=True):
            as_json.write_text(json_text(content), encoding="utf-8")
            tensor_files.write(as_tensors, content.arrays)


def check_place(path: Path, kind: Kind) -> None:
    """Refuse a path that is not a .json file, or beside which a .safetensors file holds something else."""
    if path.suffix != ".json":
        raise InputError(f"{path} should end in .json")
    if beside(path).exists() and not is_of_kind(path, kind):
        raise InputError(
            f"{beside(path)} exists, does not belong to {WITH_ARTICLE[kind]} and would be replaced: choose another "
            f"name for {path}"
        )


def json_text(content: Content) -> str:
    """Return the text of the .json file."""
    hashes = {name: array_digest(array) for name, array in content.arrays.items()}
    values = {"format": format_name(content.kind), "version": VERSION, **content.values, "arrays": hashes}
    return json.dumps({**values, "sha256": digest(values)}, allow_nan=False, indent=1) + "\n"


def read(source: Path, kind: Kind, mapped: bool = False) -> tuple[dict[str, Any], Arrays]:
    """Read both files; files that do not belong together or were changed are refused.

    With ``mapped``, the arrays stay in the file, which is mapped into memory.
    """
    from safetensors.numpy import load_file

    values = read_values(source, kind)
    tensors = beside(source)
    if not tensors.exists():
        raise InputError(f"{source} needs {tensors.name} beside it, which is missing: copy both files together")
    check_file(tensors)
    with reading(tensors):
        arrays: Arrays = tensor_files.mapped(tensors) if mapped else load_file(tensors)
    if {name: array_digest(array) for name, array in arrays.items()} != values["arrays"]:
        raise InputError(f"{tensors} does not belong to {source.name}: copy both files together, or fit again")
    return values, arrays


def read_values(source: Path, kind: Kind) -> dict[str, Any]:
    """Read the .json file alone; one that was changed is refused."""
    check_file(source)
    if source.suffix != ".json":
        raise InputError(f"{source} is not {WITH_ARTICLE[kind]} that isomargin wrote: give its .json file")
    with reading(source):
        values = json.loads(source.read_text(encoding="utf-8"), parse_constant=refuse_constant)
    if not isinstance(values, dict) or values.get("format") != format_name(kind):
        raise InputError(f"{source} is not {WITH_ARTICLE[kind]} that isomargin wrote")
    if values.get("version") != VERSION:
        raise InputError(f"{source} is {WITH_ARTICLE[kind]} of another version of isomargin: fit it again")
    content = {name: value for name, value in values.items() if name != "sha256"}
    if digest(content) != values.get("sha256"):
        raise InputError(f"{source} was changed after it was written: use the original, or fit again")
    return values


def beside(path: Path) -> Path:
    """Return the file of the arrays."""
    return path.with_suffix(".safetensors")


def format_name(kind: Kind) -> str:
    """Return the name of the format, which stands first in the .json file."""
    return f"isomargin {kind}"


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which Python reads but JSON does not have."""
    raise ValueError(f"{name} is not JSON")


def is_of_kind(path: Path, kind: Kind) -> bool:
    """Return whether a file claims to be of a kind, of any version."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return f'"{format_name(kind)}"'.encode() in file.read(LARGEST_HEAD)
