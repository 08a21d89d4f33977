"""The spine's figures: restore, plan, capture, first token, look-up, replay. Ratios in one run.

    python benchmarks/spine.py [--json FILE] [--only restore,plan,capture,ttft,lookup,replay]

Each figure is the median of several runs, taken alone, in a process of its own. The targets are
those the project set itself; one that is missed is printed as missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness

TARGETS: dict[str, tuple[str, float]] = {
    "restore_vs_prefill_gemma3": (">=", 400),
    "restore_vs_prefill_smollm2": (">=", 120),
    "restore_vs_read_copy": ("<=", 1.5),
    "extra_memory_ratio": ("<=", 1.25),
    "replay_decode_tokens_median": ("<=", 16),
    "replay_right_share": (">=", 1.0),
    "capture_overhead": ("<=", 0.05),
    "plan_overhead": ("<=", 1.25),
    "ttft_ratio": (">=", 10),
    "lookup_us_100k": ("<=", 15),
    "lookup_flatness": ("<=", 1.5),
}
TOKENS = 4096
REPEATS = 7


def prompt_ids(engine: Any, count: int, start: int = 0) -> list[int]:
    """`count` token ids of real prose."""
    from kvgraft.evidence.samples import corpus
    from kvgraft.prompt import encode

    text = corpus()[start : start + count * 12]
    return list(encode(engine.tokenizer, text)[:count])


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the function returned."""
    began = time.perf_counter()
    out = function()
    return time.perf_counter() - began, out


def open_model(name: str) -> Any:
    from kvgraft.engines.registry import open_engine

    return open_engine(name, threads=harness.threads())


