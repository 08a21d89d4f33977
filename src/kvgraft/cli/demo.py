"""The demonstration: a real model solves short problems, answers them from disk, and proves it.

Every phase is a process of its own, so what is recalled can only have come from disk.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvgraft.cli.demo_problems import PROBLEMS, read_demo_problems
from kvgraft.cli.output import one_line, printable
from kvgraft.evidence.process import Progress, Say, run_module
from kvgraft.library.problem import Problem
from kvgraft.library.solve import KNOWN, SOLVED

TABLE_COLUMNS = 100  # where no terminal says how wide it is


@dataclass(frozen=True)
class DemoOptions:
    """`attempts` lanes of at most `max_tokens` tokens; `threads` None leaves the engine's own.
    `problems` is a file of problems with answers and near misses."""

    model: str = "demo:smollm2"
    attempts: int = 16
    max_tokens: int = 80
    seed: int = 0
    threads: int | None = None
    problems: Path = PROBLEMS
    engine: str = "transformers"


def run_demo(
    options: DemoOptions,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Run all phases and return what they saw, with totals.

    Raises:
        EngineError: a phase's process died.
        KvgraftError: what a phase raised.
    """
    problems = [one.problem for one in read_demo_problems(options.problems)]
    with tempfile.TemporaryDirectory(prefix="kvgraft-demo-") as name:
        folder = Path(name)
        learn = _phase(options, folder, "learn", "store", progress, say)
        recall = _phase(options, folder, "recall", "store", progress, say)
        near = _phase(options, folder, "near", "store", progress, say)
        emptied = _phase(options, folder, "recall", "emptied", progress, say)
    return _summary(options, problems, learn, recall, near, emptied)


def _phase(
    options: DemoOptions,
    folder: Path,
    phase: str,
    store: str,
    progress: Progress,
    say: Say,
) -> dict[str, Any]:
    job, result = folder / f"{phase}-{store}.job", folder / f"{phase}-{store}.json"
    what = {
        "phase": phase,
        "model": options.model,
        "store": str(folder / store),
        "problems": str(options.problems),
        "attempts": options.attempts,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "threads": options.threads,
        "engine": options.engine,
    }
    job.write_text(json.dumps(what), encoding="utf-8")
    run_module("kvgraft.cli.demo_phase", [str(job), str(result)], progress, say)
    seen: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return seen


def _summary(
    options: DemoOptions,
    problems: list[Problem],
    learn: dict[str, Any],
    recall: dict[str, Any],
    near: dict[str, Any],
    emptied: dict[str, Any],
) -> dict[str, Any]:
    rows = [
        {"problem": problem.text, "before": before, "solving": solving, "after": after}
        for problem, before, solving, after in zip(
            problems, learn["asked"], learn["solved"], recall["asked"], strict=True
        )
    ]
    replayed = [row["after"] for row in rows if row["after"]["how"] == "replayed"]
    totals = {
        "problems": len(rows),
        "right_before": sum(row["before"]["right"] for row in rows),
        "right_after": sum(row["after"]["right"] for row in rows),
        "deposited": sum(_deposited(row) for row in rows),
        "right_before_not_deposited": sum(
            row["before"]["right"] and not _deposited(row) for row in rows
        ),
        "replayed": len(replayed),
        "recorded": sum(row["after"]["how"] == "recorded" for row in rows),
        "replays_byte_exact": sum(after["same_bytes_cold"] is True for after in replayed),
        "replay_tokens_median": median(a["tokens"] for a in replayed) if replayed else None,
        "replay_seconds_median": median(a["seconds"] for a in replayed) if replayed else None,
        "solving_tokens": sum(row["solving"]["decode_tokens"] for row in rows),
        "solving_seconds": sum(row["solving"]["seconds"] for row in rows),
        "stored_bytes": learn["stored_bytes"],
        "right_with_library_emptied": sum(one["right"] for one in emptied["asked"]),
        "replayed_with_library_emptied": sum(one["how"] != "fresh" for one in emptied["asked"]),
        "near_misses_asked": len(near["asked"]),
        "near_misses_replayed": sum(one["how"] != "fresh" for one in near["asked"]),
    }
    return {"model": options.model, "rows": rows, "totals": totals, "near_misses": near["asked"]}


