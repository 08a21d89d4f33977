"""Objects by key: the index and the packs behind it, read with every check, written whole.

Everything that is read is verified while it is read: the pack's length against the index, the
header, the payload's BLAKE3, and what the caller expects the payload to be. What fails is never
listed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from blake3 import blake3

from kvgraft.blob.header import ObjectHeader, parse_header
from kvgraft.blob.pack import PackEntry, pack_end, padding
from kvgraft.errors import ArtifactError, BlobNotFound, DigestMismatch, Truncated, WrongAddress
from kvgraft.identity import Fingerprint
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.state import Role
from kvgraft.store.base import BlobReader, BlobStore, BlobWriter
from kvgraft.store.index import Index, IndexEntry

# Read and hash in slices that fit a core's second-level cache, so that hashing finds the bytes
# still there (98 KiB slices: 8.6 ms for 94 MB; whole 5.9 MB objects: 10 ms).
_SLICE_BYTES = 256 * 1024
_READ_THREADS = min(2, os.cpu_count() or 1)


@dataclass
class ObjectRead:
    """One object to read: its entry, where its whole payload goes, and what it must be.

    `buffers` take the payload in order; `verify(where)` judges the first of them once they are
    read and raises an `ArtifactError`.
    """

    entry: IndexEntry
    buffers: Sequence[memoryview]
    verify: Callable[[str], None]
    error: ArtifactError | None = None

    @property
    def size_bytes(self) -> int:
        return sum(len(buffer) for buffer in self.buffers)


@dataclass
class CaptureResult:
    """What a capture left behind. `drifted` names keys whose bytes differ from stored ones."""

    pack: str | None = None
    pack_bytes: int = 0
    objects_written: int = 0
    objects_known: int = 0
    drifted: list[str] = field(default_factory=list)


class ChunkStore:
    """Chunks in a `BlobStore`, found through an `Index`."""

    def __init__(self, blobs: BlobStore, index: Index) -> None:
        self.blobs = blobs
        self.index = index
        self._threads: ThreadPoolExecutor | None = None

    def find(self, key: bytes) -> dict[Role, IndexEntry]:
        """The objects of a chunk by role, as the index lists them (nothing is read)."""
        return self.index.find(key)

    def read(self, wanted: Sequence[ObjectRead]) -> bool:
        """Read and verify objects; True if all are good, else each says its `error`.

        A bad object is delisted and an alarm recorded. Buffers of a bad object hold bytes that
        must not be used.
        """
        readers: dict[str, BlobReader] = {}
        try:
            for want in wanted:
                self._open(want, readers)
            jobs = [(want, readers[want.entry.pack]) for want in wanted if want.error is None]
            if len(jobs) < 2 or _READ_THREADS < 2:
                for want, reader in jobs:
                    _read_object(want, reader)
            else:
                list(self._pool().map(lambda job: _read_object(*job), jobs))
        finally:
            for reader in readers.values():
                reader.close()
        bad = [want for want in wanted if want.error is not None]
        for want in bad:
            self.index.remove(want.entry)
            self.index.alarm(
                "damaged", want.entry.object.key, want.entry.object.role, str(want.error)
            )
        return not bad

    def _open(self, want: ObjectRead, readers: dict[str, BlobReader]) -> None:
        pack = want.entry.pack
        try:
            if pack not in readers:
                readers[pack] = self.blobs.open(pack)
            if readers[pack].size_bytes != want.entry.pack_bytes:
                raise Truncated(
                    f"the pack has {readers[pack].size_bytes} bytes,"
                    f" {want.entry.pack_bytes} were written",
                    where=pack,
                )
            if want.size_bytes != want.entry.object.stored_length:
                raise Truncated(
                    f"the object has {want.entry.object.stored_length} bytes,"
                    f" this chunk takes {want.size_bytes}",
                    where=pack,
                )
        except BlobNotFound:
            want.error = Truncated("the pack is gone", where=pack)
        except ArtifactError as error:
            want.error = error

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="kvgraft-read")
        return self._threads

    def capture(self, fingerprint: Fingerprint) -> Capture:
        """Begin a capture. Close it with `commit` or `abort`.

        Raises:
            StoreFull, StoreReadOnly, StoreError: the store cannot be written.
        """
        return Capture(self, fingerprint)

    def close(self) -> None:
        """Idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        self.index.close()
        self.blobs.close()


