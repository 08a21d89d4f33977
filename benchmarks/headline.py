"""The headline study: a frozen 0.5B with a library against its 1.5B sibling, AIME 2025 and GSM8K.

    python benchmarks/headline.py register
    python benchmarks/headline.py attempts 0.5b [--seconds 3000]    (resumable; so is 1.5b)

The registration (`headline_plan.py`) is written before anything else, and what differs from it is
refused. Raw attempts are kept under `benchmarks/results/headline/`, so that anyone can score them
again without a model. `make study-aime` runs all of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

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
            FOLDER / f"attempts-{model}.jsonl.gz",
            seconds,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    finally:
        engine.close()
    print("all attempts are made" if whole else "not finished: run the same command again")
    return 0 if whole else 75


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("register")
    making = parts.add_parser("attempts")
    making.add_argument("model", choices=plan.MODELS)
    making.add_argument("--seconds", type=float, default=3000, help="begin no batch after these")
    options = parser.parse_args()
    print(f"registration {register()}", file=sys.stderr)
    if options.part == "attempts":
        return attempts(options.model, options.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
