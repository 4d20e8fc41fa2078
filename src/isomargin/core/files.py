"""Files on disk: check one before reading, tell a failed read in one sentence, write one atomically; lock a folder.

Knows nothing of what the files hold; the formats of embeddings are in `formats.py`.
"""

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isomargin.core.errors import InputError

NOT_A_FILE = "a pipe, a socket or a device"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`; on leaving the block without an error it takes the place of `path`.

    After an error, or a crash of the process, `path` is what it was before. The temporary path has the suffix of
    `path`, for writers that look at it. A symbolic link is followed, and the permissions of a replaced file are kept.

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
    """Do as `atomic_write` does with several files that belong together: after an error none of them is changed."""
    targets = [check_target(path) for path in paths]
    temporaries = tuple(hidden_beside(target) for target in targets)
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        modes = [(old if old.exists() else new).stat().st_mode for old, new in zip(targets, temporaries, strict=True)]
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            # Some writers make a file that only its owner may read, whatever the umask says.
            temporary.chmod(mode & 0o7777)
            with temporary.open("r+b") as written:
                os.fsync(written.fileno())
        replace_all(temporaries, targets)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Give the file that a path to write leads to; raise `InputError` where none can be."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file to write")
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is {NOT_A_FILE}, which a file cannot replace: give the name of a file to write")
    if not target.parent.is_dir():
        raise InputError(f"{path} cannot be written because the folder {target.parent} does not exist: make it first")
    return target


def hidden_beside(target: Path) -> Path:
    """Give a name for a file that is not there yet, in the same folder and with the same suffix."""
    return target.with_name(f".tmp-{secrets.token_hex(8)}{target.suffix}")


def replace_all(temporaries: Sequence[Path], targets: Sequence[Path]) -> None:
    """Move each file to its target. Where one cannot be moved, put back what was there before."""
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
    """Keep a file's content under another name, by a link where the disk has such."""
    copy = hidden_beside(file)
    try:
        os.link(file, copy)
    except OSError:
        shutil.copy2(file, copy)
    return copy


def check_file(path: Path) -> None:
    """Raise `InputError` unless `path` is a regular file with something in it: reading a pipe could wait forever.

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
            raise InputError(f"{path} is empty (0 bytes): write it again")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of a reader in the block into an `InputError` that names `path` and the reason in a few words.

    >>> with reading(Path("half.npz")):
    ...     raise EOFError("no more bytes")
    Traceback (most recent call last):
    isomargin.InputError: half.npz could not be read (EOFError: no more bytes): it may be damaged, ...
    """
    try:
        yield
    except InputError:
        raise
    except PermissionError as error:
        raise InputError(f"{path} may not be read by this user: change its permissions") from error
    except Exception as error:
        words = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {words[:120]}" if words else type(error).__name__
        raise InputError(
            f"{path} could not be read ({reason}): it may be damaged, cut short or of another format, write it again"
        ) from error


_lock_files: set[int] = set()  # file descriptors of the locks that this process holds


def _close_lock_files() -> None:
    for descriptor in _lock_files:
        os.close(descriptor)
    _lock_files.clear()


if hasattr(os, "register_at_fork"):  # a forked process would keep the lock after the one that took it is gone
    os.register_at_fork(after_in_child=_close_lock_files)


@contextmanager
def locked(folder: Path, wait: bool) -> Iterator[bool]:
    """Create a folder and lock it against other calls of this function; give whether the lock was free, or wait for it.

    The lock ends with the block, or with the process that holds it, however that ends; no file is left behind. Where
    the system has no such locks, as Windows and some network file systems, nothing is locked.

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
            pass  # NFS locks no folder (EBADF), others nothing at all (ENOSYS, ENOLCK)
        yield free
    finally:
        if descriptor in _lock_files:  # not in a forked process, where it is closed
            _lock_files.discard(descriptor)
            os.close(descriptor)
