"""The other steps of `gpu_exactness.py`: time, joules, memory and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

import harness
from gpu_run import Run, artifact_bytes
from kvgraft.engines.base import Engine
from kvgraft.limits import OBJECT_HEADER_BYTES
from kvgraft.plan import plan_calls
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.state import Role
from kvgraft.store.chunks import ChunkStore

GRAFTS = 100
RESTORES = 5
ANSWER_TOKENS = 16  # what a replay decodes at most
_FACTOR_BYTES = 256 * 1024**2  # as much of each role is compressed


# --- restore against recompute ------------------------------------------------------------------


def restore(run: Run, label: str) -> dict[str, Any]:
    """From the call to the next-token logits: restored from a file in the page cache, computed by
    the plan, and computed in one stock call."""
    engine, meter, ids = run.engine, run.meter, run.document(label)
    with closing(run.store("documents")) as chunks:
        captured = compute_prompt(engine, chunks, ids, keep=Keep.ALL)
        captured.context.close()
        if captured.report.capture_error or captured.report.drifted:
            raise RuntimeError(f"the capture failed: {captured.report}")
        whole = compute_prompt(engine, chunks, ids, keep=Keep.NOTHING)
        restored = whole.context.logits()
        whole.context.close()
        if whole.report.calls_made:
            raise RuntimeError(f"the restore was not whole: {whole.report}")
        planned = meter.median_seconds(partial(_prompt, engine, None, ids), 2)
        one_call, reason = _monolithic_seconds(run, ids)
        first = meter.seconds(partial(_prompt, engine, chunks, ids))
        again = meter.median_seconds(partial(_prompt, engine, chunks, ids), RESTORES)
    recompute = min(planned, one_call or planned)
    return {
        "tokens": len(ids),
        "loaded_bytes": whole.report.loaded_bytes,
        "capture_seconds": captured.report.capture_seconds,
        "capture_compute_seconds": captured.report.compute_seconds,
        "restore_seconds": again,
        "first_restore_seconds": first,
        "first_read_seconds": whole.report.restore_seconds,
        "planned_seconds": planned,
        "monolithic_seconds": one_call,
        "monolithic_reason": reason,
        "vs_planned": planned / again,
        "vs_monolithic": one_call / again if one_call else None,
        "vs_recompute": recompute / again,
        "bits_equal": np.array_equal(restored, _prompt(engine, None, ids)),
    }


def _prompt(
    engine: Engine, chunks: ChunkStore | None, ids: np.ndarray, decode: int = 0
) -> np.ndarray:
    """Next-token logits of a prompt, after so many greedy tokens."""
    context = compute_prompt(engine, chunks, ids, keep=Keep.NOTHING, room=decode).context
    try:
        logits = context.logits()
        for _ in range(decode):
            context.decode(int(np.argmax(logits)))
            logits = context.logits()
        return logits
    finally:
        context.close()


def _monolithic_seconds(run: Run, ids: np.ndarray) -> tuple[float | None, str]:
    work = partial(run.engine.monolithic_logits, ids)
    try:
        work()
        return run.meter.median_seconds(work, 2), ""
    except RuntimeError as error:  # what torch raises where the device's memory does not suffice
        return None, f"not measured: {str(error).splitlines()[0]}"


def _capture(run: Run, chunks: ChunkStore, label: str) -> np.ndarray:
    """The document's ids, the document stored."""
    ids = run.document(label)
    compute_prompt(run.engine, chunks, ids, keep=Keep.ALL).context.close()
    return ids


# --- energy, memory, bytes ----------------------------------------------------------------------


def energy(run: Run) -> dict[str, Any]:
    """Joules of the device for 16,000 tokens restored and computed (the cheaper way), and for an
    answer of 16 tokens behind them."""
    engine, joules = run.engine, run.meter.joules
    if run.meter.no_energy:
        return {"vs_recompute": None, "reason": run.meter.no_energy}
    with closing(run.store("documents")) as chunks:
        ids = _capture(run, chunks, "16k")
        works = {
            "restore": partial(_prompt, engine, chunks, ids),
            "planned": partial(_prompt, engine, None, ids),
            "monolithic": partial(engine.monolithic_logits, ids),
            "replayed_answer": partial(_prompt, engine, chunks, ids, ANSWER_TOKENS),
            "computed_answer": partial(_prompt, engine, None, ids, ANSWER_TOKENS),
        }
        found: dict[str, Any] = {"tokens": len(ids), "idle_watts": run.meter.idle_watts()}
        for name, work in works.items():
            try:
                found[name] = joules(work)
            except RuntimeError as error:  # as in `_monolithic_seconds`
                found[name] = {"joules": None, "reason": str(error).splitlines()[0]}
    computed = [found[name]["joules"] for name in ("planned", "monolithic")]
    cheaper = min(value for value in computed if value is not None)
    return {**found, "vs_recompute": cheaper / found["restore"]["joules"]}


