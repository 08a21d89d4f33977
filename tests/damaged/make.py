"""Every way a pack is damaged in the tests, as functions of a sound one.

`PYTHONPATH=src:tests python tests/damaged/make.py` writes the committed files of `v1/` from the
golden pack `plain`. `manifest.json` says what each damage must come to.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from golden.read import Golden
from kvgraft.blob.pack import TRAILER_BYTES, PackEntry, pack_end, padding
from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.limits import MAX_OBJECT_BYTES, OBJECT_HEADER_BYTES
from kvgraft.state import Role, StateSpec
from kvgraft.store.scan import read_entries

HERE = Path(__file__).parent
MARKER = "kvgraft-marker"  # what the trap makes in the current folder when it is unpickled
COMMITTED = ("cut_in_header", "flip_tensor", "pickle_instead", "resigned_shape", "swapped_objects")


@dataclass(frozen=True)
class Sound:
    """A pack as it was written, and the model whose state it holds."""

    data: bytes
    entries: tuple[PackEntry, ...]
    spec: StateSpec

    @property
    def table_offset(self) -> int:
        return len(self.data) - TRAILER_BYTES - 136 * len(self.entries)

    def find(self, role: Role, number: int) -> PackEntry:
        """The `number`-th object of a role."""
        return [entry for entry in self.entries if entry.role is role][number]

    @property
    def victim(self) -> PackEntry:
        """A full block that has neighbours on both sides."""
        return self.find(Role.KEEP, 1)

    def payload(self, entry: PackEntry) -> bytes:
        start = entry.offset + OBJECT_HEADER_BYTES
        return self.data[start : start + entry.stored_length]

    def head(self, entry: PackEntry) -> bytes:
        return payload_head(self.spec, entry.role, ChunkPlace(entry.start, entry.count, entry.rows))


Make = Callable[[Sound], bytes]
DAMAGES: dict[str, Make] = {}


def damage(make: Make) -> Make:
    DAMAGES[make.__name__] = make
    return make


def patched(data: bytes, offset: int, content: bytes) -> bytes:
    return data[:offset] + content + data[offset + len(content) :]


def flipped(data: bytes, offset: int) -> bytes:
    return patched(data, offset, bytes([data[offset] ^ 0x10]))


def resigned_header(data: bytes, offset: int) -> bytes:
    """The header at `offset` with its own digest made right again."""
    header = data[offset : offset + 224]
    return patched(data, offset + 224, blake3(header).digest())


def with_table(sound: Sound, entries: list[PackEntry]) -> bytes:
    """The same objects behind another table, with digest and trailer made right."""
    return sound.data[: sound.table_offset] + pack_end(entries, sound.table_offset)


def with_payloads(sound: Sound, payloads: dict[PackEntry, bytes]) -> bytes:
    """Other payloads, and every digest, length and offset made right: a careful forger's pack."""
    out = bytearray()
    entries = []
    for entry in sound.entries:
        payload = payloads.get(entry, sound.payload(entry))
        digest = blake3(payload).digest()
        header = bytearray(sound.data[entry.offset : entry.offset + OBJECT_HEADER_BYTES])
        header[80:144] = digest + digest
        header[144:160] = 2 * len(payload).to_bytes(8, "little")
        header[224:] = blake3(header[:224]).digest()
        entries.append(
            replace(entry, raw_digest=digest, offset=len(out), stored_length=len(payload))
        )
        out += header + payload
        out += padding(len(out))
    return bytes(out + pack_end(entries, len(out)))


# --- lengths ----------------------------------------------------------------------------------


@damage
def cut_to_nothing(sound: Sound) -> bytes:
    return b""


@damage
def cut_in_header(sound: Sound) -> bytes:
    return sound.data[:100]


@damage
def cut_in_tensor(sound: Sound) -> bytes:
    return sound.data[: sound.victim.offset + sound.victim.size_bytes - 100]


@damage
def cut_before_trailer(sound: Sound) -> bytes:
    return sound.data[:-TRAILER_BYTES]


@damage
def cut_last_byte(sound: Sound) -> bytes:
    return sound.data[:-1]


@damage
def one_byte_appended(sound: Sound) -> bytes:
    return sound.data + b"\x00"


# --- flipped bits -----------------------------------------------------------------------------


@damage
def flip_header(sound: Sound) -> bytes:
    return flipped(sound.data, sound.victim.offset + 20)


@damage
def flip_header_magic(sound: Sound) -> bytes:
    return flipped(sound.data, sound.victim.offset)


@damage
def flip_head(sound: Sound) -> bytes:
    return flipped(sound.data, sound.victim.offset + OBJECT_HEADER_BYTES + 20)


