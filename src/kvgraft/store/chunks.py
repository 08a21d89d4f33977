"""Objects by key: the index and the packs behind it, read with every check, written whole.

Everything that is read is verified while it is read: the pack's length against the index, the
header, the payload's BLAKE3, and what the caller expects the payload to be. What fails is never
listed again.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeAlias

from blake3 import blake3

from kvgraft.blob.header import ObjectHeader, parse_header
from kvgraft.blob.pack import PackEntry, pack_end, pack_name, padding
from kvgraft.breakeven import Rates
from kvgraft.errors import (
    ArtifactError,
    BlobNotFound,
    DigestMismatch,
    KvgraftError,
    StoreError,
    Truncated,
    WrongAddress,
)
from kvgraft.identity import Fingerprint
from kvgraft.limits import MAX_PACK_OBJECTS, OBJECT_HEADER_BYTES
from kvgraft.state import Role
from kvgraft.store.base import BlobReader, BlobStore, BlobWriter
from kvgraft.store.index import Index, IndexEntry

# Read and hash in slices that fit a core's second-level cache, so that hashing finds the bytes
# still there (98 KiB slices: 8.6 ms for 94 MB; whole 5.9 MB objects: 10 ms).
_SLICE_BYTES = 256 * 1024
_SAVE_RATES_EVERY = 256
FINGERPRINT_SUFFIX = ".fingerprint"


@dataclass
class ObjectRead:
    """One object to read: its entry, where its whole payload goes, and what it must be.

    `buffers` take the payload in order; `verify(where)` judges the first of them once they are
    read and raises an `ArtifactError`.
    """

    entry: IndexEntry
    buffers: Sequence[memoryview]
    verify: Callable[[str], None]
    error: KvgraftError | None = None

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
        # What was found bad and could not be delisted, because the index cannot be written.
        self._refused: set[IndexEntry] = set()
        self._rates: dict[bytes, Rates] = {}

    def find(self, key: bytes) -> dict[Role, IndexEntry]:
        """The objects of a chunk by role, as the index lists them (nothing is read)."""
        return self._trusted(self.index.find(key))

    def find_many(self, keys: Sequence[bytes]) -> list[dict[Role, IndexEntry]]:
        """`find` for several keys at once, in their order."""
        return [self._trusted(objects) for objects in self.index.find_many(keys)]

    def _trusted(self, objects: dict[Role, IndexEntry]) -> dict[Role, IndexEntry]:
        if not self._refused:
            return objects
        return {role: entry for role, entry in objects.items() if entry not in self._refused}

    def read(self, wanted: Iterable[ObjectRead]) -> bool:
        """Read and verify objects; True if all are good, else each says its `error`.

        Reading begins as soon as the first of `wanted` is there, so that making the later ones
        costs no time of its own.

        A bad object is delisted and an alarm recorded; so is one that cannot be read, since a
        look-up must not find it for ever. Buffers of a bad object hold bytes that must not be used.
        """
        readers: dict[str, BlobReader] = {}
        seen: list[ObjectRead] = []
        jobs: _Jobs = SimpleQueue()
        helper = self._pool().submit(_read_all, jobs)
        try:
            for want in wanted:
                seen.append(want)
                self._open(want, readers)
                if want.error is None:
                    jobs.put((want, readers[want.entry.pack]))
            for _ in range(2):
                jobs.put(None)
            _read_all(jobs)  # two threads in all: a third would only wait for the others
            helper.result()
        finally:
            # Also on Ctrl-C: the buffers belong to a context that is about to be used again, and
            # the readers are about to be closed.
            with contextlib.suppress(Empty):
                while True:
                    jobs.get_nowait()
            jobs.put(None)
            wait([helper])
            for reader in readers.values():
                reader.close()
        bad = [want for want in seen if want.error is not None]
        for want in bad:
            self._delist(want)
        return not bad

    def _delist(self, want: ObjectRead) -> None:
        entry = want.entry
        kind = "unreadable" if isinstance(want.error, StoreError) else "damaged"
        try:
            self.index.remove(entry)
        except StoreError:
            self._refused.add(entry)
        with contextlib.suppress(StoreError):
            self.index.alarm(kind, entry.object.key, entry.object.role, str(want.error))

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
        except (ArtifactError, StoreError) as error:
            want.error = error

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="kvgraft-read")
        return self._threads

    def discard(self, key: bytes) -> int:
        """Delete what was captured together with the chunk `key`: delisted first, then deleted.
        The bytes that were freed; 0 where it is not stored.

        Other prompts that share a beginning with it compute that again.

        Raises:
            StoreReadOnly, StoreError: the store cannot be written.
        """
        freed = 0
        for pack in {entry.pack for entry in self.find(key).values()}:
            freed += self.index.remove_pack(pack)
            self.blobs.delete(pack)
        return freed

    def rates(self, fingerprint: bytes) -> Rates:
        """What loading and computing cost this model here. What is noted in it is kept when the
        store is closed, and now and then before."""
        if fingerprint not in self._rates:
            with contextlib.suppress(StoreError):
                text = self.index.rates(fingerprint, platform.node())
                self._rates[fingerprint] = Rates.from_json(text or "")
        rates = self._rates.setdefault(fingerprint, Rates())
        if rates.unsaved >= _SAVE_RATES_EVERY:
            self._save_rates()
        return rates

    def _save_rates(self) -> None:
        for fingerprint, rates in list(self._rates.items()):  # other threads may add theirs
            if rates.unsaved:
                rates.unsaved = 0
                # A store that cannot be written can still be read; the rates are measured again.
                with contextlib.suppress(StoreError):
                    self.index.save_rates(fingerprint, platform.node(), rates.to_json())

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
        self._save_rates()
        self.index.close()
        self.blobs.close()


_Jobs: TypeAlias = "SimpleQueue[tuple[ObjectRead, BlobReader] | None]"


def _read_all(jobs: _Jobs) -> None:
    """Read what the queue gives, up to the next `None`."""
    while (job := jobs.get()) is not None:
        _read_object(*job)


def _read_object(want: ObjectRead, reader: BlobReader) -> None:
    entry = want.entry.object
    where = f"{want.entry.pack}@{entry.offset}"
    try:
        start = bytearray(OBJECT_HEADER_BYTES)
        reader.read_into(entry.offset, [memoryview(start)])
        header = parse_header(start, where=where)
        check_header(header, entry, where)
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
    except (ArtifactError, StoreError) as error:
        want.error = error


def _read_group(
    reader: BlobReader, offset: int, group: Sequence[memoryview], hasher: blake3
) -> None:
    if group:
        reader.read_into(offset, group)
        for buffer in group:
            hasher.update(buffer)


def check_header(header: ObjectHeader, entry: PackEntry, where: str) -> None:
    """Whether the object at a place is the one that a table or an index lists there.

    Raises:
        WrongAddress: another object, or one of other tokens.
        DigestMismatch: the same, with other bytes or of another maker.
    """
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
    ) -> bool:
        """Add an object: its payload in `parts`, its place `(start, count, rows)`. False if the
        store has it already.

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
                self._drift(role, key, known.object.raw_digest, digest)
            return False
        if len(self._entries) == MAX_PACK_OBJECTS:
            raise StoreError(
                f"a capture holds at most {MAX_PACK_OBJECTS} objects",
                hint="capture the beginning of the prompt first, then the rest",
            )
        length = sum(len(part) for part in parts)
        fingerprint = self._fingerprint.digest
        header = ObjectHeader(role, key, fingerprint, digest, digest, length, length, *place)
        entry = PackEntry(key, digest, fingerprint, self._position, length, *place, role)
        self._write(header.pack())
        for part in parts:
            self._write(part)
        self._write(padding(self._position))
        self._entries.append(entry)
        return True

    def _drift(self, role: Role, key: bytes, stored: bytes, computed: bytes) -> None:
        self._result.drifted.append(key.hex())
        detail = f"stored {stored.hex()}, computed {computed.hex()}"
        self._store.index.alarm("drift", key, role, detail)

    def _write(self, data: bytes | memoryview) -> None:
        if self._writer is None:
            self._writer = self._store.blobs.writer()
        self._writer.write(data)
        self._position += len(data)

    def commit(self) -> CaptureResult:
        """Publish the pack, then list its objects. A capture of nothing publishes nothing.

        Raises:
            StoreFull, StoreReadOnly, StoreError: publishing failed; nothing is listed, and the
                capture is aborted.
        """
        if not self._entries or self._writer is None:
            return self._result
        try:
            end = pack_end(self._entries, self._position)
            self._write(end)
            name = pack_name(end)
            self._note_fingerprint()
            self._writer.publish(name)
        except BaseException:
            self.abort()
            raise
        drifted = self._store.index.add_pack(name, self._position, self._entries)
        for entry, stored in drifted:  # another process was faster, with other bytes
            self._drift(entry.role, entry.key, stored, entry.raw_digest)
        self._result.pack = name
        self._result.pack_bytes = self._position
        self._result.objects_written = len(self._entries)
        return self._result

    def _note_fingerprint(self) -> None:
        # Kept as a blob too, so that a rebuilt index can still name the fields that differ. The
        # index comes second: it must not say that a blob is there whose writing failed.
        if self._store.index.has_fingerprint(self._fingerprint.digest):
            return
        text = self._fingerprint.to_json()
        writer = self._store.blobs.writer()
        writer.write(text.encode())
        writer.publish(self._fingerprint.hex + FINGERPRINT_SUFFIX)
        self._store.index.note_fingerprint(self._fingerprint.digest, text)

    def abort(self) -> None:
        """Forget the capture. Idempotent."""
        if self._writer is not None:
            self._writer.abort()
