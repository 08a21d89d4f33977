"""Reading whole packs, every byte verified: what checking and reindexing stand on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blake3 import blake3

from kvgraft.blob.header import parse_header
from kvgraft.blob.pack import (
    PACK_SUFFIX,
    TRAILER_BYTES,
    PackEntry,
    pack_name,
    padding,
    parse_table,
    parse_trailer,
)
from kvgraft.errors import (
    ArtifactError,
    DigestMismatch,
    FormatError,
    KvgraftError,
    StoreError,
    UsageError,
    WrongAddress,
)
from kvgraft.identity import Fingerprint
from kvgraft.limits import MAX_PAYLOAD_HEADER_BYTES, OBJECT_HEADER_BYTES, READ_SLICE_BYTES
from kvgraft.store.base import BlobReader, BlobStore
from kvgraft.store.chunks import FINGERPRINT_SUFFIX, check_header

Progress = Callable[[int, int], None]  # done bytes, total bytes


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: a stable `code`, where it is (a blob, `pack@offset`, a key), and
    what it is.

    Codes are those of `kvgraft.errors`, and: `unknown_blob`, `fingerprint_missing`,
    `index_missing_pack`, `index_other_place`, `drift`.
    """

    code: str
    where: str
    what: str


def read_entries(reader: BlobReader, name: str) -> list[PackEntry]:
    """The entries of a pack, its end verified.

    Raises:
        ArtifactError: this is not a whole pack, or not the one of that name.
        StoreError: it cannot be read.
    """
    size = reader.size_bytes
    trailer = _read(reader, max(0, size - TRAILER_BYTES), min(size, TRAILER_BYTES))
    offset, length, digest = parse_trailer(trailer, size, where=name)
    table = _read(reader, offset, length)
    entries = parse_table(table, offset, digest, where=name)
    if pack_name(table + trailer) != name:
        raise WrongAddress("the pack has not the name that its table gives it", where=name)
    return entries


def _read(reader: BlobReader, offset: int, count: int) -> bytes:
    data = bytearray(count)
    reader.read_into(offset, [memoryview(data)])
    return bytes(data)


class Scan:
    """Reads the packs and fingerprints of a store. What is wrong goes to `problems`.

    `packs` and `fingerprints` are the names found, `total_bytes` their size.
    """

    def __init__(self, blobs: BlobStore, progress: Progress) -> None:
        self.problems: list[Problem] = []
        self.packs: list[str] = []
        self.fingerprints: list[str] = []
        self.total_bytes = 0
        self._blobs = blobs
        self._progress = progress
        self._done_bytes = 0
        self._buffer = memoryview(bytearray(READ_SLICE_BYTES))
        kinds = {PACK_SUFFIX: self.packs, FINGERPRINT_SUFFIX: self.fingerprints}
        for name in sorted(blobs.names()):
            kind = next((kind for kind in kinds if name.endswith(kind)), None)
            if kind is None:
                self.problem("unknown_blob", name, "neither a pack nor a fingerprint")
                continue
            kinds[kind].append(name)
            self.total_bytes += self._size(name)

    def _size(self, name: str) -> int:
        try:
            reader = self._blobs.open(name)
        except KvgraftError:
            return 0  # said when its turn comes
        size = reader.size_bytes
        reader.close()
        return size

    def pack(self, name: str) -> tuple[int, list[PackEntry]] | None:
        """A pack's size in bytes and its sound objects; None if its table cannot be believed."""
        began = self._done_bytes
        try:
            reader = self._blobs.open(name)
        except StoreError as error:
            self._refused(error, name)
            return None
        try:
            entries = read_entries(reader, name)
            sound = [entry for entry in entries if self._object(reader, entry, name)]
            return reader.size_bytes, sound
        except (ArtifactError, StoreError) as error:
            self._refused(error, name)
            return None
        finally:
            self._advance(began + reader.size_bytes - self._done_bytes)
            reader.close()

    def fingerprint(self, name: str) -> Fingerprint | None:
        """The fingerprint in a blob, if it is the one that its name says."""
        try:
            reader = self._blobs.open(name)
        except StoreError as error:
            self._refused(error, name)
            return None
        try:
            if reader.size_bytes > MAX_PAYLOAD_HEADER_BYTES:
                raise FormatError(f"a fingerprint of {reader.size_bytes} bytes", where=name)
            return _fingerprint(_read(reader, 0, reader.size_bytes), name)
        except (ArtifactError, StoreError) as error:
            self._refused(error, name)
            return None
        finally:
            self._advance(reader.size_bytes)
            reader.close()

    def _object(self, reader: BlobReader, entry: PackEntry, name: str) -> bool:
        where = f"{name}@{entry.offset}"
        try:
            header = parse_header(_read(reader, entry.offset, OBJECT_HEADER_BYTES), where=where)
            check_header(header, entry, where)
            offset = entry.offset + OBJECT_HEADER_BYTES
            end = entry.offset + entry.size_bytes
            hasher = blake3()
            while offset < end:
                piece = self._buffer[: min(len(self._buffer), end - offset)]
                reader.read_into(offset, [piece])
                hasher.update(piece)
                offset += len(piece)
                self._advance(len(piece))
            if hasher.digest() != header.stored_digest:
                raise DigestMismatch("the object's bytes are not those that were written")
            if any(_read(reader, end, len(padding(end)))):
                # No look-up reads them, so the object itself is as good as before.
                self.problem("artifact_format", f"{name}@{end}", "padding bytes are not zero")
        except (ArtifactError, StoreError) as error:
            self._refused(error, where)
            return False
        return True

    def _advance(self, count: int) -> None:
        self._done_bytes += count
        self._progress(min(self._done_bytes, self.total_bytes), self.total_bytes)

    def _refused(self, error: KvgraftError, where: str) -> None:
        self.problem(error.code, error.where or where, error.what)

    def problem(self, code: str, where: str, what: str) -> None:
        """Note something that is wrong."""
        self.problems.append(Problem(code, where, what))


def _fingerprint(data: bytes, name: str) -> Fingerprint:
    try:
        fingerprint = Fingerprint.from_json(data.decode())
    except (UsageError, UnicodeDecodeError) as error:
        raise FormatError("this is not a fingerprint", where=name) from error
    if fingerprint.to_json().encode() != data:
        raise FormatError("the fingerprint is not in canonical form", where=name)
    if fingerprint.hex + FINGERPRINT_SUFFIX != name:
        raise WrongAddress("the fingerprint has not the name that its digest gives it", where=name)
    return fingerprint