@damage
def flip_ids(sound: Sound) -> bytes:
    entry = sound.victim
    return flipped(sound.data, entry.offset + OBJECT_HEADER_BYTES + len(sound.head(entry)))


@damage
def flip_tensor(sound: Sound) -> bytes:
    entry = sound.victim
    return flipped(sound.data, entry.offset + entry.size_bytes - entry.stored_length // 3)


@damage
def flip_last_payload_byte(sound: Sound) -> bytes:
    return flipped(sound.data, sound.victim.offset + sound.victim.size_bytes - 1)


@damage
def flip_end_point(sound: Sound) -> bytes:
    entry = sound.find(Role.END, 0)
    return flipped(sound.data, entry.offset + entry.size_bytes - 1)


@damage
def flip_padding(sound: Sound) -> bytes:
    return flipped(sound.data, sound.victim.offset + sound.victim.size_bytes)


@damage
def flip_table(sound: Sound) -> bytes:
    return flipped(sound.data, sound.table_offset + 5)


@damage
def flip_trailer_magic(sound: Sound) -> bytes:
    return flipped(sound.data, len(sound.data) - TRAILER_BYTES)


@damage
def flip_trailer_digest(sound: Sound) -> bytes:
    return flipped(sound.data, len(sound.data) - TRAILER_BYTES + 24)


@damage
def flip_trailer_end(sound: Sound) -> bytes:
    return flipped(sound.data, len(sound.data) - 1)


# --- whole objects ----------------------------------------------------------------------------


@damage
def swapped_objects(sound: Sound) -> bytes:
    first, second = sound.find(Role.KEEP, 0), sound.find(Role.KEEP, 1)
    assert first.size_bytes == second.size_bytes
    one, two = (sound.data[e.offset : e.offset + e.size_bytes] for e in (first, second))
    return patched(patched(sound.data, first.offset, two), second.offset, one)


@damage
def zeros_instead(sound: Sound) -> bytes:
    return bytes(len(sound.data))


class _Trap:
    def __reduce__(self) -> Any:
        return os.mkdir, (MARKER,)


def trap() -> bytes:
    """A pickle that makes a folder when it is loaded."""
    return pickle.dumps(_Trap(), protocol=4)


@damage
def pickle_instead(sound: Sound) -> bytes:
    return trap()


@damage
def pickle_of_the_same_size(sound: Sound) -> bytes:
    return trap().ljust(len(sound.data), b"\x00")


@damage
def pickle_as_payload(sound: Sound) -> bytes:
    entry = sound.victim
    return with_payloads(sound, {entry: trap().ljust(entry.stored_length, b"\x00")})


# --- headers that say something else, with their digest made right ----------------------------


def _header(sound: Sound, offset: int, content: bytes) -> bytes:
    at = sound.victim.offset
    return resigned_header(patched(sound.data, at + offset, content), at)


@damage
def header_other_version(sound: Sound) -> bytes:
    return _header(sound, 8, b"\x02\x00")


@damage
def header_unknown_role(sound: Sound) -> bytes:
    return _header(sound, 10, b"\x09")


@damage
def header_other_role(sound: Sound) -> bytes:
    return _header(sound, 10, b"\x02")


@damage
def header_unknown_codec(sound: Sound) -> bytes:
    return _header(sound, 11, b"\x01")


@damage
def header_reserved_bytes(sound: Sound) -> bytes:
    return _header(sound, 200, b"\x01")


@damage
def header_other_fingerprint(sound: Sound) -> bytes:
    return _header(sound, 48, bytes(32))


@damage
def header_absurd_length(sound: Sound) -> bytes:
    return _header(sound, 144, 2 * (2**63).to_bytes(8, "little"))


@damage
def header_other_start(sound: Sound) -> bytes:
    return _header(sound, 160, (2**40).to_bytes(8, "little"))


@damage
def tensor_behind_resigned_stored_digest(sound: Sound) -> bytes:
    # The raw digest, which index and table hold, stays as it was.
    data = flip_tensor(sound)
    entry = sound.victim
    start = entry.offset + OBJECT_HEADER_BYTES
    digest = blake3(data[start : start + entry.stored_length]).digest()
    return resigned_header(patched(data, entry.offset + 112, digest), entry.offset)


@damage
def tensor_behind_resigned_digests(sound: Sound) -> bytes:
    data = flip_tensor(sound)
    entry = sound.victim
    start = entry.offset + OBJECT_HEADER_BYTES
    digest = blake3(data[start : start + entry.stored_length]).digest()
    return resigned_header(patched(data, entry.offset + 80, digest + digest), entry.offset)


# --- tables and trailers that say something else, with their digest made right ----------------


def _entries(sound: Sound, **changed: Any) -> bytes:
    entries = [
        replace(entry, **changed) if entry is sound.victim else entry for entry in sound.entries
    ]
    return with_table(sound, entries)


@damage
def table_overlap(sound: Sound) -> bytes:
    return _entries(sound, offset=0)


@damage
def table_not_aligned(sound: Sound) -> bytes:
    return _entries(sound, offset=sound.victim.offset + 1)


@damage
def table_beyond_the_pack(sound: Sound) -> bytes:
    return _entries(sound, offset=2**62)


@damage
def table_absurd_length(sound: Sound) -> bytes:
    return _entries(sound, stored_length=MAX_OBJECT_BYTES + 1)


@damage
def table_absurd_start(sound: Sound) -> bytes:
    return _entries(sound, start=2**64 - 1)


@damage
def table_other_key(sound: Sound) -> bytes:
    return _entries(sound, key=bytes(32))


@damage
def trailer_other_version(sound: Sound) -> bytes:
    return patched(sound.data, len(sound.data) - TRAILER_BYTES + 8, b"\x02\x00")


@damage
def trailer_count_zero(sound: Sound) -> bytes:
    return patched(sound.data, len(sound.data) - TRAILER_BYTES + 12, bytes(4))


@damage
def trailer_count_huge(sound: Sound) -> bytes:
    return patched(sound.data, len(sound.data) - TRAILER_BYTES + 12, b"\xff\xff\xff\xff")


@damage
def trailer_other_offset(sound: Sound) -> bytes:
    offset = (sound.table_offset - 4096).to_bytes(8, "little")
    return patched(sound.data, len(sound.data) - TRAILER_BYTES + 16, offset)


# --- forged payloads: every digest is right, and the index was built from them -----------------


def _reheaded(sound: Sound, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The victim with another JSON header of the same length."""
    entry = sound.victim
    head = sound.head(entry)
    header = json.loads(head[8:])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    assert len(text) <= len(head) - 8
    new = head[:8] + text.ljust(len(head) - 8)
    return with_payloads(sound, {entry: new + sound.payload(entry)[len(head) :]})


@damage
def resigned_shape(sound: Sound) -> bytes:
    def change(header: dict[str, Any]) -> None:
        shape = header["layer.0000.key"]["shape"]
        header["layer.0000.key"]["shape"] = [shape[1], shape[0], shape[2]]

    return _reheaded(sound, change)


@damage
def resigned_dtype(sound: Sound) -> bytes:
    def change(header: dict[str, Any]) -> None:
        header["layer.0000.key"]["dtype"] = "I32"

    return _reheaded(sound, change)


@damage
def resigned_position(sound: Sound) -> bytes:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"]["start"] = "0"

    return _reheaded(sound, change)


@damage
def resigned_tensor_order(sound: Sound) -> bytes:
    def change(header: dict[str, Any]) -> None:
        key, value = header["layer.0000.key"], header["layer.0000.value"]
        key["data_offsets"], value["data_offsets"] = value["data_offsets"], key["data_offsets"]

    return _reheaded(sound, change)


@damage
def resigned_ids(sound: Sound) -> bytes:
    entry = sound.victim
    payload = flipped(sound.payload(entry), len(sound.head(entry)))
    return with_payloads(sound, {entry: payload})


@damage
def resigned_head_length(sound: Sound) -> bytes:
    entry = sound.victim
    payload = patched(sound.payload(entry), 0, (2**60).to_bytes(8, "little"))
    return with_payloads(sound, {entry: payload})


@damage
def resigned_short_layer(sound: Sound) -> bytes:
    # The last layer of the chunk is one token short.
    entry = sound.victim
    tensor = sound.spec.tensors(entry.role, entry.count)[-1]
    row = tensor.size_bytes // tensor.shape[0]
    return with_payloads(sound, {entry: sound.payload(entry)[:-row]})


@damage
def resigned_neighbour(sound: Sound) -> bytes:
    # Another chunk's payload under this chunk's key.
    return with_payloads(sound, {sound.victim: sound.payload(sound.find(Role.KEEP, 0))})


def golden_sound() -> Sound:
    """The golden pack that the committed files come from."""
    golden = Golden("plain")
    reader = golden.store().blobs.open(golden.facts["pack"])
    entries = tuple(read_entries(reader, golden.facts["pack"]))
    return Sound(golden.pack, entries, golden.engine.spec)


if __name__ == "__main__":
    folder = HERE / "v1"
    folder.mkdir(exist_ok=True)
    pack = golden_sound()
    for name in COMMITTED:
        (folder / f"{name}.pack").write_bytes(DAMAGES[name](pack))
