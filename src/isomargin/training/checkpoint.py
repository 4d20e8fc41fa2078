"""Checkpoints that survive a kill at any moment: written atomically, each with a checksum.

A checkpoint is a dictionary of tensors, numbers, text and containers of these; nothing that runs code is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from isomargin.core.errors import InputError
from isomargin.core.files import atomic_write

_MAGIC = b"isomargin checkpoint 1\n"
_MEND = "delete it, or bring back a copy"
_NAME = re.compile(r"step-(\d{9})\.ckpt")

Content = Mapping[str, type | tuple[type, ...]]
"""The entries that a checkpoint must have, by name, with their types."""


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write the state after `step` steps into the folder, then delete all checkpoints except the newest `keep`.

    Two are kept, so that one is left if the disk damages the other. After an error the existing ones are unchanged.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     _ = save_checkpoint(Path(name), 10, {"weight": torch.ones(2)})
    ...     step, state, notes = load_checkpoint(Path(name))
    >>> step, state["weight"], notes
    (10, tensor([1., 1.]), [])
    """
    path = checkpoint_path(folder, step)
    write_checkpoint(path, state)
    for _, old in find_checkpoints(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:09d}.ckpt"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write one checkpoint, atomically; create its folder if needed."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getbuffer()  # no copy: it may be as large as the free memory
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            for part in (_MAGIC, hashlib.sha256(payload).digest(), payload):
                file.write(part)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        found = find_checkpoints(path.parent)
        last = f"the last good one is {found[-1][1]}" if found else "there is no earlier one"
        raise InputError(f"the disk is full, so {path} could not be written: make room; {last}") from error


def find_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """List the checkpoints of a folder with their steps, the newest last, without temporary files of a killed run."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def load_checkpoint(folder: Path, expected: Content | None = None) -> tuple[int, dict[str, Any], list[str]]:
    """Read the newest checkpoint that can be used: its step, its state on the CPU, and what is wrong with newer ones.

    >>> load_checkpoint(Path("no/such/run"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/run holds no checkpoint: there is nothing to continue from
    """
    found = find_checkpoints(folder)
    if not found:
        raise InputError(f"{folder} holds no checkpoint: there is nothing to continue from")
    notes: list[str] = []
    for step, path in reversed(found):
        try:
            return step, read_checkpoint(path, expected), notes
        except InputError as error:
            notes.append(str(error))
    raise InputError(f"none of the {len(found)} checkpoints in {folder} can be used: {'; '.join(notes)}")


def read_checkpoint(path: Path, expected: Content | None = None) -> dict[str, Any]:
    """Read one checkpoint; raise `InputError` if it is damaged, or lacks an expected entry."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror}): check the path and its permissions") from error
    if not content.startswith(_MAGIC):
        raise InputError(f"{path} is not a checkpoint of isomargin, or is damaged or cut short: {_MEND}")
    start = len(_MAGIC) + 32
    payload = memoryview(content)[start:]
    if hashlib.sha256(payload).digest() != content[len(_MAGIC) : start]:
        raise InputError(f"{path} is damaged or cut short (its checksum does not fit): {_MEND}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of pickles that it then refuses
            state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many types here; code in the file is not run
        reason = type(error).__name__
        raise InputError(f"{path} holds something else than a checkpoint ({reason}): {_MEND}") from error
    wrong = [name for name, kind in (expected or {}).items() if not _has(state, name, kind)]
    if not isinstance(state, dict) or wrong:
        lacking = f" (it has no {wrong[0]})" if wrong else ""
        raise InputError(f"{path} holds something else than a checkpoint{lacking}: {_MEND}")
    return state


def _has(state: Any, name: str, kind: type | tuple[type, ...]) -> bool:
    return isinstance(state, dict) and isinstance(state.get(name), kind)


def load_model(path: Path, model: torch.nn.Module) -> None:
    """Load the parameters of a model from its checkpoint."""
    state = read_checkpoint(path, {"model": dict})
    with fitting(path):
        model.load_state_dict(state["model"])


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn the errors of parameters that do not fit into a sentence.

    >>> with fitting(Path("model.ckpt")):
    ...     torch.nn.Linear(2, 2).load_state_dict({})
    Traceback (most recent call last):
    isomargin.InputError: model.ckpt does not fit the recipe beside it (RuntimeError: Error(s) in loading state_dict ...
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # torch and optimisers raise many types
        words = " ".join(str(error).split())[:120]
        raise InputError(
            f"{path} does not fit the recipe beside it ({type(error).__name__}: {words}): bring back the files of one "
            "run, or train again"
        ) from error
