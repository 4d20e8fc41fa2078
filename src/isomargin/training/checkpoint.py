"""Checkpoints that survive a kill at any moment: written whole or not at all, each with a checksum.

A checkpoint is a dictionary of tensors, numbers, text and containers of these; nothing that runs code is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
from pathlib import Path
from typing import Any

import torch

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write

_MAGIC = b"isomargin checkpoint 1\n"
_NAME = re.compile(r"step-(\d{9})\.ckpt")


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the state after `step` steps into the folder, then delete all but the newest `keep` checkpoints.

    Two are kept so that one is left if the disk damages the other. On an error those there are stay as they were.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     _ = save_checkpoint(Path(name), 10, {"weight": torch.ones(2)})
    ...     step, state, notes = load_checkpoint(Path(name))
    >>> step, state["weight"], notes
    (10, tensor([1., 1.]), [])
    """
    path = folder / f"step-{step:09d}.ckpt"
    write_checkpoint(path, state)
    for _, old in find_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint, whole or not at all; the folder is made if it is not there."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()  # no copy: it may be as large as the memory that is left
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            for part in (_MAGIC, hashlib.sha256(payload).digest(), payload):
                file.write(part)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        found = find_checkpoints(path.parent)
        last = f"the last good one is {found[-1][1]}" if found else "there is none before it"
        raise InputError(f"the disk is full, so that {path} could not be written: make room; {last}") from error


def find_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """List the folder's checkpoints with their steps, the newest last; a killed run's temporary files are none."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def load_checkpoint(folder: Path) -> tuple[int, dict[str, Any], list[str]]:
    """Read the newest checkpoint that is whole: its step, its state on the CPU, and what is wrong with newer ones.

    >>> load_checkpoint(Path("no/such/run"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/run holds no checkpoint: nothing to go on from
    """
    found = find_checkpoints(folder)
    if not found:
        raise InputError(f"{folder} holds no checkpoint: nothing to go on from")
    notes: list[str] = []
    for step, path in reversed(found):
        try:
            return step, read_checkpoint(path), notes
        except InputError as error:
            notes.append(str(error))
    raise InputError(f"none of the {len(found)} checkpoints in {folder} can be used: {'; '.join(notes)}")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read one checkpoint; raise `InputError` if it is not whole."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror}): check the path and its permissions") from error
    start = len(_MAGIC) + 32
    payload = memoryview(content)[start:]
    if not content.startswith(_MAGIC) or hashlib.sha256(payload).digest() != content[len(_MAGIC) : start]:
        raise InputError(f"{path} is damaged or cut short (its checksum does not fit): delete it")
    state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return state