def _deposited(row: dict[str, Any]) -> bool:
    return row["solving"]["state"] in (SOLVED, KNOWN)


def passed(result: dict[str, Any]) -> bool:
    """Whether the demonstration showed what it claims: more right answers from memory, every
    replay byte-exact, and both controls held."""
    totals = result["totals"]
    return bool(
        totals["right_after"] > totals["right_before"]
        and totals["replayed"] > 0
        and totals["replays_byte_exact"] == totals["replayed"]
        and totals["replayed_with_library_emptied"] == 0
        # A control that was not run, or not on what is in the library, shows nothing.
        and totals["near_misses_asked"] == totals["deposited"] > 0
        and totals["near_misses_replayed"] == 0
    )


def show(result: dict[str, Any], console: Console) -> None:
    """The one table, and the lines under it."""
    table = Table(
        title=f"{result['model']}: asked, solved and verified, asked again from disk",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("problem", overflow="fold")
    table.add_column("first try", overflow="fold", max_width=13)
    table.add_column("tokens, s", justify="right", no_wrap=True)
    table.add_column("solving:\ntokens, s", justify="right", no_wrap=True)
    table.add_column("asked again", overflow="fold", max_width=13)
    table.add_column("tokens, s", justify="right", no_wrap=True)
    table.add_column("bytes\nequal", no_wrap=True)
    for row in result["rows"]:
        before, solving, after = row["before"], row["solving"], row["after"]
        exact = {True: "yes", False: "NO", None: "-"}[after["same_bytes_cold"]]
        table.add_row(
            Text(printable(row["problem"])),
            _mark(before),
            f"{before['tokens']}, {before['seconds']:.2f}",
            f"{solving['decode_tokens']}, {solving['seconds']:.1f}",
            _mark(after).append(f" {after['how']}"),
            f"{after['tokens']}, {after['seconds']:.2f}",
            exact,
        )
    columns = console.width if console.is_terminal else min(console.width, TABLE_COLUMNS)
    console.print(table, width=columns)
    for line in _lines(result["totals"]):
        console.print(line)


def _mark(asked: dict[str, Any]) -> Text:
    # As text, not as markup: a model may answer anything.
    said = "no answer" if asked["answer"] is None else one_line(asked["answer"], 12)
    return Text(("right" if asked["right"] else "wrong") + f" ({said})")


def _lines(totals: dict[str, Any]) -> list[str]:
    count = totals["problems"]
    out = [
        f"right answers: {totals['right_before']} of {count} on the first try,"
        f" {totals['right_after']} of {count} asked again",
        f"deposited: {totals['deposited']} of {count}, those with a sampled attempt that verified;"
        " a first try never is",
    ]
    if totals["right_before_not_deposited"]:
        out.append(
            f"right on the first try, but with no such attempt:"
            f" {totals['right_before_not_deposited']}, asked afresh the second time too"
        )
    out += [
        f"{totals['replayed']} replayed from disk by the model, {totals['recorded']} kept as text"
        f" only; {totals['stored_bytes'] / 1e6:.1f} MB stored",
        f"byte-exact: {totals['replays_byte_exact']} of {totals['replayed']} replays have the"
        " SHA-256 of a cold run's logits",
    ]
    if totals["replayed"]:
        each = totals["solving_tokens"] / count
        replay = totals["replay_tokens_median"]
        out += [
            f"solving: {totals['solving_tokens']} decode tokens, {totals['solving_seconds']:.0f} s"
            f" in all; {each:.0f} tokens a problem",
            f"median replay: {replay:g} decode tokens, {totals['replay_seconds_median']:.2f} s;"
            f" solving a problem took {each / replay:.0f} times as many tokens",
        ]
    return [
        *out,
        f"control, library emptied: {totals['replayed_with_library_emptied']} replayed,"
        f" {totals['right_with_library_emptied']} of {count} right",
        f"control, near misses of what was deposited: {totals['near_misses_replayed']} of"
        f" {totals['near_misses_asked']} answered from memory",
    ]
