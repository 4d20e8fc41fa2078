"""Files on disk: check a file before reading, explain a failed read in one sentence, write atomically, lock a folder.

This module does not know what files contain; the formats of embeddings are in `io/formats.py`.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isomargin.core.errors import InputError
from isomargin.core.extras import missing_package

NOT_A_FILE = "a pipe, a socket or a device"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which replaces `path` when the block ends without an error.

    After an error, or if the process dies, `path` is unchanged. The temporary path has the suffix of `path`, because
    some writers choose the format by it. Symbolic links are followed, and a replaced file keeps its permissions.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     target = Path(folder) / "note.json"
    ...     with atomic_write(target) as temporary:
    ...         _ = temporary.write_text("[1, 2]")
    ...     print(target.read_text(), [file.name for file in Path(folder).iterdir()])
    [1, 2] ['note.json']
    """
    with atomic_writes(path) as (temporary,):
        yield temporary


@contextmanager
def atomic_writes(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """Write several files that belong together, like `atomic_write`: after an error none of them has changed."""
    targets = [check_target(path) for path in paths]
    temporaries = tuple(hidden_beside(target) for target in targets)
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        modes = [(old if old.exists() else new).stat().st_mode for old, new in zip(targets, temporaries, strict=True)]
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            # Some writers create files that only the owner can read, whatever the umask is.
            temporary.chmod(mode & 0o7777)
            with temporary.open("r+b") as written:
                os.fsync(written.fileno())
        replace_all(temporaries, targets)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the file to write, with links resolved; raise `InputError` if it cannot be a file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is {NOT_A_FILE}, which a file cannot replace: give the name of a file to write")
    if not target.parent.is_dir():
        raise InputError(f"{path} cannot be written because the folder {target.parent} does not exist: create it first")
    return target


def hidden_beside(target: Path) -> Path:
    """Return an unused hidden name in the same folder, with the same suffix."""
    return target.with_name(f".tmp-{secrets.token_hex(8)}{target.suffix}")


def replace_all(temporaries: Sequence[Path], targets: Sequence[Path]) -> None:
    """Move each file to its target. If one of them cannot be moved, restore the previous files."""
    copies: list[Path] = []
    replaced: list[tuple[Path, Path | None]] = []
    try:
        for temporary, target in zip(temporaries, targets, strict=True):
            copy = None
            if len(targets) > 1 and target.exists():
                copies.append(copy := keep_copy(target))
            os.replace(temporary, target)
            replaced.append((target, copy))
    except OSError:
        for target, copy in replaced:
            if copy is None:
                target.unlink(missing_ok=True)
            else:
                os.replace(copy, target)
        raise
    finally:
        for copy in copies:
            copy.unlink(missing_ok=True)


def keep_copy(file: Path) -> Path:
    """Keep a file's content under another name: as a hard link, or as a copy if the file system has no links."""
    copy = hidden_beside(file)
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy2(file, copy)
    return copy


def check_file(path: Path, remedy: str = "write it again") -> None:
    """Raise `InputError` unless `path` is a regular file that is not empty. Reading a pipe could block forever.

    >>> check_file(Path("no/such/file.npz"))
    Traceback (most recent call last):
    isomargin.InputError: no/such/file.npz does not exist: check the path
    """
    with reading(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder: give a file in it")
        if not path.exists():
            raise InputError(f"{path} does not exist: check the path")
        if not path.is_file():
            raise InputError(f"{path} is {NOT_A_FILE}: give a regular file")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty (0 bytes): {remedy}")


@contextmanager
def reading(path: Path, remedy: str = "write it again") -> Iterator[None]:
    """Turn any error that a reader raises in the block into an `InputError` with the path and a short reason.

    >>> with reading(Path("half.npz")):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    isomargin.InputError: half.npz could not be read (EOFError: no more bytes): it may be damaged, ...
    """
    try:
        yield
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise missing_package(error) or error from error
    except PermissionError as error:
        raise InputError(f"{path} cannot be read by this user: change its permissions") from error
    except Exception as error:
        words = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {words[:120]}" if words else type(error).__name__
        raise InputError(
            f"{path} could not be read ({reason}): it may be damaged, truncated or of another format; {remedy}"
        ) from error


_lock_files: set[int] = set()  # file descriptors of the locks that this process holds


def _close_lock_files() -> None:
    for descriptor in _lock_files:
        os.close(descriptor)
    _lock_files.clear()


if hasattr(os, "register_at_fork"):  # a forked process would keep the lock after its owner has ended
    os.register_at_fork(after_in_child=_close_lock_files)


@contextmanager
def locked(folder: Path, wait: bool) -> Iterator[bool]:
    """Create a folder and lock it against other calls of this function; yield whether the lock was free.

    With `wait`, wait until it is. The lock ends with the block, or with the process that holds it, however it ends; no
    file is left behind. On systems without such locks (Windows, some network file systems) nothing is locked.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name, locked(Path(name), False) as first, locked(Path(name), False) as second:
    ...     first, second
    (True, False)
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    _lock_files.add(descriptor)
    free = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            free = False
        except OSError:
            pass  # NFS does not lock folders (EBADF), other systems lock nothing (ENOSYS, ENOLCK)
        yield free
    finally:
        if descriptor in _lock_files:  # in a forked process it is closed already
            _lock_files.discard(descriptor)
            os.close(descriptor)
