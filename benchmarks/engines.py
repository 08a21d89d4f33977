"""Engines beside each other, and the load policy: restore against prefill, bytes, break-even.

    python benchmarks/engines.py [--json FILE] [--only restore,bytes,policy]

Each part runs in a process of its own, alone; every ratio is from one run. llama.cpp is measured
where it is installed (`kvgraft[llamacpp]`); else its figure is not measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness
from spine import prompt_ids, timed

TARGETS: dict[str, tuple[str, float]] = {
    "llamacpp_restore_vs_prefill_gemma3": (">=", 800),
    "transformers_restore_vs_prefill_gemma3": (">=", 200),
    "gemma4_12b_kib_per_token": ("<=", 36.6),
    "policy_worst_loss": ("<=", 0.05),
}
TOKENS = 8192
REPEATS = 7
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8000)
# The local store as it is, and stores behind a line: seconds until the first byte, bytes a second.
LINES = {"local": None, "20 ms, 100 MB/s": (0.02, 100e6), "60 ms, 30 MB/s": (0.06, 30e6)}


def measure_restore(job: dict[str, Any]) -> dict[str, Any]:
    """8,192 tokens: computing the prompt on its plan, with nothing stored or captured, against
    restoring it whole from a warm file, every check included."""
    from kvgraft.engines.registry import open_engine
    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_engine(job["model"], engine=job["engine"], threads=harness.threads())
    ids = prompt_ids(engine, TOKENS)
    assert len(ids) == TOKENS
    with tempfile.TemporaryDirectory() as folder:
        chunks = open_local(Path(folder))
        captured = compute_prompt(engine, chunks, ids, keep=Keep.ALL)
        captured.context.close()
        prefill, computed = timed(lambda: compute_prompt(engine, None, ids))
        expected = computed.context.logits().tobytes()
        computed.context.close()
        seconds, size = [], 0
        for _ in range(REPEATS + 1):
            took, computed = timed(lambda: compute_prompt(engine, chunks, ids, keep=Keep.NOTHING))
            assert computed.report.calls_made == 0, computed.report
            seconds.append(took)
            size = computed.report.loaded_bytes
            same = computed.context.logits().tobytes() == expected
            assert same, "the restored logits are not those of the cold run"
            computed.context.close()
        chunks.close()
    return {
        "prefill_seconds": prefill,
        "restore_seconds": median(seconds[1:]),
        "first_restore_seconds": seconds[0],
        "restored_bytes": size,
        "stored_bytes": captured.report.captured_bytes,
        "stored_by_kind": captured.report.captured_by_kind,
        "ratio": prefill / median(seconds[1:]),
    }


def measure_bytes(job: dict[str, Any]) -> dict[str, Any]:
    """Bytes per token of prompts to a Gemma-4-12B-shaped model that are kept at their full blocks,
    as pages and chats are, from the shape and the policy alone: no weights are needed."""
    from kvgraft.blob.payload import ChunkPlace, payload_length
    from kvgraft.engines.transformers.engine import PLAN
    from kvgraft.plan import plan_calls, settled_calls
    from kvgraft.points import kept_roles
    from subjects import gemma4_config, spec_of

    spec = spec_of(gemma4_config("12b"))
    out = {}
    for tokens in (2048, 4096, 8192, 16_000, 16_128, 32_768):
        calls = plan_calls(tokens, PLAN, 1 << 20)
        kinds: dict[str, int] = {}
        total = 0
        roles = kept_roles(spec, calls, settled_calls(calls, PLAN), tail=False)
        for call, kept in zip(calls, roles, strict=True):
            for role in kept:
                place = ChunkPlace(call.start, call.count, call.rows)
                total += payload_length(spec, role, place)
                for kind, size in spec.bytes_by_kind(role, call.count).items():
                    kinds[kind] = kinds.get(kind, 0) + size
        out[str(tokens)] = {"bytes": total, "kib_per_token": total / tokens / 1024, "kinds": kinds}
    return out


class Line:
    """A blob store behind a line that is slower than the disk: it waits, and uses no core."""

    def __init__(self, blobs: Any, latency: float, bytes_per_second: float) -> None:
        self._blobs = blobs
        self._latency = latency
        self._rate = bytes_per_second

    def open(self, name: str) -> Any:
        time.sleep(self._latency)
        return _SlowReader(self._blobs.open(name), self._rate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


class _SlowReader:
    def __init__(self, reader: Any, rate: float) -> None:
        self._reader = reader
        self._rate = rate
        self.size_bytes = reader.size_bytes

    def read_into(self, offset: int, buffers: Sequence[memoryview]) -> None:
        # Two threads read at once, each over its half of the line.
        time.sleep(2 * sum(len(buffer) for buffer in buffers) / self._rate)
        self._reader.read_into(offset, buffers)

    def close(self) -> None:
        self._reader.close()


def measure_policy(job: dict[str, Any]) -> dict[str, Any]:
    """For every length and line: seconds to compute, seconds to load, and what the policy chose
    after it had seen other prompts of other lengths. The loss is that of the choice."""
    from kvgraft.breakeven import Load, Rates
    from kvgraft.engines.registry import open_engine
    from kvgraft.reuse import Keep, compute_prompt
    from kvgraft.store.check import open_local

    engine = open_engine(job["model"], threads=harness.threads())
    ids = prompt_ids(engine, max(LENGTHS))
    lengths = [length for length in LENGTHS if length <= len(ids)]

    def seconds(chunks: Any, length: int, load: Load) -> tuple[float, Any]:
        took, done = timed(
            lambda: compute_prompt(engine, chunks, ids[:length], keep=Keep.NOTHING, load=load)
        )
        done.context.close()
        return took, done.report

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        chunks = open_local(Path(folder))
        for length in lengths:
            compute_prompt(engine, chunks, ids[:length], keep=Keep.ALL).context.close()
        computed = {
            n: median(seconds(chunks, n, Load.NEVER)[0] for _ in range(_repeats(n)))
            for n in lengths
        }
        calls = chunks.rates(engine.fingerprint.digest).calls
        fast = chunks.blobs
        for name, line in LINES.items():
            chunks.blobs = Line(fast, *line) if line else fast
            rates = Rates(calls=calls)  # of loading over this line nothing is known yet
            chunks._rates[engine.fingerprint.digest] = rates
            loaded = {
                n: median(seconds(chunks, n, Load.ALWAYS)[0] for _ in range(3)) for n in lengths
            }
            for n in lengths:
                _, report = seconds(chunks, n, Load.MEASURED)
                chosen = loaded[n] if report.reused_tokens else computed[n]
                best = min(loaded[n], computed[n])
                rows.append(
                    {
                        "line": name,
                        "tokens": n,
                        "compute_seconds": computed[n],
                        "load_seconds": loaded[n],
                        "chose": "load" if report.reused_tokens else "compute",
                        "loss": chosen / best - 1,
                    }
                )
        chunks.blobs = fast
        chunks.close()
    return {"rows": rows, "worst_loss": max(row["loss"] for row in rows)}


def _repeats(tokens: int) -> int:
    return 9 if tokens <= 512 else 5 if tokens <= 1024 else 3


def _jobs(parts: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    if "restore" in parts:
        for engine in ("transformers", "llamacpp"):
            yield f"restore {engine}", "restore", {"model": "demo:gemma3", "engine": engine}
    if "bytes" in parts:
        yield "bytes gemma4 12b", "bytes", {}
    if "policy" in parts:
        for model in ("demo:smollm2", "demo:gemma3"):
            yield f"policy {model}", "policy", {"model": model}


PARTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "restore": measure_restore,
    "bytes": measure_bytes,
    "policy": measure_policy,
}


def figures_of(seen: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The named figures; None is "not measured"."""
    losses = [out["worst_loss"] for name, out in seen.items() if name.startswith("policy")]
    sizes = seen.get("bytes gemma4 12b", {}).get("16000", {})
    return {
        "llamacpp_restore_vs_prefill_gemma3": seen.get("restore llamacpp", {}).get("ratio"),
        "transformers_restore_vs_prefill_gemma3": seen.get("restore transformers", {}).get("ratio"),
        "gemma4_12b_kib_per_token": sizes.get("kib_per_token"),
        "policy_worst_loss": max(losses) if losses else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return harness.answer_part(arguments.part, PARTS)
    from kvgraft.engines.registry import is_installed

    seen = {}
    for name, part, job in _jobs(arguments.only.split(",")):
        if not is_installed(job.get("engine", "transformers")):
            print(f"{name}: not measured, the engine is not installed", file=sys.stderr)
            continue
        print(f"measuring {name}", file=sys.stderr, flush=True)
        seen[name] = harness.run_part(__file__, part, job)
    command = f"python benchmarks/engines.py --only {arguments.only}"
    harness.report("engines", figures_of(seen), TARGETS, seen, arguments.json, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