def memory(run: Run) -> dict[str, Any]:
    """Memory before and after a hundred grafts of 2,000 tokens, each of which decodes a token."""
    with closing(run.store("documents")) as chunks:
        ids = _capture(run, chunks, "2k")
        graft = partial(_prompt, run.engine, chunks, ids, 1)
        for _ in range(3):
            graft()
        before, host = run.meter.memory(), harness.resident_bytes()
        for _ in range(GRAFTS):
            graft()
        after = run.meter.memory()
    growth = {
        name: None if value is None else after[name] - value  # type: ignore[operator]
        for name, value in before.items()
    }
    return {
        "grafts": GRAFTS,
        "tokens": len(ids),
        "weights_bytes": run.weights_bytes,
        "before": before,
        "after": after,
        "growth": growth,
        "host_growth_bytes": harness.resident_bytes() - host,
        "reason": run.meter.no_memory,
    }


def sizes(run: Run) -> dict[str, Any]:
    """Bytes per token at 16,000 tokens: by the layers, and of what a restore reads."""
    engine, spec = run.engine, run.engine.spec
    with closing(run.store("documents")) as chunks:
        ids = _capture(run, chunks, "16k")
        computed = compute_prompt(engine, chunks, ids, keep=Keep.NOTHING)
        computed.context.close()
    near = sum(layer.token_bytes * layer.window for layer in spec.layers if layer.window)
    calls = plan_calls(len(ids), engine.form, engine.context_tokens)
    first = spec.near_start(len(ids))
    return {
        "tokens": len(ids),
        "full_bytes_per_token": spec.bytes_per_token(Role.KEEP),
        "windows_bytes": near,
        "one_window_per_token": spec.bytes_per_token(Role.KEEP) + near / len(ids),
        # windows are stored by calls, so more tokens than the window has
        "near_tokens_stored": sum(call.count for call in calls if call.end > first),
        "expected_per_token": artifact_bytes(engine, len(ids)) / len(ids),
        "loaded_per_token": computed.report.loaded_bytes / len(ids),
        "kib_per_token": computed.report.loaded_bytes / len(ids) / 1024,
    }


def compressed(run: Run) -> dict[str, Any]:
    """What byte-shuffle and zstd 1 leave of it. Weights that learned nothing may not give states
    whose bytes compress like a real model's."""
    caution = "random weights: their states' bytes may not be representative"
    try:
        import blosc2
    except ImportError as error:
        return {"share": None, "reason": f"the package blosc2: {error}", "note": caution}
    found: dict[str, Any] = {"note": caution}
    shuffled = partial(
        blosc2.compress,
        typesize=2,
        clevel=1,
        filter=blosc2.Filter.SHUFFLE,
        codec=blosc2.Codec.ZSTD,
    )
    whole = left = 0.0
    with closing(run.store("documents")) as chunks:
        _capture(run, chunks, "16k")
        for role in run.engine.spec.roles:
            size = packed = 0
            for payload in _payloads(chunks, role):
                size, packed = size + len(payload), packed + len(shuffled(bytes(payload)))
                if size >= _FACTOR_BYTES:
                    break
            found[role.name.lower()] = packed / size
            stored = artifact_bytes(run.engine, run.tokens("16k"), roles=(role,))
            whole, left = whole + stored, left + stored * packed / size
    return {**found, "share": left / whole}


def _payloads(chunks: ChunkStore, role: Role) -> Iterator[bytearray]:
    for entry in chunks.index.all_entries():
        if entry.object.role is role:
            payload = bytearray(entry.object.stored_length)
            reader = chunks.blobs.open(entry.pack)
            try:
                reader.read_into(entry.object.offset + OBJECT_HEADER_BYTES, [memoryview(payload)])
            finally:
                reader.close()
            yield payload


def transfer(run: Run) -> dict[str, Any]:
    """How fast bytes come to the device: what a restore's upload is bound by."""
    return dict(run.meter.transfer_gb_per_second(8 * 1024**2 if run.tiny else 512 * 1024**2))
