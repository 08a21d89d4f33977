"""What the forms of a plan cost, and which of them leave a row's bits alone.

    python benchmarks/plan_form.py [--models ...] [--dtypes ...] [--json FILE]

Figures behind docs/decisions/0001-plan-form.md. Times are medians of interleaved rounds, so that
ratios hold on a machine with other work too; absolute times do not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from harness import machine, threads, versions
from kvgraft.engines.arena import Arena
from kvgraft.engines.gguf_convert import convert
from kvgraft.engines.modelcache import converted_root
from kvgraft.engines.resolve import resolve
from kvgraft.engines.transformers.engine import TransformersEngine
from kvgraft.engines.transformers.layers import ArenaCache
from kvgraft.engines.transformers.tokenizer import TransformersTokenizer
from kvgraft.plan import PlanForm
from kvgraft.reuse import Keep, compute_prompt
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.memory import MemoryStore

TOKENS = 2048
BLOCKS = (128, 256, 512)
ROWS = (1, 8, 16, 32, 64, 128, 256)
TAIL_STARTS = (512, 4096)
BLOCK = 256
PLAN_OVERHEAD = 1.25  # the plan may cost this much of one monolithic pass

Figures = dict[str, float]


def progress(stage: str, done: int, total: int) -> None:
    """Conversion is the only long step before the first line."""
    print(f"\r{stage} {done * 100 // max(total, 1)} %   ", end="", file=sys.stderr, flush=True)


def load_model(name: str, dtype: str) -> tuple[Any, TransformersTokenizer]:
    """The model behind a name, and its tokenizer."""
    found = resolve(name, progress=progress, say=lambda line: print(line, file=sys.stderr))
    folder = found.folder
    if found.gguf is not None:
        folder = convert(found.gguf, converted_root(), report=progress)
    assert folder is not None, "give demo:NAME, a folder or a GGUF file"
    transformers.utils.logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return model, TransformersTokenizer(tokenizer, frozenset(), begins_with_bos=False)


def under_plan(
    loaded: tuple[Any, TransformersTokenizer], name: str, form: PlanForm
) -> TransformersEngine:
    """One model under another plan; it is not loaded again."""
    return TransformersEngine(
        loaded[0], loaded[1], source=name, weights_digest="benchmark", form=form
    )


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def prompt_ids(engine: TransformersEngine, tokens: int) -> np.ndarray:
    """Random ids, none of them special."""
    ids = np.random.default_rng(0).integers(300, engine.vocabulary - 300, tokens)
    return ids.astype(np.uint32)


# --- costs ------------------------------------------------------------------------------------


def plan_costs(loaded: Any, name: str, rounds: int) -> Figures:
    """Seconds for 2,048 tokens in one call and in calls of each block, and their ratio."""
    engines = {block: under_plan(loaded, name, PlanForm(block, (block,))) for block in BLOCKS}
    ids = prompt_ids(engines[BLOCK], TOKENS)

    def planned(engine: TransformersEngine) -> None:
        compute_prompt(engine, None, ids).context.close()

    times: dict[str, list[float]] = {"monolithic": []}
    engines[BLOCK].monolithic_logits(ids)  # warm up
    for _ in range(rounds):
        times["monolithic"].append(seconds(lambda: engines[BLOCK].monolithic_logits(ids)))
        for block, engine in engines.items():
            spent = seconds(lambda engine=engine: planned(engine))  # type: ignore[misc]
            times.setdefault(f"block_{block}", []).append(spent)
    figures = {f"{case}_seconds": statistics.median(spent) for case, spent in times.items()}
    for block in BLOCKS:
        ratios = [
            planned / whole
            for planned, whole in zip(times[f"block_{block}"], times["monolithic"], strict=True)
        ]
        figures[f"plan_overhead_block_{block}"] = statistics.median(ratios)
    return figures


def tail_costs(loaded: Any, name: str, rounds: int) -> Figures:
    """Milliseconds of one call of so many rows behind a restored prefix."""
    engine = under_plan(loaded, name, PlanForm(BLOCK, ROWS))
    figures: Figures = {}
    for start in TAIL_STARTS:
        store = ChunkStore(MemoryStore(), Index(None))
        ids = prompt_ids(engine, start + max(ROWS))
        compute_prompt(engine, store, ids[:start], keep=Keep.BLOCKS).context.close()
        times: dict[int, list[float]] = {rows: [] for rows in ROWS}
        for _ in range(rounds + 1):
            for rows in ROWS:
                done = compute_prompt(engine, store, ids[: start + rows], keep=Keep.NOTHING)
                done.context.close()
                assert done.report.reused_tokens == start, done.report
                times[rows].append(done.report.compute_seconds * 1e3)
        for rows, spent in times.items():
            figures[f"tail_{rows}_rows_after_{start}_ms"] = statistics.median(spent[1:])
        store.close()
    return figures


# --- bits -------------------------------------------------------------------------------------


def row_bits(loaded: Any, name: str) -> Figures:
    """Shares of rows whose final hidden state keeps its bits when something else changes."""
    engine = under_plan(loaded, name, PlanForm(BLOCK, (BLOCK,)))
    figures: Figures = {}
    for start in (0, 3 * BLOCK):
        before = prompt_ids(engine, start)
        ids = np.random.default_rng(1).integers(300, engine.vocabulary - 300, BLOCK)
        whole = hidden_rows(engine, before, ids)
        for real in (1, 5, 100, 255):
            other, padded = ids.copy(), ids.copy()
            other[real:] = np.random.default_rng(2).integers(300, 900, BLOCK - real)
            padded[real:] = engine.form.pad_id
            for case, changed in (("later_ids", other), ("padding", padded)):
                same = equal_share(whole[:real], hidden_rows(engine, before, changed)[:real])
                key = f"rows_equal_under_other_{case}_at_{start}"
                figures[key] = min(same, figures.get(key, 1.0))
        for rows in ROWS[:-1]:
            share = equal_share(whole[:rows], hidden_rows(engine, before, ids[:rows]))
            figures[f"rows_equal_in_a_call_of_{rows}_at_{start}"] = share
    return figures


@torch.inference_mode()
def hidden_rows(engine: TransformersEngine, before: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Final hidden states float32 `[rows, hidden]` of one call of `ids` after blocks `before`."""
    arena = Arena(engine.spec, len(before) + BLOCK, BLOCK)
    cache = ArenaCache(arena, engine.device, mirrored=False)
    for first in range(0, len(before), BLOCK):
        engine.forward(before[None, first : first + BLOCK].astype(np.int64), cache, first)
        arena.count(first + BLOCK)
        arena.settle()
    hidden = engine.forward(ids[None].astype(np.int64), cache, len(before))
    rows: np.ndarray = hidden[0].float().numpy()
    return rows


