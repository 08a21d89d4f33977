"""Packs: objects at aligned places, a digested table, a trailer that fits; nothing else is one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.blob.pack import (
    TRAILER_BYTES,
    PackEntry,
    pack_end,
    pack_name,
    padding,
    parse_table,
    parse_trailer,
)
from kvgraft.errors import DigestMismatch, FormatError, KvgraftError, Truncated, UnsupportedVersion
from kvgraft.limits import MAX_OBJECT_BYTES, MAX_PACK_OBJECTS
from kvgraft.state import Role

ENTRY_BYTES = 136


def layout(*lengths: int) -> tuple[list[PackEntry], int]:
    """Entries for payloads of these lengths, as a writer places them, and where they end."""
    entries: list[PackEntry] = []
    end = 0
    for number, length in enumerate(lengths):
        key, digest = bytes([number]) * 32, bytes([100 + number]) * 32
        entries.append(
            PackEntry(key, digest, b"f" * 32, end, length, 16 * number, 16, 16, Role.KEEP)
        )
        end += 256 + length
        end += -end % 4096
    return entries, end


ENTRIES, END = layout(100, 3840, 5000)


def read(end: bytes, objects_end: int = END) -> list[PackEntry]:
    offset, length, digest = parse_trailer(end[-TRAILER_BYTES:], objects_end + len(end))
    assert (offset, length) == (objects_end, len(end) - TRAILER_BYTES)
    return parse_table(end[:length], offset, digest)


def trailer(**changed: bytes) -> bytes:
    """The sound pack's trailer with some bytes replaced; names are offsets: `at8=b"..."`."""
    data = bytearray(pack_end(ENTRIES, END)[-TRAILER_BYTES:])
    for name, content in changed.items():
        offset = int(name.removeprefix("at"))
        data[offset : offset + len(content)] = content
    return bytes(data)


PACK_BYTES = END + len(pack_end(ENTRIES, END))


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_round_trip(lengths: list[int]) -> None:
    entries, end = layout(*lengths)
    assert read(pack_end(entries, end), end) == entries


def test_objects_are_aligned_by_zeros() -> None:
    for position in (0, 1, 4095, 4096, 4097):
        gap = padding(position)
        assert (position + len(gap)) % 4096 == 0
        assert len(gap) < 4096
        assert not any(gap)


def test_the_name_covers_table_and_trailer() -> None:
    end = pack_end(ENTRIES, END)
    assert pack_name(end) == blake3(end).hexdigest() + ".pack"
    other = pack_end([replace(ENTRIES[0], key=b"x" * 32), *ENTRIES[1:]], END)
    assert pack_name(other) != pack_name(end)


@pytest.mark.parametrize("cut", [0, 1, 63])
def test_a_pack_shorter_than_its_trailer_is_refused(cut: int) -> None:
    with pytest.raises(Truncated):
        parse_trailer(trailer()[:cut], cut)


@pytest.mark.parametrize("more", [-4096, -1, 1, 4096])
def test_another_length_than_the_trailer_says_is_refused(more: int) -> None:
    with pytest.raises(Truncated, match="does not fit"):
        parse_trailer(trailer(), PACK_BYTES + more)


def test_a_blob_without_the_magic_is_refused() -> None:
    for offset in range(8):
        with pytest.raises(Truncated, match="does not end in a pack trailer"):
            parse_trailer(trailer(**{f"at{offset}": b"\xff"}), PACK_BYTES)


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_refused_by_number(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=str(version)):
        parse_trailer(trailer(at8=version.to_bytes(2, "little")), PACK_BYTES)


@pytest.mark.parametrize("offset", [10, 11, *range(56, 64)])
def test_reserved_trailer_bytes_are_zero(offset: int) -> None:
    with pytest.raises(FormatError, match="reserved"):
        parse_trailer(trailer(**{f"at{offset}": b"\x01"}), PACK_BYTES)


@pytest.mark.parametrize("count", [0, MAX_PACK_OBJECTS + 1, 2**32 - 1])
def test_absurd_counts_are_refused(count: int) -> None:
    # The length fits, so that the count alone is left to refuse.
    size = END + count * ENTRY_BYTES + TRAILER_BYTES
    with pytest.raises(FormatError, match=f"{count} objects"):
        parse_trailer(trailer(at12=count.to_bytes(4, "little")), size)


def test_a_table_that_does_not_start_on_a_page_is_refused() -> None:
    with pytest.raises(Truncated):
        parse_trailer(trailer(at16=(END - 1).to_bytes(8, "little")), PACK_BYTES - 1)


def test_every_flipped_bit_of_the_table_is_noticed() -> None:
    table = pack_end(ENTRIES, END)[:-TRAILER_BYTES]
    digest = blake3(table).digest()
    for bit in range(8 * len(table)):
        data = bytearray(table)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatch):
            parse_table(bytes(data), END, digest)


BAD_ENTRIES = {
    "overlap": (1, {"offset": 0}),
    "not aligned": (1, {"offset": 4097}),
    "a gap before it": (1, {"offset": 8192}),
    "the first not at 0": (0, {"offset": 4096}),
    "beyond the table": (2, {"offset": 2**63}),
    "into the table": (2, {"stored_length": 3 * 4096}),
    "short of the table": (2, {"stored_length": 100}),
    "no payload": (0, {"stored_length": 0}),
    "an absurd payload": (2, {"stored_length": MAX_OBJECT_BYTES + 1}),
    "no tokens": (0, {"count": 0}),
    "more tokens than rows": (0, {"rows": 15}),
    "an absurd position": (0, {"start": 2**64 - 1}),
}


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_a_signed_table_with_a_bad_entry_is_refused(name: str) -> None:
    number, changed = BAD_ENTRIES[name]
    entries = list(ENTRIES)
    entries[number] = replace(entries[number], **changed)
    with pytest.raises(FormatError):
        read(pack_end(entries, END))


@pytest.mark.parametrize(
    ("offset", "value"), [(128, 0), (128, 4), (128, 255), *((o, 1) for o in range(129, 136))]
)
def test_a_signed_table_with_an_unknown_role_or_reserved_bytes_is_refused(
    offset: int, value: int
) -> None:
    table = bytearray(pack_end(ENTRIES, END)[:-TRAILER_BYTES])
    table[offset] = value
    with pytest.raises(FormatError):
        parse_table(bytes(table), END, blake3(bytes(table)).digest())


@given(table=st.binary(min_size=ENTRY_BYTES, max_size=ENTRY_BYTES), offset=st.integers(0, 2**64))
def test_a_signed_table_of_noise_raises_only_typed_errors(table: bytes, offset: int) -> None:
    with pytest.raises(KvgraftError):
        parse_table(table, offset, blake3(table).digest())
