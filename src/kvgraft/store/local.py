"""Blobs as files in sharded folders, published by temp file, fsync, rename, directory fsync.

Temporary files live inside the store's own folder: a rename is atomic only within one file
system, and `TMPDIR` may be another.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvgraft.errors import (
    BlobNotFound,
    NameRefused,
    StoreError,
    StoreFull,
    StoreReadOnly,
    Truncated,
)
from kvgraft.store.base import BlobReader, BlobWriter, checked_name, finished_writer

_IOV_MAX = 1024  # Linux; POSIX promises only 16, but preadv exists where this holds
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def store_error(error: OSError, where: Path | str, doing: str) -> StoreError:
    """The typed error for an operating system's refusal."""
    if error.errno in _FULL:
        return StoreFull(
            f"no space left while {doing}",
            where=str(where),
            hint="free some space or name another store folder; nothing partial was kept",
        )
    if error.errno in _READ_ONLY:
        return StoreReadOnly(
            f"not allowed ({error.strerror}) while {doing}",
            where=str(where),
            hint="check the folder's owner and mode, or name another store folder",
        )
    return StoreError(f"{error.strerror or error} while {doing}", where=str(where))


def sync_folder(folder: Path) -> None:
    """Make renames and unlinks in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a small file that is there complete and durable, or as it was.

    Raises:
        StoreFull, StoreReadOnly, StoreError: the system refused.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)
    except OSError as error:
        raise store_error(error, path, "writing a file") from error


class LocalStore:
    """Blobs under `root`: `blobs/<last two characters of the stem>/<name>`."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._temporary = root / "tmp"
        self._durable: set[Path] = set()  # folders whose own entry this process has synced
        try:
            for folder in (self._blobs, self._temporary):
                folder.mkdir(parents=True, exist_ok=True)
            sync_folder(root)
        except OSError as error:
            raise store_error(error, root, "opening the store") from error

    def _path(self, name: str) -> Path:
        stem = checked_name(name).partition(".")[0]
        return self._blobs / stem[-2:].rjust(2, "0") / name

    def writer(self) -> BlobWriter:
        return _LocalWriter(self, self._temporary)

    def open(self, name: str) -> BlobReader:
        path = self._path(name)
        try:
            # O_NONBLOCK: opening a pipe that someone put there would wait for a writer for ever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(path, flags)
        except FileNotFoundError:
            raise BlobNotFound("no such blob", where=name) from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NameRefused("a symlink stands where a blob should be", where=name) from error
            raise store_error(error, path, "opening a blob") from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise NameRefused("something else than a file stands here", where=name)
        return _LocalReader(fd, status.st_size, name)

    def delete(self, name: str) -> bool:
        path = self._path(name)
        try:
            path.unlink()
            sync_folder(path.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error(error, path, "deleting a blob") from error
        return True

    def names(self) -> Iterator[str]:
        try:
            for folder in sorted(self._blobs.iterdir()):
                if folder.is_dir():
                    yield from sorted(entry.name for entry in folder.iterdir())
        except OSError as error:
            raise store_error(error, self._blobs, "listing blobs") from error

    def sweep_temporary(self, older_than_seconds: float, now: float) -> int:
        """Delete temporary files that writers left behind when they were killed; bytes freed."""
        freed = 0
        for path in self._temporary.iterdir():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if now - status.st_mtime >= older_than_seconds:
                    path.unlink()
                    freed += status.st_size
        return freed

    def close(self) -> None:
        return

    def place(self, temporary: Path, name: str) -> None:
        """Move a finished, synced temporary file to its name, durably."""
        path = self._path(name)
        if path.parent not in self._durable:
            # Synced although it may be there: the process that made it may not have come so far.
            path.parent.mkdir(exist_ok=True)
            sync_folder(self._blobs)
            self._durable.add(path.parent)
        temporary.replace(path)
        sync_folder(path.parent)


class _LocalReader:
    def __init__(self, fd: int, size_bytes: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self.size_bytes = size_bytes

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        if not 0 <= offset <= self.size_bytes:
            raise Truncated("the blob ends too soon", where=self._name)
        try:
            for first in range(0, len(buffers), _IOV_MAX):
                group = buffers[first : first + _IOV_MAX]
                wanted = sum(len(buffer) for buffer in group)
                got = os.preadv(self._fd, group, offset)
                if got != wanted:
                    self._read_rest(offset, group, got)
                offset += wanted
        except OSError as error:
            raise store_error(error, self._name, "reading a blob") from error

    def _read_rest(self, offset: int, group: Sequence[memoryview], got: int) -> None:
        # A short read is legal (Linux stops at 2 GiB); only a read of nothing means the end.
        for buffer in group:
            skip = min(got, len(buffer))
            got -= skip
            offset += skip
            rest = buffer[skip:]
            while len(rest):
                count = os.preadv(self._fd, [rest], offset)
                if count == 0:
                    raise Truncated("the blob ends too soon", where=self._name)
                offset += count
                rest = rest[count:]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class _LocalWriter:
    def __init__(self, store: LocalStore, folder: Path) -> None:
        self._store = store
        self._path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise store_error(error, self._path, "writing a blob") from error

    def write(self, data: bytes | memoryview) -> None:
        fd = self._unfinished()
        rest = memoryview(data)
        try:
            while len(rest):
                rest = rest[os.write(fd, rest) :]
        except OSError as error:
            self.abort()
            raise store_error(error, self._path, "writing a blob") from error

    def publish(self, name: str) -> None:
        fd = self._unfinished()
        try:
            checked_name(name)
            os.fsync(fd)
            self._close()
            self._store.place(self._path, name)
        except NameRefused:
            self.abort()
            raise
        except OSError as error:
            self.abort()
            raise store_error(error, self._path, "publishing a blob") from error

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _unfinished(self) -> int:
        if self._fd < 0:
            raise finished_writer()
        return self._fd

    def _close(self) -> None:
        # Forgotten first: a close that fails has closed, and the number may be another file's.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