def equal_share(left: np.ndarray, right: np.ndarray) -> float:
    """Of 1, the rows that are equal in every bit."""
    return float(np.mean((left == right).all(axis=1)))


# --- output -----------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> None:
    """Every figure, printed and written as it comes: a run that is cut short keeps what it has."""
    figures: Figures = {}
    for name in options.models:
        for dtype in options.dtypes:
            loaded = load_model(name, dtype)
            found = row_bits(loaded, name)
            if dtype == "bfloat16" and not options.bits_only:
                found |= plan_costs(loaded, name, options.rounds)
                found |= tail_costs(loaded, name, options.rounds)
            short = name.removeprefix("demo:")
            print(f"\n{short} {dtype}")
            for figure, value in found.items():
                print(f"  {figure:<48}{value:>10.3f}")
                figures[f"{short}_{dtype}_{figure}"] = round(value, 5)
            if options.json:
                write(options.json, figures)
            del loaded


def write(path: Path, figures: Figures) -> None:
    """The object that every benchmark of the project writes."""
    goal = f"plan_overhead_block_{BLOCK}"
    result = {
        "figures": figures,
        "targets": {name: f"<= {PLAN_OVERHEAD:g}" for name in figures if name.endswith(goal)},
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "versions": versions(),
        "machine": {**machine(), "threads": threads(), "load_average": os.getloadavg()[0]},
    }
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="What the forms of a plan cost, and their bits.")
    parser.add_argument("--models", nargs="+", default=["demo:smollm2", "demo:gemma3"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bits-only", action="store_true", help="measure no times")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(threads())
    measure(options)


if __name__ == "__main__":
    main()
