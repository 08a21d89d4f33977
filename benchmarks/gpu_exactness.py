"""The published subjects at full size on one GPU: exactness, restore, memory, energy, bytes.

    python benchmarks/gpu_exactness.py --json FILE [--subject 12b|31b|both] [--budget-seconds 540]
        [--folder DIR] [--resume] [--only exactness,restore_16k,...]
    python benchmarks/gpu_exactness.py --device cpu --tiny          (seconds, for the tests)

Gemma 4 12B and 31B of random bfloat16 weights, drawn on the device. One process computes every
sample cold and stores its first part; another grafts them, compares, and measures the rest. Every
step is on disk as soon as it is done (FILE.steps.json); a step for which there is no time or disk
left is skipped by name, and `--resume` goes on with what is not done.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness
from step_record import MIB, Record, Room

SUBJECTS = ("12b", "31b")
# Steps of each process, the most telling first, with the seconds that a step is believed to take on
# one H200 for the 12B: bounds from the device's rates, to be corrected by the first run there.
MAKER = {"cold": 25.0}
MEASURER = {
    "exactness": 20.0,
    "restore_16k": 20.0,
    "sizes": 5.0,
    "energy": 20.0,
    "memory": 20.0,
    "restore_2k": 5.0,
    "restore_4k": 6.0,
    "restore_8k": 10.0,
    "restore_32k": 35.0,
    "transfer": 3.0,
    "compressed": 15.0,
}
PROCESSES = {"maker": MAKER, "measurer": MEASURER}
START_SECONDS = 40.0  # importing, drawing the weights, the first kernels
SLOWER = {"12b": 1.0, "31b": 2.0}
TINY_SECONDS = 1.0
GRACE_SECONDS = 20.0
TARGETS: dict[str, dict[str, tuple[str, float]]] = {
    "12b": {
        "kib_per_token": ("<=", 36.6),
        "restore_vs_recompute_16k": (">=", 2.8),
        "energy_16k": (">=", 8.8),
    },
    "31b": {
        "kib_per_token": ("<=", 134),
        "restore_vs_recompute_16k": (">=", 4.25),
        "energy_16k": (">=", 12.3),
    },
}
NOT_OPTIONS = (
    "only",
    "resume",
    "json",
    "steps",
    "folder",
    "budget_seconds",
    "reserve_mib",
    "process",
)


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    out.add_argument("--subject", choices=(*SUBJECTS, "both"), default="both")
    out.add_argument("--device", default="cuda", help="cuda or cpu")
    out.add_argument("--tiny", action="store_true", help="everything scaled down")
    out.add_argument("--mirrored", action="store_true", help="on the CPU: as on other devices")
    out.add_argument("--samples", type=int, default=50)
    out.add_argument("--seed", type=int, default=0)
    out.add_argument("--only", default="", help="steps beside the cold runs, commas between")
    out.add_argument("--alter", type=int, nargs="*", default=[], help="samples to serve wrongly")
    out.add_argument("--one-process", action="store_true", help="graft where the cold runs were")
    out.add_argument("--folder", type=Path, help="for the stores; temporary by default")
    out.add_argument("--reserve-mib", type=int, default=2048, help="disk to leave free")
    out.add_argument("--budget-seconds", type=float, help="begin nothing that would end later")
    out.add_argument("--resume", action="store_true", help="keep the steps that are done")
    out.add_argument("--json", type=Path, help="write the figures to this file")
    out.add_argument("--steps", type=Path, help="the file of the steps; beside --json by default")
    out.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    return out


def asked(process: str, only: Sequence[str]) -> dict[str, float]:
    """The steps of a process that are asked for."""
    return {
        step: seconds
        for step, seconds in PROCESSES[process].items()
        if not only or step in only or (process == "maker" and "exactness" in only)
    }


def estimate(subject: str, seconds: float, *, tiny: bool) -> float:
    return TINY_SECONDS if tiny else seconds * SLOWER[subject]


# --- one process --------------------------------------------------------------------------------


def work(job: dict[str, Any], process: str, subject: str) -> None:
    """The steps of a process that are not done yet, in their order."""
    import gpu_samples
    import gpu_steps
    from device_meter import Meter
    from gpu_run import Run
    from subjects import open_subject

    options = job["options"]
    record = Record(Path(job["steps"]), options, resume=True)
    room = Room(job["deadline"], Path(job["folder"]), job["reserve_bytes"])
    folder = room.folder / subject
    folder.mkdir(parents=True, exist_ok=True)
    gc.collect()  # in one process the engine before this one is held by cycles
    began = time.perf_counter()
    engine = open_subject(
        subject,
        tiny=options["tiny"],
        device=options["device"],
        mirrored=options["mirrored"] or None,
        seed=options["seed"],
    )
    meter = Meter(options["device"])
    meter.sync()
    weights = sum(one.numel() * one.element_size() for one in engine._model.parameters())
    record.note(
        f"{subject}/{process}",
        "done",
        seconds=time.perf_counter() - began,
        result={"weights_bytes": weights, "fingerprint": dict(engine.fingerprint.fields)},
    )
    run = Run(
        engine=engine,
        folder=folder,
        meter=meter,
        samples=options["samples"],
        seed=options["seed"],
        tiny=options["tiny"],
        left=room.left,
        weights_bytes=weights,
        alter=tuple(options["alter"]),
    )
    for step, seconds in asked(process, job["only"]).items():
        name = f"{subject}/{step}"
        if step == "exactness" and not record.done(f"{subject}/cold"):
            record.note(name, "skipped", reason="cold: " + record.reason(f"{subject}/cold"))
            continue
        kind, _, label = step.partition("_")
        doing = getattr(gpu_samples if kind in ("cold", "exactness") else gpu_steps, kind)
        record.run(
            name,
            partial(doing, run, label) if label else partial(doing, run),
            room,
            estimate_seconds=estimate(subject, seconds, tiny=options["tiny"]),
            writes_bytes=_writes(run, step),
        )
    engine.close()


def _writes(run: Any, step: str) -> int:
    from gpu_run import document_bytes, samples_bytes

    if step == "cold":
        return samples_bytes(run)
    stored = {"sizes": "16k", "energy": "16k", "compressed": "16k", "memory": "2k"}
    label = stored.get(step) or step.partition("_")[2]
    return document_bytes(run, label) if label else 0


# --- all processes ------------------------------------------------------------------------------


def measure(options: argparse.Namespace, record: Record, folder: Path) -> None:
    """Every subject's processes, one after the other."""
    deadline = None
    if options.budget_seconds is not None:
        deadline = time.time() + options.budget_seconds
    job = {
        "options": record.options,
        "steps": str(options.steps),
        "folder": str(folder),
        "deadline": deadline,
        "reserve_bytes": options.reserve_mib * MIB,
        "only": [step for step in options.only.split(",") if step],
    }
    room = Room(deadline, folder, options.reserve_mib * MIB)
    for subject in SUBJECTS if options.subject == "both" else (options.subject,):
        exact, cold = f"{subject}/exactness", f"{subject}/cold"
        if not record.done(exact) and not (folder / subject / "cold.json").exists():
            record.forget(cold)  # what it stored is gone
        for process in PROCESSES:
            steps = asked(process, job["only"])
            pending = [step for step in steps if not record.done(f"{subject}/{step}")]
            if process == "maker" and record.done(exact):
                continue
            if not pending:
                continue
            least = estimate(subject, START_SECONDS + steps[pending[0]], tiny=options.tiny)
            reason = room.refusal(least, 0)
            if not reason:
                reason = _in_process(options, job, process, subject, room)
                record.reload()
            for step in pending:
                if reason and not record.done(f"{subject}/{step}"):
                    record.note(f"{subject}/{step}", "skipped", reason=reason)
        if record.done(exact):
            shutil.rmtree(folder / subject, ignore_errors=True)


