"""Artifacts of format version 1 are read, restored, and written again byte for byte."""

from __future__ import annotations

import numpy as np
import pytest

from golden.read import GOLDEN, NAMES, Golden
from kvgraft.blob.payload import ChunkPlace, payload_head
from kvgraft.plan import chunk_keys, plan_calls, plan_root
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.state import LayerKind, Role
from kvgraft.store.check import check_store, reindex
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.memory import MemoryStore
from kvgraft.store.scan import read_entries
from toys import memory_chunks


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


def test_there_are_golden_files() -> None:
    assert NAMES == ["mixed", "plain", "recurrent"]
    assert sum(path.stat().st_size for path in GOLDEN.iterdir()) < 200_000


def test_the_table_is_the_recorded_one(golden: Golden) -> None:
    reader = golden.store().blobs.open(golden.facts["pack"])
    entries = read_entries(reader, golden.facts["pack"])
    assert len(golden.pack) == golden.facts["pack_bytes"]
    assert [
        {
            "role": entry.role.name,
            "key": entry.key.hex(),
            "raw_digest": entry.raw_digest.hex(),
            "offset": entry.offset,
            "stored_length": entry.stored_length,
            "start": entry.start,
            "count": entry.count,
            "rows": entry.rows,
        }
        for entry in entries
    ] == golden.facts["objects"]
    assert {entry.fingerprint for entry in entries} == {golden.fingerprint.digest}
    assert golden.fingerprint.hex == golden.facts["fingerprint"]


def test_keys_follow_from_ids_salt_and_fingerprint(golden: Golden) -> None:
    form = golden.engine.form
    calls = plan_calls(len(golden.ids), form, golden.engine.context_tokens)
    keys = chunk_keys(plan_root(golden.fingerprint.digest, golden.salt), golden.ids, calls)
    pairs = zip(keys, calls, strict=True)
    place = {key.hex(): (call.start, call.count, call.rows) for key, call in pairs}
    assert {
        item["key"]: (item["start"], item["count"], item["rows"])
        for item in golden.facts["objects"]
    } == place


def test_the_mixed_pack_covers_every_kind_of_object() -> None:
    items = Golden("mixed").facts["objects"]
    roles = [item["role"] for item in items]
    assert (roles.count("KEEP"), roles.count("NEAR"), roles.count("END")) == (3, 3, 1)
    assert {(item["count"], item["rows"]) for item in items} == {(16, 16), (5, 8)}


def test_a_chunk_store_checks_and_lists_it(golden: Golden) -> None:
    store = golden.store()
    assert reindex(store).problems == []
    report = check_store(store)
    assert report.problems == []
    assert (report.packs, report.objects, report.unlisted_objects) == (
        1,
        len(golden.facts["objects"]),
        0,
    )


def test_it_is_restored_into_a_context(golden: Golden) -> None:
    store = golden.store()
    reindex(store)
    done = compute_prompt(golden.engine, store, golden.ids, salt=golden.salt, keep=Keep.NOTHING)
    assert done.report.misses == []
    assert done.report.reused_tokens == len(golden.ids)
    assert golden.engine.forwards == []
    layers = done.context.arena.layers  # type: ignore[attr-defined]
    end = [golden.tensors(i) for i in golden.facts["objects"] if i["role"] == "END"][-1]
    for number, layer in enumerate(layers):
        role = "KEEP" if layer.spec.kind is LayerKind.FULL else "NEAR"
        chunks = [golden.tensors(i) for i in golden.facts["objects"] if i["role"] == role]
        for (kind, _, _), buffer in zip(layer.spec.parts, layer.parts, strict=True):
            stored = np.concatenate([chunk[f"layer.{number:04d}.{kind}"] for chunk in chunks])
            assert layer.rows == layer.kept > 0
            assert buffer[0, : layer.rows].tobytes() == stored[-layer.kept :].tobytes()
        for state, buffer in zip(layer.spec.states, layer.states, strict=True):
            assert buffer[0].tobytes() == end[f"layer.{number:04d}.{state.name}"].tobytes()
    assert done.context.logits().tobytes() == (end["hidden"][None] @ golden.engine.head).tobytes()
    done.context.close()


def test_payloads_open_with_safetensors(golden: Golden) -> None:
    spec = golden.engine.spec
    for item in golden.facts["objects"]:
        tensors = golden.tensors(item)
        wanted = spec.tensors(Role[item["role"]], item["count"])
        assert {name: tensor.shape for name, tensor in tensors.items()} == {
            tensor.name: tensor.shape for tensor in wanted
        }
        ids = golden.ids[item["start"] : item["start"] + item["count"]]
        assert tensors["ids"].tobytes() == ids.tobytes()


def test_the_same_tensors_are_written_as_the_same_bytes(golden: Golden) -> None:
    store = ChunkStore(MemoryStore(), memory_chunks().index)
    capture = store.capture(golden.fingerprint)
    for item in golden.facts["objects"]:
        role = Role[item["role"]]
        place = ChunkPlace(item["start"], item["count"], item["rows"])
        tensors = golden.tensors(item)
        names = [tensor.name for tensor in golden.engine.spec.tensors(role, place.count)]
        parts: list[bytes | memoryview] = [payload_head(golden.engine.spec, role, place)]
        parts += [tensors[name].tobytes() for name in names]
        key = bytes.fromhex(item["key"])
        capture.add(role, key, (place.start, place.count, place.rows), parts)
    result = capture.commit()
    assert result.pack == golden.facts["pack"]
    data = bytearray(result.pack_bytes)
    store.blobs.open(golden.facts["pack"]).read_into(0, [memoryview(data)])
    assert data == golden.pack
    name = f"{golden.fingerprint.hex}.fingerprint"
    text = bytearray(len(golden.fingerprint_text))
    store.blobs.open(name).read_into(0, [memoryview(text)])
    assert text.decode() == golden.fingerprint_text