def _read_object(want: ObjectRead, reader: BlobReader) -> None:
    entry = want.entry.object
    where = f"{want.entry.pack}@{entry.offset}"
    try:
        start = bytearray(OBJECT_HEADER_BYTES)
        reader.read_into(entry.offset, [memoryview(start)])
        header = parse_header(start, where=where)
        _check_header(header, entry, where)
        offset = entry.offset + OBJECT_HEADER_BYTES
        hasher = blake3()
        group: list[memoryview] = []
        size = 0
        for buffer in want.buffers:
            for first in range(0, len(buffer), _SLICE_BYTES):
                group.append(buffer[first : first + _SLICE_BYTES])
                size += len(group[-1])
                if size >= _SLICE_BYTES:
                    _read_group(reader, offset, group, hasher)
                    offset += size
                    group, size = [], 0
        _read_group(reader, offset, group, hasher)
        if hasher.digest() != header.stored_digest:
            raise DigestMismatch("the object's bytes are not those that were written", where=where)
        want.verify(where)
    except ArtifactError as error:
        want.error = error


def _read_group(
    reader: BlobReader, offset: int, group: Sequence[memoryview], hasher: blake3
) -> None:
    if group:
        reader.read_into(offset, group)
        for buffer in group:
            hasher.update(buffer)


def _check_header(header: ObjectHeader, entry: PackEntry, where: str) -> None:
    if (header.key, header.role) != (entry.key, entry.role):
        raise WrongAddress("another object lies where this one is listed", where=where)
    listed = (entry.raw_digest, entry.fingerprint, entry.stored_length)
    if (header.raw_digest, header.fingerprint, header.stored_length) != listed:
        raise DigestMismatch("the object is not the one the index lists", where=where)
    if (header.start, header.count, header.rows) != (entry.start, entry.count, entry.rows):
        raise WrongAddress("the object covers other tokens than listed", where=where)


class Capture:
    """Objects on their way into one pack. Nothing of it is visible before `commit`."""

    def __init__(self, store: ChunkStore, fingerprint: Fingerprint) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._writer: BlobWriter | None = None
        self._entries: list[PackEntry] = []
        self._position = 0
        self._result = CaptureResult()

    def add(
        self,
        role: Role,
        key: bytes,
        place: tuple[int, int, int],
        parts: Sequence[bytes | memoryview],
    ) -> None:
        """Add an object: its payload in `parts`, its place `(start, count, rows)`.

        An object the store has already is not written again; if the stored one has another raw
        digest, that is drift: recorded as an alarm, and the stored one stays.

        Raises:
            StoreFull, StoreReadOnly, StoreError: writing failed; the capture is aborted.
        """
        hasher = blake3()
        for part in parts:
            hasher.update(part)
        digest = hasher.digest()
        known = self._store.find(key).get(role)
        if known is not None:
            self._result.objects_known += 1
            if known.object.raw_digest != digest:
                self._drift(role, key, known, digest)
            return
        length = sum(len(part) for part in parts)
        fingerprint = self._fingerprint.digest
        header = ObjectHeader(role, key, fingerprint, digest, digest, length, length, *place)
        entry = PackEntry(key, digest, fingerprint, self._position, length, *place, role)
        self._write(header.pack())
        for part in parts:
            self._write(part)
        self._write(padding(self._position))
        self._entries.append(entry)

    def _drift(self, role: Role, key: bytes, known: IndexEntry, digest: bytes) -> None:
        stored = known.object.raw_digest.hex()
        self._result.drifted.append(key.hex())
        self._store.index.alarm("drift", key, role, f"stored {stored}, computed {digest.hex()}")

    def _write(self, data: bytes | memoryview) -> None:
        if self._writer is None:
            self._writer = self._store.blobs.writer()
        self._writer.write(data)
        self._position += len(data)

    def commit(self) -> CaptureResult:
        """Publish the pack, then list its objects. A capture of nothing publishes nothing.

        Raises:
            StoreFull, StoreReadOnly, StoreError: publishing failed; nothing is listed.
        """
        if not self._entries or self._writer is None:
            return self._result
        end = pack_end(self._entries, self._position)
        self._write(end)
        # Named after its table, which holds every key and digest: equal captures are one pack.
        name = blake3(end).hexdigest() + ".pack"
        self._note_fingerprint()
        self._writer.publish(name)
        self._store.index.add_pack(name, self._position, self._entries)
        self._result.pack = name
        self._result.pack_bytes = self._position
        self._result.objects_written = len(self._entries)
        return self._result

    def _note_fingerprint(self) -> None:
        # Kept as a blob too, so that a rebuilt index can still name the fields that differ.
        text = self._fingerprint.to_json()
        if self._store.index.note_fingerprint(self._fingerprint.digest, text):
            writer = self._store.blobs.writer()
            writer.write(text.encode())
            writer.publish(f"{self._fingerprint.hex}.fingerprint")

    def abort(self) -> None:
        """Forget the capture. Idempotent."""
        if self._writer is not None:
            self._writer.abort()
