"""What a store is: named blobs, written whole, read in pieces.

Stores take and give bytes and know no tensors, keys or tenants. A blob is immutable: a name is
published once, complete and durable, or not at all (invariant I3).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from kvgraft.errors import NameRefused, StoreError
from kvgraft.limits import MAX_BLOB_NAME_CHARS

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")


@runtime_checkable
class BlobReader(Protocol):
    """An open blob. Reading goes straight into the caller's buffers."""

    size_bytes: int

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Fill `buffers` one after the other from `offset`. Thread-safe.

        Raises:
            Truncated: the blob ends before the buffers are full.
            StoreError: the bytes are there and cannot be read.
        """

    def close(self) -> None:
        """Release the blob. Idempotent."""


@runtime_checkable
class BlobWriter(Protocol):
    """A blob being written. Nothing is visible before `publish`."""

    def write(self, data: bytes | memoryview) -> None:
        """Append.

        Raises:
            StoreFull, StoreReadOnly, StoreError: the write failed, or the writer is done with;
                the blob is gone.
        """

    def publish(self, name: str) -> None:
        """Make the blob durable, then visible under `name`, replacing nothing but equal bytes.
        The writer is then done with.

        Raises:
            NameRefused: not a blob name; the blob is gone.
            StoreFull, StoreReadOnly, StoreError: publishing failed, or the writer is done with;
                the blob is gone.
        """

    def abort(self) -> None:
        """Forget what was written. Idempotent, and harmless after `publish`."""


@runtime_checkable
class BlobStore(Protocol):
    """A flat set of named blobs."""

    def writer(self) -> BlobWriter:
        """Begin a blob."""

    def open(self, name: str) -> BlobReader:
        """Open a blob for reading.

        Raises:
            BlobNotFound: there is none.
            NameRefused: not a blob name, or something else than a plain file stands there.
        """

    def delete(self, name: str) -> bool:
        """Remove a blob; False if there was none.

        Raises:
            NameRefused: not a blob name.
        """

    def names(self) -> Iterator[str]:
        """All names, in no promised order."""

    def close(self) -> None:
        """Release what the store holds. Idempotent."""


def finished_writer() -> StoreError:
    """What a writer raises that was published, was aborted, or failed."""
    return StoreError("this blob was published, aborted or failed; begin another")


def checked_name(name: str) -> str:
    """`name` itself, if it is a blob name: `[a-z0-9][a-z0-9._-]*`, no `..`, at most 200 long.

    Raises:
        NameRefused: it is not. Separators, absolute paths and `..` cannot be spelled.
    """
    if len(name) > MAX_BLOB_NAME_CHARS or not _NAME.match(name) or ".." in name:
        raise NameRefused("not a blob name", where=repr(name[:MAX_BLOB_NAME_CHARS]))
    return name
