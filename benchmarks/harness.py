"""What the benchmarks share: parts in processes of their own, memory readings, the report."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any


def threads() -> int:
    """Threads for the engines: the machine's cores, at most 2, so that figures compare."""
    return min(2, os.cpu_count() or 1)


def run_part(script: str, name: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run `script --part name FILE` in a fresh process and return what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        subprocess.run([sys.executable, script, "--part", name, str(path)], check=True)
        out: dict[str, Any] = json.loads(path.with_suffix(".out").read_text(encoding="utf-8"))
        return out


def answer_part(
    arguments: list[str], parts: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
) -> int:
    """The other side of `run_part`."""
    name, path = arguments[0], Path(arguments[1])
    out = parts[name](json.loads(path.read_text(encoding="utf-8")))
    path.with_suffix(".out").write_text(json.dumps(out), encoding="utf-8")
    return 0


# --- memory (Linux) ---------------------------------------------------------------------------


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def resident_bytes() -> int:
    """Resident memory now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The largest resident memory since the last `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Let the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


# --- the library's look-up --------------------------------------------------------------------


def deposit_of(space: Any, problem: str) -> Any:
    """A deposit of `problem` in an `AddressSpace`, with nothing in it but what it must have."""
    from kvgraft.library.deposit import NewDeposit
    from kvgraft.library.verify.base import Verdict

    return NewDeposit(
        identity=space.identity(problem),
        model="m",
        fingerprint="f",
        prompt="p",
        trace="t",
        cue="c",
        token_ids=(1, 2, 3),
        answer="42",
        answer_ids=(4,),
        verdict=Verdict(True, "proved", "42", "exact", "1", {}),
        cost={},
        finished=True,
    )


def lookup_us(records: int, rounds: int = 5, looks: int = 2_000) -> float:
    """Median over rounds of the microseconds a look-up takes among `records` deposits.

    A look-up canonicalises and addresses a 200-byte problem and asks the file on disk, where
    revoked deposits are not found.
    """
    from kvgraft.library.address import AddressSpace, RequestIdentity
    from kvgraft.library.records import Library

    space = AddressSpace(
        RequestIdentity(problem="", tenant="public", template_digest="t", tokenizer_digest="k")
    )

    def problem(number: int) -> str:
        return f"Problem {number}: " + "what is the sum of these numbers, exactly? " * 4

    with (
        tempfile.TemporaryDirectory() as folder,
        Library.open(Path(folder) / "l.sqlite3") as library,
    ):
        with library.batch():
            for number in range(records):
                library.deposit(deposit_of(space, problem(number)))
        generator = random.Random(0)
        medians = []
        for _ in range(rounds):
            texts = [problem(generator.randrange(records)) for _ in range(looks)]
            began = time.perf_counter()
            for text in texts:
                if library.lookup(space.address(text), "public", "f") is None:
                    raise RuntimeError("a deposit was not found")
            medians.append((time.perf_counter() - began) / looks * 1e6)
    return median(medians)


# --- the report -------------------------------------------------------------------------------


def report(
    name: str,
    figures: dict[str, float | None],
    targets: dict[str, tuple[str, float]],
    details: dict[str, Any],
    path: Path | None,
    command: str,
) -> None:
    """Print a table; with `path`, write the object that every benchmark of the project writes."""
    width = max(map(len, figures))
    print(f"{name}: figure, value, target")
    for figure, value in figures.items():
        relation, target = targets[figure]
        shown = "not measured" if value is None else f"{value:.4g}"
        judged = _judged(value, relation, target)
        print(f"  {figure:<{width}}  {shown:>14}  {relation} {target:g}  {judged}")
    if path is not None:
        out = {
            "figures": figures,
            "targets": {figure: f"{rel} {goal:g}" for figure, (rel, goal) in targets.items()},
            "command": command,
            "versions": versions(),
            "machine": machine(),
            "details": details,
        }
        path.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


def _judged(value: float | None, relation: str, target: float) -> str:
    if value is None:
        return ""
    return "met" if (value >= target if relation == ">=" else value <= target) else "MISSED"


def versions() -> dict[str, str]:
    """Of Python and of what the figures depend on."""
    out = {"python": platform.python_version()}
    for package in ("kvgraft", "numpy", "blake3", "torch", "transformers"):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            out[package] = "not installed"
    return out


def machine() -> dict[str, Any]:
    """The machine's class, without its name."""
    from kvgraft.identity import cpu_class

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024**3),
        "cpu_class": cpu_class(),
    }
