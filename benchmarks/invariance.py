"""The invariance map: what leaves bits alone, for each engine, model and dtype, and at what price.

    python benchmarks/invariance.py [--subjects NAME ...] [--no-times] [--json FILE] [--record FILE]

A subject is ENGINE/MODEL/DTYPE. Cases are in `invariance_cases.py`; those that take other
processes (threads, instruction set) are here. Each subject runs in processes of its own, one at a
time, and is on disk as soon as it is done: a run that was stopped goes on from `--record`. Times
are ratios of one run; with --no-times, as on a busy machine, they are not measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness
from step_record import Record, Room

REAL = ("demo:smollm2", "demo:gemma3", "demo:qwen-coder-0.5b")
TINY = ("family:llama", "family:gemma3_text", "family:mixtral", "family:mamba2")
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
ISA = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # what oneDNN's kernels may use at most
# What grafting relies on; the rest is what the plan keeps away from.
RELIED_ON = ("repeated", "grafted at the block", "another process", "other device refused")

Found = dict[str, Any]


def subjects() -> list[str]:
    """All of them: llama.cpp's where it is installed."""
    out = [f"transformers/{model}/{dtype}" for model in (*REAL, *TINY) for dtype in DTYPES]
    if importlib.util.find_spec("llama_cpp"):
        out += [f"llamacpp/{model}/file" for model in REAL]
    return out


def open_subject(name: str, threads: int) -> tuple[Any, list[int]]:
    """The engine, and a prompt for it."""
    from invariance_cases import prompt_tokens

    engine, model, dtype = name.split("/")
    if not model.startswith("family:"):
        from kvgraft.engines.registry import open_engine
        from spine import prompt_ids

        options = {} if engine == "llamacpp" else {"dtype": DTYPES[dtype]}
        opened: Any = open_engine(model, engine=engine, threads=threads, **options)
        return opened, prompt_ids(opened, prompt_tokens(opened.form.block))
    import numpy as np
    import torch

    from kvgraft.testing.family_engine import engine_of

    torch.set_num_threads(threads)
    opened = engine_of(model.removeprefix("family:"), dtype)
    ids = np.random.default_rng(0).integers(3, opened.vocabulary, prompt_tokens(opened.form.block))
    return opened, [int(token) for token in ids]


# --- parts, each in a process of its own ------------------------------------------------------


def part_cases(job: Found) -> Found:
    """Every case of one subject."""
    from invariance_cases import CASES, Subject

    engine, ids = open_subject(job["subject"], harness.threads())
    subject = Subject(engine, ids, times=job["times"])
    out = {}
    for name, case in CASES.items():
        out[name] = case(subject)
        print(f"  {job['subject']}: {name}: {out[name]}", file=sys.stderr, flush=True)
    return out


def part_seen(job: Found) -> Found:
    """One prompt, with a store or without."""
    from invariance_cases import seen_of
    from kvgraft.store.check import open_local

    engine, ids = open_subject(job["subject"], job["threads"])
    if not job["store"]:
        return seen_of(engine, None, ids)
    with closing(open_local(Path(job["store"]))) as chunks:
        return seen_of(engine, chunks, ids)


PARTS = {"cases": part_cases, "seen": part_seen}


# --- what takes several processes -------------------------------------------------------------


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes that are started inside."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def across_processes(subject: str, times: bool) -> Found:
    """The same prompt in another process, with one thread, and with a narrower instruction set."""

    def seen(store: str = "", threads: int = harness.threads()) -> Found:
        job = {"subject": subject, "store": store, "threads": threads}
        return harness.run_part(__file__, "seen", job)

    with tempfile.TemporaryDirectory() as folder:
        first = seen(folder)
        again = seen()
        one = seen(threads=1)
        with environment(ISA):
            narrow = seen(folder)
        # Only one kind of engine listens to that variable, and only its refusal can be by name.
        listens = subject.startswith("transformers/")
        changed = sorted(
            name
            for name, value in first["fingerprint"].items()
            if narrow["fingerprint"][name] != value
        )
        refused = narrow["reused_tokens"] == 0 and narrow["misses"] == [
            "fingerprint: device differ"
        ]
    return {
        "another process": _same(first, again, times),
        "one thread": {**_same(first, one, times), "fields": _fields(first, one)},
        "narrower instructions": _same(first, narrow, times) if listens else None,
        "other device refused": (
            {"equal": refused and changed == ["device"], "fields": changed} if listens else None
        ),
    }