def measure_restore(model: str) -> dict[str, Any]:
    """Restore of 4,096 tokens from a warm file, against one monolithic prefill of the same
    tokens, and against reading the same bytes into a prepared buffer."""
    import numpy as np

    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_model(model)
    ids = prompt_ids(engine, TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        chunks = open_local(Path(folder))
        compute_prompt(engine, chunks, ids, keep=Keep.ALL).context.close()
        prefill = median(
            timed(lambda: engine.monolithic_logits(np.array(ids)))[0] for _ in range(3)
        )
        totals, parts, size = [], [], 0
        for _ in range(REPEATS + 1):
            seconds, computed = timed(
                lambda: compute_prompt(engine, chunks, ids, keep=Keep.NOTHING)
            )
            assert computed.report.calls_made == 0, computed.report
            totals.append(seconds)
            parts.append(computed.report.restore_seconds)
            size = computed.report.loaded_bytes
            computed.context.close()
        # What a restore leaves for later to copy shows in the first call after it.
        extra = _first_call_extra(engine, chunks, ids)
        entries = _restored_entries(engine, chunks, ids)
        floor = _read_floor(Path(folder), entries, verified=False)
        verified_floor = _read_floor(Path(folder), entries, verified=True)
        memory = _peak_memory(model, folder, ids)
        chunks.close()
    restore = median(totals[1:]) + max(0.0, extra)
    return {
        "prefill_seconds": prefill,
        "restore_seconds": restore,
        "first_restore_seconds": totals[0],
        "first_call_extra_seconds": extra,
        "restored_bytes": size,
        "read_floor_seconds": floor,
        "verified_read_floor_seconds": verified_floor,
        "ratio": prefill / restore,
        "vs_read": restore / floor,
        "vs_verified_read": restore / verified_floor,
        "memory_ratio": memory / size,
    }


def _first_call_extra(engine: Any, chunks: Any, ids: list[int]) -> float:
    """Seconds by which the first call after a restore is slower than the one after it.

    The smallest of several of each: what is left for the first call to copy is always there,
    while the rest of the difference is the machine's."""
    from kvgraft.reuse import Keep, compute_prompt

    firsts, seconds = [], []
    for _ in range(REPEATS):
        context = compute_prompt(engine, chunks, ids, keep=Keep.NOTHING, room=16).context
        first, _ = timed(partial(context.decode, ids[0]))
        second, _ = timed(partial(context.decode, ids[0]))
        context.close()
        firsts.append(first)
        seconds.append(second)
    return min(firsts) - min(seconds)


def _restored_entries(engine: Any, chunks: Any, ids: list[int]) -> list[Any]:
    """The index entries that a restore of the whole prompt reads."""
    from kvgraft.plan import as_token_ids, chunk_keys, plan_calls, plan_root
    from kvgraft.state import Role

    tokens = as_token_ids(ids)
    calls = plan_calls(len(tokens), engine.form, engine.context_tokens)
    keys = chunk_keys(plan_root(engine.fingerprint.digest), tokens, calls)
    near = engine.spec.near_start(len(tokens))
    entries = []
    for key, call in zip(keys, calls, strict=True):
        found = chunks.find(key)
        wanted = [Role.KEEP] if Role.KEEP in found else []
        wanted += [Role.NEAR] if Role.NEAR in found and call.end > near else []
        wanted += [Role.END] if Role.END in found else []
        entries += [found[role] for role in wanted]
    return entries


def _read_floor(folder: Path, entries: list[Any], *, verified: bool) -> float:
    """Seconds to read the same bytes from the same warm file into a prepared buffer, in two
    threads as the restore does; `verified`: hashed with BLAKE3 in 8 MiB pieces as well."""
    from concurrent.futures import ThreadPoolExecutor

    from blake3 import blake3

    total = sum(entry.object.stored_length for entry in entries)
    buffer = memoryview(bytearray(total))
    places, offset = [], 0
    for entry in entries:
        places.append((entry, offset))
        offset += entry.object.stored_length
    files = {path.name: os.open(path, os.O_RDONLY) for path in folder.rglob("*.pack")}

    def read(place: tuple[Any, int]) -> None:
        entry, at = place
        piece = buffer[at : at + entry.object.stored_length]
        os.preadv(files[entry.pack], [piece], entry.object.offset + 256)
        if verified:
            hasher = blake3()
            for first in range(0, len(piece), 8 * 1024 * 1024):
                hasher.update(piece[first : first + 8 * 1024 * 1024])
            hasher.digest()

    with ThreadPoolExecutor(2) as pool:
        seconds = [timed(lambda: list(pool.map(read, places)))[0] for _ in range(REPEATS + 1)]
    for file in files.values():
        os.close(file)
    return median(seconds[1:])


def _peak_memory(model: str, folder: str, ids: list[int]) -> float:
    """Bytes by which a process that has the model loaded grows at its peak during one restore."""
    job = {"model": model, "folder": folder, "ids": ids}
    out = harness.run_part(__file__, "peak", job)
    return float(out["peak_bytes"])


def part_peak(job: dict[str, Any]) -> dict[str, Any]:
    """In a fresh process: load, run one short call, then one restore."""
    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_model(job["model"])
    compute_prompt(engine, None, job["ids"][:40], keep=Keep.NOTHING).context.close()
    chunks = open_local(Path(job["folder"]))
    before = harness.resident_bytes()
    harness.reset_peak()
    computed = compute_prompt(engine, chunks, job["ids"], keep=Keep.NOTHING)
    assert computed.report.calls_made == 0
    return {"peak_bytes": harness.peak_resident_bytes() - before}


def measure_plan(model: str) -> dict[str, Any]:
    """The plan against one monolithic call at 2,048 tokens."""
    import numpy as np

    from kvgraft.reuse import Keep, compute_prompt

    engine = open_model(model)
    ids = prompt_ids(engine, 2048)
    planned, stock = [], []
    for _ in range(4):
        stock.append(timed(lambda: engine.monolithic_logits(np.array(ids)))[0])
        seconds, computed = timed(lambda: compute_prompt(engine, None, ids, keep=Keep.NOTHING))
        computed.context.close()
        planned.append(seconds)
    ratios = [mine / other for mine, other in zip(planned[1:], stock[1:], strict=True)]
    return {"planned": median(planned[1:]), "stock": median(stock[1:]), "ratio": median(ratios)}


def measure_capture(model: str) -> dict[str, Any]:
    """What capturing adds to a prefill of 2,048 tokens, as a share; runs alternate."""
    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_model(model)
    shares, plain_seconds = [], []
    for number in range(5):
        ids = prompt_ids(engine, 2048, start=number * 5000)
        plain = partial(compute_prompt, engine, None, ids, keep=Keep.NOTHING)
        seconds, computed = timed(plain)
        computed.context.close()
        plain_seconds.append(seconds)
        with tempfile.TemporaryDirectory() as folder:
            chunks = open_local(Path(folder))
            computed = compute_prompt(engine, chunks, ids, keep=Keep.BLOCKS)
            shares.append(computed.report.capture_seconds / computed.report.compute_seconds)
            computed.context.close()
            chunks.close()
    return {"share": median(shares), "plain_seconds": median(plain_seconds)}


def measure_ttft(model: str) -> dict[str, Any]:
    """First token of a 32-token question behind a stored 4,096-token prompt, cold and grafted."""
    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_model(model)
    ids = prompt_ids(engine, TOKENS)
    question = prompt_ids(engine, 32, start=100_000)

    def first_token(chunks: Any) -> float:
        def run() -> Any:
            computed = compute_prompt(engine, chunks, ids + question, keep=Keep.NOTHING, room=64)
            computed.context.logits().argmax()
            return computed

        seconds, computed = timed(run)
        computed.context.close()
        return seconds

    with tempfile.TemporaryDirectory() as folder:
        chunks = open_local(Path(folder))
        compute_prompt(engine, chunks, ids, keep=Keep.BLOCKS).context.close()
        cold = median(first_token(None) for _ in range(3))
        warm = median(first_token(chunks) for _ in range(REPEATS))
        chunks.close()
    return {"cold_seconds": cold, "warm_seconds": warm, "ratio": cold / warm}


def measure_lookup(_: str) -> dict[str, Any]:
    """Microseconds per look-up by exact address, canonicalisation and revocation included."""
    small, large = (harness.lookup_us(count) for count in (1_000, 100_000))
    return {"us_1k": small, "us_100k": large, "flatness": large / small}


def measure_replay(model: str) -> dict[str, Any]:
    """The demonstration's problems: decode tokens per replay, and answers equal to the record."""
    from kvgraft.cli.demo import DemoOptions, run_demo

    result = run_demo(DemoOptions(model=model, threads=harness.threads()))
    totals = result["totals"]
    replayed = [row["after"] for row in result["rows"] if row["after"]["how"] == "replayed"]
    right = sum(after["right"] for after in replayed)
    return {
        "tokens_median": totals["replay_tokens_median"],
        "right_share": right / len(replayed) if replayed else None,
        "replayed": len(replayed),
        "totals": totals,
    }


PARTS: dict[str, tuple[Callable[[str], dict[str, Any]], tuple[str, ...]]] = {
    "restore": (measure_restore, ("demo:smollm2", "demo:gemma3")),
    "plan": (measure_plan, ("demo:smollm2", "demo:gemma3")),
    "capture": (measure_capture, ("demo:smollm2", "demo:gemma3")),
    "ttft": (measure_ttft, ("demo:smollm2",)),
    "lookup": (measure_lookup, ("-",)),
    "replay": (measure_replay, ("demo:smollm2",)),
}


def figures_of(seen: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The named figures, worst model where there are several; None is "not measured"."""

    def get(part: str, model: str, name: str) -> float | None:
        return seen.get(f"{part} {model}", {}).get(name)

    def worst(part: str, name: str) -> float | None:
        values = [get(part, model, name) for model in PARTS[part][1]]
        return max(value for value in values if value is not None) if any(values) else None

    smollm2, gemma3 = "demo:smollm2", "demo:gemma3"
    return {
        "restore_vs_prefill_gemma3": get("restore", gemma3, "ratio"),
        "restore_vs_prefill_smollm2": get("restore", smollm2, "ratio"),
        "restore_vs_read_copy": worst("restore", "vs_read"),
        "extra_memory_ratio": worst("restore", "memory_ratio"),
        "replay_decode_tokens_median": get("replay", smollm2, "tokens_median"),
        "replay_right_share": get("replay", smollm2, "right_share"),
        "capture_overhead": worst("capture", "share"),
        "plan_overhead": worst("plan", "ratio"),
        "ttft_ratio": get("ttft", smollm2, "ratio"),
        "lookup_us_100k": get("lookup", "-", "us_100k"),
        "lookup_flatness": get("lookup", "-", "flatness"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return harness.answer_part(
            arguments.part,
            {"peak": part_peak, "measure": lambda job: PARTS[job["part"]][0](job["model"])},
        )
    seen = {}
    for part in arguments.only.split(","):
        for model in PARTS[part][1]:
            print(f"measuring {part} {model}", file=sys.stderr, flush=True)
            seen[f"{part} {model}"] = harness.run_part(
                __file__, "measure", {"part": part, "model": model}
            )
    harness.report(
        "spine",
        figures_of(seen),
        TARGETS,
        seen,
        arguments.json,
        f"python benchmarks/spine.py --only {arguments.only}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