def _in_process(
    options: argparse.Namespace, job: dict[str, Any], process: str, subject: str, room: Room
) -> str:
    """Run a process to its end; why it did not come to it, or nothing."""
    if options.one_process:
        work(job, process, subject)
        return ""
    path = Path(job["folder"]) / f"{subject}-{process}.json"
    path.write_text(json.dumps({**job, "subject": subject}), encoding="utf-8")
    command = [sys.executable, __file__, "--process", process, str(path)]
    limit = None if job["deadline"] is None else room.left() + GRACE_SECONDS
    try:
        ended = subprocess.run(command, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "budget: the process was stopped in this step or before it"
    finally:
        path.unlink()
    return f"the process ended with status {ended.returncode}" if ended.returncode else ""


# --- figures ------------------------------------------------------------------------------------


def figures_of(
    record: Record, subjects: Sequence[str], samples: int, *, tiny: bool
) -> tuple[dict[str, float | None], dict[str, tuple[str, float]]]:
    """Figures and targets; None is "not measured", and the record has the reason."""
    figures: dict[str, float | None] = {}
    targets: dict[str, tuple[str, float]] = {}

    def put(name: str, step: dict[str, Any], key: str, target: tuple[str, float]) -> None:
        value = step.get(key)
        figures[name] = None if value is None else float(value)
        targets[name] = target

    for subject in subjects:
        # What the tiny form costs says nothing, so it has no targets.
        prefix = f"{'tiny_' * tiny}gemma4_{subject}_"
        found = {step: record.result(f"{subject}/{step}") for step in (*MAKER, *MEASURER)}
        goals = dict.fromkeys(TARGETS[subject], (">=", 0.0)) if tiny else TARGETS[subject]
        exact = found["exactness"]
        put(prefix + "sha_equal", exact, "sha_equal", (">=", samples))
        put(prefix + "reused_as_expected", exact, "reused_as_expected", (">=", samples))
        put(prefix + "argmax_equal", exact, "argmax_equal", (">=", samples))
        put(prefix + "kl_max", exact, "kl_max", ("<=", 0))
        put(prefix + "controls_detected", exact, "controls_detected", (">=", 3))
        put(prefix + "kib_per_token", found["sizes"], "kib_per_token", goals["kib_per_token"])
        for label in ("2k", "4k", "8k", "16k", "32k"):
            name = f"restore_vs_recompute_{label}"
            step = found[f"restore_{label}"]
            put(prefix + name, step, "vs_recompute", goals.get(name, (">=", float(not tiny))))
        put(prefix + "energy_16k", found["energy"], "vs_recompute", goals["energy_16k"])
        growth = found["memory"].get("growth", {})
        put(prefix + "memory_growth_bytes", growth, "allocated", ("<=", 0))
    return figures, targets


def untargeted(record: Record, subjects: Sequence[str]) -> dict[str, float | None]:
    """What has no target: joules of an answer of 16 tokens behind 16,000, replayed and computed,
    and what compression leaves of the bytes."""
    out = {}
    for subject in subjects:
        energy = record.result(f"{subject}/energy")
        for kind in ("replayed_answer", "computed_answer"):
            out[f"{subject}_joules_per_{kind}"] = energy.get(kind, {}).get("joules")
        out[f"{subject}_compressed_share"] = record.result(f"{subject}/compressed").get("share")
    return out


def unmeasured(record: Record, subjects: Sequence[str]) -> dict[str, str]:
    """Steps without a result, and why; results without a figure too."""
    out = {}
    for subject in subjects:
        for step in (*MAKER, *MEASURER):
            name = f"{subject}/{step}"
            reason = record.result(name).get("reason") if record.done(name) else record.reason(name)
            if reason:
                out[name] = str(reason)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.process:
        job = json.loads(Path(options.process[1]).read_text(encoding="utf-8"))
        work(job, options.process[0], job["subject"])
        return 0
    if options.samples < 5:
        raise SystemExit("the controls take at least 5 samples")
    if unknown := set(options.only.split(",")) - {"", *MAKER, *MEASURER}:
        raise SystemExit(f"no such steps: {', '.join(sorted(unknown))}")
    subjects = SUBJECTS if options.subject == "both" else (options.subject,)
    fixed = {name: value for name, value in vars(options).items() if name not in NOT_OPTIONS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        beside = options.json or folder / "gpu_exactness.json"
        options.steps = options.steps or beside.with_name(beside.name + ".steps.json")
        record = Record(options.steps, fixed, resume=options.resume)
        measure(options, record, folder)
    figures, targets = figures_of(record, subjects, options.samples, tiny=options.tiny)
    details: dict[str, Any] = {
        "grafted_in_a_process_of_its_own": not options.one_process,
        "weights": "random normal, drawn on the device",
        "without_target": untargeted(record, subjects),
        "unmeasured": unmeasured(record, subjects),
        "steps": record.steps,
    }
    command = "python benchmarks/gpu_exactness.py " + " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in fixed.items() if value not in ([],)
    )
    harness.report("gpu_exactness", figures, targets, details, options.json, command)
    for name, value in details["without_target"].items():
        print(f"  {name}: {'not measured' if value is None else f'{value:.4g}'}")
    for name, reason in details["unmeasured"].items():
        print(f"  {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
