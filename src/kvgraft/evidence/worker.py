"""One process of a proof: `python -m kvgraft.evidence.worker JOB.json`.

`prepare` tokenises the samples and captures their stored parts; `cold` computes every prompt
whole, without that store; `graft` computes them with it. Each writes what it saw; none sees what
another one got. Progress goes to standard output, a JSON object a line.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvgraft.engines.base import Context, Engine
from kvgraft.engines.registry import open_engine
from kvgraft.errors import EngineError, KvgraftError
from kvgraft.evidence.controls import CONTROLS, altered_store, full_blocks
from kvgraft.evidence.process import tell, tell_progress
from kvgraft.evidence.samples import DECODE_STEPS, Sample, make_samples
from kvgraft.plan import Call
from kvgraft.reuse import Computed, Keep, compute_prompt
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

_CONTROL_SUFFIX = 16  # tokens behind an altered state: one short call


@dataclass(frozen=True)
class Job:
    """What a worker is told: `folder` is where samples, stores and results lie."""

    kind: str
    model: str
    folder: str
    samples: int
    seed: int
    longest: int
    options: dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run the job in the named file; 0, or the error's exit status with the error as JSON."""
    try:
        job = Job(**json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        _run(job)
    except KvgraftError as error:
        tell({"error": error.as_dict()})
        return error.exit_status
    return 0


def _run(job: Job) -> None:
    folder = Path(job.folder)
    engine = open_engine(job.model, progress=tell_progress, **job.options)
    if job.kind == "prepare":
        samples = make_samples(engine, job.samples, job.seed, job.longest)
        text = json.dumps([asdict(sample) for sample in samples])
        (folder / "samples.json").write_text(text, encoding="utf-8")
    else:
        text = (folder / "samples.json").read_text(encoding="utf-8")
        samples = [Sample(**{**raw, "ids": tuple(raw["ids"])}) for raw in json.loads(text)]
    store = {"prepare": "stored", "graft": "stored", "cold": "rebuilt"}[job.kind]
    chunks = open_local(folder / store)
    try:
        results = {"prepare": _prepare, "cold": _cold, "graft": _graft}[job.kind](
            engine, chunks, samples, folder
        )
    finally:
        chunks.close()
    results["fingerprint"] = dict(engine.fingerprint.fields)
    results["block"] = engine.form.block
    (folder / f"{job.kind}.json").write_text(json.dumps(results), encoding="utf-8")


def _prepare(
    engine: Engine, chunks: ChunkStore, samples: list[Sample], folder: Path
) -> dict[str, Any]:
    for number, sample in enumerate(samples):
        stored = sample.ids[: sample.stored]
        computed = compute_prompt(engine, chunks, stored, keep=_keep(sample))
        computed.context.close()
        if computed.report.capture_error or computed.report.drifted:
            raise EngineError(f"the capture failed: {computed.report}")
        tell_progress("capture", number + 1, len(samples))
    return {"raw_digests": raw_digests(chunks)}


def raw_digests(chunks: ChunkStore) -> dict[str, str]:
    """`key/role` -> raw digest of every object in a store, all in hex."""
    return {
        f"{entry.object.key.hex()}/{entry.object.role.name}": entry.object.raw_digest.hex()
        for entry in chunks.index.all_entries()
    }


def _cold(
    engine: Engine, chunks: ChunkStore, samples: list[Sample], folder: Path
) -> dict[str, Any]:
    rows = []
    for number, sample in enumerate(samples):
        # Captured into a store of its own, to be compared with what the other process stored.
        seen = _observe(engine, chunks, sample, _keep(sample))
        if seen["reused_tokens"]:
            raise EngineError("a cold run reused something; the proof would be void")
        np.save(folder / f"cold-{number}.npy", seen.pop("vectors"))
        if engine.capabilities.monolithic:
            np.save(
                folder / f"monolithic-{number}.npy", engine.monolithic_logits(np.array(sample.ids))
            )
        rows.append(seen)
        tell_progress("cold", number + 1, len(samples))
    return {"samples": rows, "raw_digests": raw_digests(chunks)}


def _keep(sample: Sample) -> Keep:
    return Keep.ALL if sample.stored == len(sample.ids) else Keep.BLOCKS


def _graft(
    engine: Engine, chunks: ChunkStore, samples: list[Sample], folder: Path
) -> dict[str, Any]:
    rows = []
    for number, sample in enumerate(samples):
        seen = _observe(engine, chunks, sample)
        np.save(folder / f"graft-{number}.npy", seen.pop("vectors"))
        rows.append(seen)
        tell_progress("graft", number + 1, len(samples))
    return {"samples": rows, "controls": _controls(engine, samples)}


def _observe(
    engine: Engine, chunks: ChunkStore, sample: Sample, keep: Keep = Keep.NOTHING
) -> dict[str, Any]:
    """SHA-256 over all logits of the suffix (the calls behind the expected graft) and of 8 decode
    steps; beside it the vectors that chose a token, float32 `[steps, vocab]`."""
    digest = hashlib.sha256()

    def see(call: Call, context: Context) -> None:
        if call.start >= sample.reused:
            digest.update(np.ascontiguousarray(context.call_logits(), np.float32).data)

    computed = compute_prompt(
        engine,
        chunks,
        sample.ids,
        keep=keep,
        points=(sample.stored,),
        room=DECODE_STEPS + 1,
        on_call=see,
    )
    try:
        vectors = _decode(computed, digest)
    finally:
        computed.context.close()
    report = computed.report
    return {
        "sha256": digest.hexdigest(),
        "vectors": vectors,
        "tokens": report.tokens,
        "reused_tokens": report.reused_tokens,
        "calls_made": report.calls_made,
        "restore_seconds": report.restore_seconds,
        "compute_seconds": report.compute_seconds,
        "misses": report.misses,
    }


def _decode(computed: Computed, digest: Any) -> np.ndarray:
    context = computed.context
    vectors = []
    for step in range(DECODE_STEPS + 1):
        logits = np.ascontiguousarray(context.logits(), np.float32)
        digest.update(logits.data)
        vectors.append(logits)
        if step < DECODE_STEPS:
            context.decode(int(np.argmax(logits)))
    return np.stack(vectors)


def _controls(engine: Engine, samples: list[Sample]) -> list[dict[str, Any]]:
    """Serve altered states for the longest grafted samples; each must change the digest."""
    block = engine.form.block

    def usable(sample: Sample) -> int:
        """Stored blocks with at least one token behind them."""
        return min(sample.stored, len(sample.ids) - 1) // block

    fit = [sample for sample in samples if usable(sample) >= 2]  # a block, and its neighbour
    fit.sort(key=lambda sample: len(sample.ids), reverse=True)
    rows: list[dict[str, Any]] = []
    for sample, donor in zip(fit[: len(fit) // 2], fit[::-1], strict=False):
        tokens = min(usable(sample), usable(donor)) * block
        stored = ChunkStore(MemoryStore(), Index(None))
        for ids in (sample.ids[:tokens], donor.ids[:tokens]):
            compute_prompt(engine, stored, ids).context.close()
        prefix, other = (full_blocks(engine, one.ids, tokens) for one in (sample, donor))
        ids = sample.ids[: tokens + min(block, _CONTROL_SUFFIX)]
        part = Sample(ids, tokens, tokens, 1)
        honest = _observe(engine, stored, part)
        for control in CONTROLS:
            altered = altered_store(engine, stored, prefix, other, control)
            seen = _observe(engine, altered, part)
            altered.close()
            served = seen["reused_tokens"] == part.reused and seen["calls_made"] == part.calls
            changed = seen["sha256"] != honest["sha256"]
            rows.append({"control": control, "served": served, "changed": changed})
        stored.close()
        if len(rows) >= 3 * len(CONTROLS):
            break
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
