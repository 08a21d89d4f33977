"""Which files are meant, and their bytes as they were at one moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvgraft.errors import InputError, LimitExceeded
from kvgraft.limits import MAX_DOCUMENT_BYTES

_TRIES = 3


@dataclass(frozen=True)
class Found:
    """A file by its absolute path, and what the folder says of it."""

    path: str
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Read:
    """A file's bytes, and what was true of it while they were read."""

    found: Found
    data: bytes


def find_files(paths: Iterable[Path]) -> list[Found]:
    """The files that are named, and all in the folders that are, hidden ones left out. Links are
    followed where they are named, not where they stand in a folder.

    Raises:
        InputError: a path that is not there, cannot be listed, or is neither file nor folder.
    """
    found: dict[str, Found] = {}
    for path in paths:
        real = Path(os.path.realpath(path.expanduser()))
        for one in _walk(real) if real.is_dir() else [_found(real, named=True)]:
            if one is not None:
                found.setdefault(one.path, one)
    return [found[path] for path in sorted(found)]


def _walk(folder: Path) -> Iterator[Found | None]:
    def refuse(error: OSError) -> None:
        raise InputError(
            f"cannot list the folder: {error.strerror}", where=str(error.filename)
        ) from error

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if not name.startswith("."):
                yield _found(Path(where) / name, named=False)


def _found(path: Path, *, named: bool) -> Found | None:
    try:
        known = path.lstat()
    except OSError as error:
        if not named:
            return None  # it was removed while its folder was listed
        raise InputError(f"cannot read it: {error.strerror}", where=str(path)) from error
    if stat.S_ISREG(known.st_mode):
        return Found(str(path), known.st_size, known.st_mtime_ns)
    if named:
        raise InputError("neither a file nor a folder", where=str(path))
    return None


def read_file(file: Found) -> Read:
    """The bytes of a file that did not change while it was read.

    Raises:
        InputError: it cannot be read, is gone, or keeps changing.
        LimitExceeded: it is over `limits.MAX_DOCUMENT_BYTES`.
    """
    for _ in range(_TRIES):
        try:
            with Path(file.path).open("rb") as source:
                before = os.fstat(source.fileno())
                data = source.read(MAX_DOCUMENT_BYTES + 1)
                after = os.fstat(source.fileno())
        except OSError as error:
            raise InputError(f"cannot read it: {error.strerror}", where=file.path) from error
        if len(data) > MAX_DOCUMENT_BYTES:
            raise LimitExceeded(
                f"over {MAX_DOCUMENT_BYTES:,} bytes", where=file.path, hint="divide it first"
            )
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        if same and len(data) == after.st_size:
            return Read(Found(file.path, after.st_size, after.st_mtime_ns), data)
    raise InputError(
        "it changes while it is read", where=file.path, hint="ingest it again once it is at rest"
    )
