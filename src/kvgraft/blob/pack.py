"""A pack: many objects in one blob, with an offset table at its end (`docs/FORMAT.md`, "Pack").

A capture of a long prompt is one pack: one file, one fsync, one request to an object store.
Objects start at multiples of 4,096 bytes. The table and the trailer come last, so a pack is
written in one pass; a pack without a whole, digested trailer is not a pack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from kvgraft.blob.header import check_place
from kvgraft.errors import DigestMismatch, FormatError, Truncated, UnsupportedVersion
from kvgraft.limits import MAX_OBJECT_BYTES, MAX_PACK_OBJECTS, OBJECT_HEADER_BYTES, PACK_ALIGN_BYTES
from kvgraft.state import Role

PACK_MAGIC = b"KVGPACK\x00"
PACK_VERSION = 1
# key, raw digest, fingerprint, offset, stored length, start, count, rows, role, 7 zero bytes
_ENTRY = struct.Struct("<32s32s32sQQQIIB7s")
# magic, version, 2 zero bytes, object count, table offset, digest of the table
_TRAILER = struct.Struct("<8sH2sIQ32s")
TRAILER_BYTES = 64
PACK_SUFFIX = ".pack"


@dataclass(frozen=True)
class PackEntry:
    """One object in a pack. `offset` is where its header starts; `stored_length` its payload."""

    key: bytes
    raw_digest: bytes
    fingerprint: bytes
    offset: int
    stored_length: int
    start: int
    count: int
    rows: int
    role: Role

    @property
    def size_bytes(self) -> int:
        """Header and payload."""
        return OBJECT_HEADER_BYTES + self.stored_length


def padding(position: int) -> bytes:
    """Zero bytes up to the next object boundary."""
    return bytes(-position % PACK_ALIGN_BYTES)


def pack_end(entries: Sequence[PackEntry], position: int) -> bytes:
    """Table and trailer for a pack whose objects, with their padding, end at `position`."""
    table = b"".join(
        _ENTRY.pack(
            entry.key,
            entry.raw_digest,
            entry.fingerprint,
            entry.offset,
            entry.stored_length,
            entry.start,
            entry.count,
            entry.rows,
            entry.role.value,
            bytes(7),
        )
        for entry in entries
    )
    digest = blake3(table).digest()
    trailer = _TRAILER.pack(PACK_MAGIC, PACK_VERSION, bytes(2), len(entries), position, digest)
    return table + trailer.ljust(TRAILER_BYTES, b"\x00")


def pack_name(end: bytes) -> str:
    """The blob name of a pack with this `pack_end`.

    The table in it holds every key and digest, so equal captures are one pack.
    """
    return blake3(end).hexdigest() + PACK_SUFFIX


def parse_trailer(trailer: bytes, pack_bytes: int, *, where: str = "") -> tuple[int, int, bytes]:
    """`(table offset, table length, table digest)` from a pack's last 64 bytes.

    Raises:
        Truncated: the pack is shorter or longer than its trailer says.
        FormatError: not a pack, or a count over the limit.
        UnsupportedVersion: a pack version this release does not read.
    """
    if len(trailer) != TRAILER_BYTES:
        raise Truncated("the pack is shorter than its trailer", where=where)
    magic, version, zeros, count, offset, digest = _TRAILER.unpack_from(trailer)
    if magic != PACK_MAGIC:
        raise Truncated("the blob does not end in a pack trailer", where=where)
    if version != PACK_VERSION:
        raise UnsupportedVersion(f"pack version {version}, this reads {PACK_VERSION}", where=where)
    if zeros != bytes(2) or any(trailer[_TRAILER.size :]):
        raise FormatError("reserved trailer bytes are not zero", where=where)
    if not 1 <= count <= MAX_PACK_OBJECTS:
        raise FormatError(f"a pack of {count} objects", where=where)
    length = count * _ENTRY.size
    if offset + length + TRAILER_BYTES != pack_bytes or offset % PACK_ALIGN_BYTES:
        raise Truncated("the pack's length does not fit its table", where=where)
    return offset, length, digest


def parse_table(
    table: bytes, table_offset: int, digest: bytes, *, where: str = ""
) -> list[PackEntry]:
    """The entries of a pack whose table starts at `table_offset`.

    Objects and padding must fill the pack up to the table: nothing overlaps, nothing reaches into
    the table, no bytes lie where no entry speaks of them.

    Raises:
        DigestMismatch: the table is not as written.
        FormatError: an entry out of its range, or not where the one before it ends.
    """
    if blake3(table).digest() != digest:
        raise DigestMismatch("the pack's offset table is damaged", where=where)
    entries = []
    end = 0
    for position in range(0, len(table), _ENTRY.size):
        *fields, role, zeros = _ENTRY.unpack_from(table, position)
        try:
            entry = PackEntry(*[*fields, Role(role)])
        except ValueError:
            raise FormatError(f"unknown object role {role}", where=where) from None
        if zeros != bytes(7) or not 0 < entry.stored_length <= MAX_OBJECT_BYTES:
            raise FormatError("a pack entry is out of range", where=where)
        check_place(entry.start, entry.count, entry.rows, where)
        if entry.offset != end:
            raise FormatError("a pack entry does not start where the last one ends", where=where)
        end += entry.size_bytes
        end += len(padding(end))
        entries.append(entry)
    if end != table_offset:
        raise FormatError("the pack's objects do not end where its table starts", where=where)
    return entries
