"""Exactness of `gpu_exactness.py`: samples computed cold by one process and grafted by another."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np

from gpu_run import Run
from kvgraft.engines.base import Context, Engine
from kvgraft.evidence.controls import CONTROLS, FLIPPED_BIT, altered_store, full_blocks
from kvgraft.evidence.prove import kl_divergence
from kvgraft.evidence.samples import DECODE_STEPS, Sample
from kvgraft.plan import Call
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

_EVERY_SUFFIX_ROW = 10  # of every tenth sample all logits of the suffix are compared


def cold(run: Run) -> dict[str, Any]:
    """Every sample computed whole without a store, and its first part captured into one."""
    shutil.rmtree(run.folder / "samples", ignore_errors=True)
    rows: list[dict[str, Any]] = []
    with closing(run.store("samples")) as chunks:
        for number, sample in enumerate(run.make_samples()):
            seen = observe(run.engine, None, sample, number)
            np.save(run.folder / f"cold-{number}.npy", seen.pop("vectors"))
            keep = Keep.ALL if sample.stored == len(sample.ids) else Keep.BLOCKS
            stored = sample.ids[: sample.stored]
            computed = compute_prompt(run.engine, chunks, stored, keep=keep)
            computed.context.close()
            if computed.report.capture_error or computed.report.drifted:
                raise RuntimeError(f"the capture failed: {computed.report}")
            rows.append({"sample": asdict(sample), **seen})
            if run.left() < 0:
                break
    out = {"fingerprint": run.engine.fingerprint.hex, "rows": rows}
    (run.folder / "cold.json").write_text(json.dumps(out), encoding="utf-8")
    return {"samples": len(rows), "fingerprint": dict(run.engine.fingerprint.fields)}


def exactness(run: Run) -> dict[str, Any]:
    """Every sample grafted from what `cold` stored, and compared with what it computed."""
    known = json.loads((run.folder / "cold.json").read_text(encoding="utf-8"))
    if known["fingerprint"] != run.engine.fingerprint.hex:
        raise RuntimeError("the two processes have different fingerprints")
    found = {"samples": 0, "sha_equal": 0, "reused_as_expected": 0, "argmax_equal": 0}
    kl_max, failures = 0.0, []
    samples = [
        Sample(**{**row["sample"], "ids": tuple(row["sample"]["ids"])}) for row in known["rows"]
    ]
    with closing(run.store("samples")) as chunks:
        for number, (sample, row) in enumerate(zip(samples, known["rows"], strict=True)):
            served = _altered(run.engine, chunks, sample) if number in run.alter else chunks
            seen = observe(run.engine, served, sample, number)
            mine, theirs = np.load(run.folder / f"cold-{number}.npy"), seen.pop("vectors")
            same = seen["sha256"] == row["sha256"]
            reused = (seen["reused"], seen["calls"]) == (sample.reused, sample.calls)
            found["samples"] += 1
            found["sha_equal"] += same
            found["reused_as_expected"] += reused
            found["argmax_equal"] += bool((mine.argmax(axis=1) == theirs.argmax(axis=1)).all())
            kl_max = float(np.maximum(kl_max, kl_divergence(mine, theirs).max()))
            if not (same and reused):
                failures.append(f"sample {number}, {len(sample.ids)} tokens: {seen}")
            if run.left() < 0:
                break
    controls = _controls(run.engine, samples)
    for path in run.folder.glob("cold-*.npy"):
        path.unlink()
    shutil.rmtree(run.folder / "samples")
    return {
        **found,
        "asked": run.samples,
        "kl_max": kl_max,
        "controls": controls,
        "controls_detected": sum(row["served"] and row["changed"] for row in controls.values()),
        "altered": list(run.alter),
        "tokens": [len(sample.ids) for sample in samples],
        "failures": failures,
    }


def observe(
    engine: Engine, chunks: ChunkStore | None, sample: Sample, number: int
) -> dict[str, Any]:
    """SHA-256 over the next-token logits of the prompt and of 8 decode steps; of every tenth sample
    over all logits of the suffix too, which are 268 MB a block with this vocabulary."""
    digest = hashlib.sha256()

    def see(call: Call, context: Context) -> None:
        if call.start >= sample.reused and number % _EVERY_SUFFIX_ROW == 0:
            digest.update(np.ascontiguousarray(context.call_logits(), np.float32).data)

    computed = compute_prompt(
        engine, chunks, sample.ids, keep=Keep.NOTHING, room=DECODE_STEPS + 1, on_call=see
    )
    vectors = []
    try:
        for step in range(DECODE_STEPS + 1):
            vectors.append(np.ascontiguousarray(computed.context.logits(), np.float32))
            digest.update(vectors[-1].data)
            if step < DECODE_STEPS:
                computed.context.decode(int(np.argmax(vectors[-1])))
    finally:
        computed.context.close()
    report = computed.report
    return {
        "sha256": digest.hexdigest(),
        "vectors": np.stack(vectors),
        "reused": report.reused_tokens,
        "calls": report.calls_made,
        "misses": report.misses,
    }


def _altered(engine: Engine, chunks: ChunkStore, sample: Sample) -> ChunkStore:
    prefix = full_blocks(engine, sample.ids, sample.stored)
    return altered_store(engine, chunks, prefix, prefix, FLIPPED_BIT)


def _controls(engine: Engine, samples: list[Sample]) -> dict[str, dict[str, bool]]:
    """Each kind of wrong state, served to the longest sample: whether a run took it, and whether
    its digest changed. A window's length is computed behind it: rows in a wrong order are only
    seen once they leave the window at the wrong time."""
    block = engine.form.block
    sample, donor = sorted(samples, key=lambda one: len(one.ids))[:-3:-1]
    shorter = min(len(sample.ids), len(donor.ids))
    tokens = max(block, (shorter - engine.spec.largest_window) // block * block)
    calls = -(-len(sample.ids) // block) - tokens // block
    part = Sample(sample.ids, tokens, tokens, calls)
    rows = {}
    with closing(ChunkStore(MemoryStore(), Index(None))) as stored:
        for ids in (sample.ids[:tokens], donor.ids[:tokens]):
            compute_prompt(engine, stored, ids).context.close()
        prefix, other = (full_blocks(engine, one.ids, tokens) for one in (sample, donor))
        honest = observe(engine, stored, part, 1)
        for control in CONTROLS:
            with closing(altered_store(engine, stored, prefix, other, control)) as altered:
                seen = observe(engine, altered, part, 1)
            served = (seen["reused"], seen["calls"]) == (tokens, calls)
            rows[control] = {"served": served, "changed": seen["sha256"] != honest["sha256"]}
    return rows