def _fields(one: Found, other: Found) -> list[str]:
    fields = one["fingerprint"]
    return sorted(name for name in fields if other["fingerprint"][name] != fields[name])


def _same(one: Found, other: Found, times: bool) -> Found:
    """Prefill and decode apart; the price is that of the other."""
    return {
        "equal": all(one[what] == other[what] for what in ("prefill", "decode")),
        "prefill_equal": one["prefill"] == other["prefill"],
        "decode_equal": one["decode"] == other["decode"],
        "time_ratio": other["seconds"] / one["seconds"] if times else None,
    }


# --- the map ----------------------------------------------------------------------------------


def cell(found: Found | None) -> str:
    """A case as a word or two."""
    if found is None:
        return "not asked"
    if found["equal"]:
        text = "equal"
    elif found.get("equal_at"):
        text = "at " + ",".join(map(str, found["equal_at"]))
    elif found.get("prefill_equal") or found.get("decode_equal"):
        text = "prefill only" if found["prefill_equal"] else "decode only"
    else:
        text = f"{found['max_abs']:.1e}" if "max_abs" in found else "differs"
    price = found.get("time_ratio")
    return text if price is None else f"{text} x{price:.2f}"


def show(results: dict[str, Found]) -> None:
    """A block for each subject, a line for each case."""
    for subject, cases in results.items():
        print(f"\n{subject}")
        for name, found in cases.items():
            kl = (found or {}).get("kl_nats")
            more = "" if kl is None else f", KL {kl:.1e} nats"
            print(f"  {name:<24} {cell(found)}{more}")


def figures(results: dict[str, Found]) -> dict[str, float | None]:
    """Of what grafting relies on: the share of subjects that it holds for."""
    out: dict[str, float | None] = {}
    for name in RELIED_ON:
        held = [found[name]["equal"] for found in results.values() if found.get(name)]
        out[name.replace(" ", "_")] = sum(held) / len(held) if held else None
    return out


def measure(options: argparse.Namespace) -> None:
    """Every subject's two steps, then the map."""
    times = not options.no_times
    record = Record(options.record, {"times": times}, resume=True)
    room = Room(None, options.record.parent, 0)
    results: dict[str, Found] = {}
    for subject in options.subjects:
        job = {"subject": subject, "times": times}
        record.run(
            f"{subject}: cases",
            lambda job=job: harness.run_part(__file__, "cases", job),  # type: ignore[misc]
            room,
            estimate_seconds=0,
        )
        record.run(
            f"{subject}: processes",
            lambda subject=subject: across_processes(subject, times),  # type: ignore[misc]
            room,
            estimate_seconds=0,
        )
        found = {**record.result(f"{subject}: cases"), **record.result(f"{subject}: processes")}
        if found:
            results[subject] = found
    show(results)
    print()
    harness.report(
        "invariance",
        figures(results),
        {name.replace(" ", "_"): (">=", 1.0) for name in RELIED_ON},
        {"subjects": results, "not_done": _not_done(record, options.subjects)},
        options.json,
        f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
    )


def _not_done(record: Record, names: Sequence[str]) -> dict[str, str]:
    steps = [f"{name}: {step}" for name in names for step in ("cases", "processes")]
    return {step: record.reason(step) for step in steps if not record.done(step)}


def main(arguments: list[str]) -> int:
    """See the module."""
    if arguments[:1] == ["--part"]:
        return harness.answer_part(arguments[1:], PARTS)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = subjects()
    parser.add_argument("--subjects", nargs="+", default=known, metavar="NAME", choices=known)
    parser.add_argument("--no-times", action="store_true", help="measure no times")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, default=Path("bench-invariance.json"))
    measure(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
