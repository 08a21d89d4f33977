"""The headline study: a frozen 0.5B with a library against its 1.5B sibling, AIME 2025 and GSM8K.

    python benchmarks/headline.py register
    python benchmarks/headline.py attempts 0.5b [--seconds 3000]    (resumable; so is 1.5b)
    python benchmarks/headline.py library 0.5b [--store DIR]        (and 1.5b)
    python benchmarks/headline.py score [--json FILE]

The registration (`headline_plan.py`) is written before anything else, and what differs from it is
refused. Raw attempts are kept under `benchmarks/results/headline/`, so that anyone can score them
again without a model. `make study-aime` runs all of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import headline_plan as plan

FOLDER = Path(__file__).parent / "results" / "headline"
REGISTRATION = FOLDER / "registration.json"


def register() -> str:
    """Write the registration if there is none; its digest.

    Raises:
        SystemExit: another plan was registered.
    """
    now = plan.registration()
    if not REGISTRATION.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"sha256": plan.digest(now), "plan": now}, indent=1, ensure_ascii=False)
        REGISTRATION.write_text(text + "\n", encoding="utf-8")
    registered = json.loads(REGISTRATION.read_text(encoding="utf-8"))
    if registered["sha256"] != plan.digest(registered["plan"]):
        raise SystemExit(f"{REGISTRATION} was changed after it was written")
    if registered["sha256"] != plan.digest(now):
        raise SystemExit(f"another plan was registered: see {REGISTRATION}")
    return str(registered["sha256"])


def attempts(model: str, seconds: float) -> int:
    """Make what is missing of a model's attempts; 75 where time ran out before the end."""
    from headline_attempts import make_attempts
    from kvgraft.engines.registry import open_engine

    engine = open_engine(plan.MODELS[model], engine=plan.ENGINE, threads=plan.THREADS)
    try:
        whole = make_attempts(
            engine,
            model,
            attempts_file(model),
            seconds,
            say,
        )
    finally:
        engine.close()
    print("all attempts are made" if whole else "not finished: run the same command again")
    return 0 if whole else 75


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)


def attempts_file(model: str) -> Path:
    """Where a model's raw attempts are."""
    return FOLDER / f"attempts-{model}.jsonl.gz"


def all_worked() -> dict[str, Any]:
    """What each model's attempts derive; every program runs in the sandbox again.

    Raises:
        SystemExit: attempts are missing.
    """
    from headline_score import worked
    from kvgraft.library.verify.derivation import Derivations

    derivations = Derivations()
    out = {model: worked(attempts_file(model), derivations) for model in plan.MODELS}
    for model, found in out.items():
        missing = [
            problem.id
            for problem in plan.problems()
            if (problem.part != "calibration" or model == plan.CALIBRATED_WITH)
            and (
                problem.id not in found
                or set(plan.CONDITIONS[problem.part]) - set(found[problem.id].batches)
            )
        ]
        if missing:
            raise SystemExit(
                f"{model}: attempts at {len(missing)} problems are missing, such as {missing[0]}; "
                f"run 'python benchmarks/headline.py attempts {model}' until it is done"
            )
    return out


def of_part(found: dict[str, Any], *, part: str, set: str | None = None) -> dict[str, Any]:
    """The problems of one part, and set."""
    ids = [
        problem.id
        for problem in plan.problems()
        if problem.part == part and set in (None, problem.set)
    ]
    return {id: found[id] for id in ids}


def chosen_threshold(found: dict[str, Any]) -> dict[str, Any]:
    """The threshold that the calibration problems choose."""
    from headline_score import threshold_of
    from kvgraft.study.score import Scorer

    calibration = of_part(found[plan.CALIBRATED_WITH], part="calibration")
    with Scorer({id: plan.keys()[id] for id in calibration}) as scorer:
        return threshold_of(calibration, scorer)


def library(model: str, store: Path | None) -> int:
    """Deposit what the attempts agree on, and ask again in another process."""
    from headline_library import deposit_all

    found = all_worked()
    threshold = chosen_threshold(found)["threshold"]
    with tempfile.TemporaryDirectory() as folder:
        place = store or Path(folder)
        deposited = deposit_all(model, place, of_part(found[model], part="deposit"), threshold, say)
        result = FOLDER / f"library-{model}.json"
        out = {"threshold": threshold, "deposited": deposited}
        result.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
        command = [sys.executable, __file__, "again", model, "--store", str(place)]
        return subprocess.run(command, check=False).returncode


def again(model: str, store: Path) -> int:
    """The second process of `library`."""
    from headline_library import ask_again

    result = FOLDER / f"library-{model}.json"
    out = json.loads(result.read_text(encoding="utf-8"))
    out["asked"] = ask_again(model, store, out["deposited"], say)
    result.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")
    return 0


def score(path: Path) -> int:
    """All figures, from raw attempts and the libraries' answers."""
    from headline_figures import score_all

    found = all_worked()
    libraries = {
        model: json.loads((FOLDER / f"library-{model}.json").read_text(encoding="utf-8"))
        for model in plan.MODELS
    }
    command = "python benchmarks/headline.py score"
    score_all(found, libraries, chosen_threshold(found), register(), path, command)
    return 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("register")
    making = parts.add_parser("attempts")
    making.add_argument("model", choices=plan.MODELS)
    making.add_argument("--seconds", type=float, default=3000, help="begin no batch after these")
    for name in ("library", "again"):
        one = parts.add_parser(name)
        one.add_argument("model", choices=plan.MODELS)
        one.add_argument(
            "--store", type=Path, required=name == "again", help="else a temporary one"
        )
    scoring = parts.add_parser("score")
    scoring.add_argument("--json", type=Path, default=FOLDER.parent / "headline.json")
    options = parser.parse_args()
    say(f"registration {register()}")
    if options.part == "attempts":
        return attempts(options.model, options.seconds)
    if options.part == "library":
        return library(options.model, options.store)
    if options.part == "again":
        return again(options.model, options.store)
    if options.part == "score":
        return score(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
