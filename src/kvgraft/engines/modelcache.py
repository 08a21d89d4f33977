"""The cache folder of models: where it is, what its errors mean, and which files can be trusted.

demo/NAME.gguf                 a demo model, complete or absent
demo/NAME.gguf.verified.json   which file (size, time, inode) had its digest checked
demo/NAME.staging/             wheels of an unfinished pull; a later pull goes on from here
demo/NAME.lock                 held while a pull or a removal runs
embed/NAME.zip                 a model that embeds texts; the same files beside it
converted/KEY/                 made by `gguf_convert`; complete once `complete.json` is there
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock

from kvgraft.errors import StoreError, StoreFull, StoreReadOnly
from kvgraft.limits import READ_SLICE_BYTES

Progress = Callable[[str, int, int], None]
"""Called as `progress(stage, done, total)`; the unit is bytes unless the stage says otherwise."""
Say = Callable[[str], None]
"""Called with one line for the user."""

COMPLETE_NAME = "complete.json"
MEGABYTE = 1_000_000


def cache_root() -> Path:
    """`$KVGRAFT_CACHE`, else `kvgraft` in the user's XDG cache folder. Not created here."""
    if own := os.environ.get("KVGRAFT_CACHE"):
        return Path(own).expanduser().absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that a relative path there is to be ignored.
    return (base if base.is_absolute() else Path.home() / ".cache") / "kvgraft"


def converted_root() -> Path:
    """The folder that holds converted models, one keyed subfolder each."""
    return cache_root() / "converted"


def converted_folders(source_sha256: str) -> list[Path]:
    """The folders converted from that GGUF, those of interrupted conversions included."""
    folders = converted_root().glob(f"{converted_prefix(source_sha256)}-*")
    return sorted(folder for folder in folders if folder.is_dir())


def converted_prefix(source_sha256: str) -> str:
    """What the names of all folders converted from that GGUF start with."""
    return source_sha256[:16]


@contextmanager
def store_errors(where: Path) -> Iterator[None]:
    """Turn an `OSError` of the cache folder into StoreFull, StoreReadOnly or StoreError."""
    try:
        yield
    except OSError as exc:
        hint = "set KVGRAFT_CACHE to a folder that can be written"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise out_of_space("no space left for the model cache", where) from exc
        if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            what = f"the model cache cannot be written: {exc.strerror}"
            raise StoreReadOnly(what, where=str(where), hint=hint) from exc
        what = f"the model cache cannot be used: {exc.strerror or exc}"
        raise StoreError(what, where=str(where), hint=hint) from exc


def need_space(folder: Path, wanted: int) -> None:
    """Refuse with StoreFull when `folder` has fewer than `wanted` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < wanted:
        text = f"{wanted / MEGABYTE:,.0f} MB are needed and {free / MEGABYTE:,.0f} MB are free"
        raise out_of_space(text, folder)


def out_of_space(what: str, where: Path) -> StoreFull:
    """The error for a full disk at `where`."""
    hint = "free some space, or set KVGRAFT_CACHE to a folder on a larger disk"
    return StoreFull(what, where=str(where), hint=hint)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable (a no-op where folders cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def folder_bytes(folder: Path) -> int:
    """The summed size of the files below `folder`; 0 if it is absent."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # pip moves its temporary files while this walk runs
            with suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_size
    return total


def sha256_file(path: Path, progress: Progress, *, stage: str = "verify") -> str:
    """The SHA-256 of a file, read in slices and reported in bytes."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as handle:
        while block := handle.read(READ_SLICE_BYTES):
            digest.update(block)
            done += len(block)
            progress(stage, done, total)
    return digest.hexdigest()


def sha256_once(path: Path, memo: Path, progress: Progress) -> str:
    """The SHA-256 of `path`, from `memo` if that file (size, time, inode) was hashed before."""
    identity = _identity(path)
    try:
        known = json.loads(memo.read_bytes())
        if isinstance(known, dict) and all(known.get(key) == identity[key] for key in identity):
            return str(known["sha256"])
    except (OSError, ValueError, KeyError):
        pass  # no usable memo: hash the file
    digest = sha256_file(path, progress)
    if _identity(path) == identity:  # not written to while it was read
        remember_sha256(path, memo, digest)
    return digest


def _identity(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {
        "path": str(path.absolute()),
        "size": stat.st_size,
        "mtime_ns": stat.st_mtime_ns,
        "inode": stat.st_ino,
    }


def remember_sha256(path: Path, memo: Path, digest: str) -> None:
    """Write down that `path`, as it is now, has this digest."""
    partial = memo.with_name(f"{memo.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({**_identity(path), "sha256": digest}))
        partial.replace(memo)
    except OSError:
        # The memo only saves time; a full or read-only cache must not stop a model that is there.
        with suppress(OSError):
            partial.unlink()


def complete_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a converted folder, or None unless every file it lists has its size."""
    try:
        manifest = json.loads((folder / COMPLETE_NAME).read_bytes())
        files: dict[str, dict[str, Any]] = manifest["files"]
        if all((folder / name).stat().st_size == entry["bytes"] for name, entry in files.items()):
            return dict(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # absent, half written or damaged: all of them mean "not complete"
    return None


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file `path`; `waiting` is called once if another process holds it."""
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
