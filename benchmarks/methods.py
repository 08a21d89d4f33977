"""Methods: programs that a model writes for families of problems, tried on instances made afresh.

    python benchmarks/methods.py --folder DIR [--json FILE] [--models A,B] [--families A,B]

For each family a model sees 6 solved problems, its programs must answer 10 more that it does not
see, and two that differ are kept. The second phrasing, and then the one that was held out, are
taken up from 6 solved problems each, without a model. Then, in a process that loads no model, every
method is asked problems that nothing was learned from, and hard negatives. What was learned stays
in DIR: a run that was stopped goes on where it was. Fresh problems come from `--fresh-seed`, drawn
anew for each run unless it is given.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import harness

TARGETS: dict[str, tuple[str, float]] = {
    "method_families": (">=", 9),
    "method_right_share": (">=", 1.0),
    "method_fresh_per_family_min": (">=", 20),
    "method_decode_tokens": ("<=", 0),
    "method_coverage": (">=", 0.5),
    "method_held_out_answered_before": ("<=", 0),
    "method_held_out_coverage": (">=", 0.5),
    "method_hard_negatives_wrong": ("<=", 0),
    "method_hard_negatives": (">=", 90),
}
MODELS = "demo:qwen-coder-1.5b,demo:qwen-coder-0.5b"
SHOWN, HELD_BACK, TAKEN_UP = 6, 10, 6
FRESH, NEGATIVES = 20, 20  # in each phrasing; of each family
LEARNED_NAME = "learned.json"


def _instances(family: Any, phrasing: int, seed: int, count: int) -> list[Any]:
    from kvgraft.library.methods.trial import Instance
    from kvgraft.testing.problem_families import solved_problems

    made = solved_problems(family, seed, count, phrasing=phrasing)
    return [Instance(one.text, one.answer, "proved") for one in made]


# --- learning -------------------------------------------------------------------------------------


def learn(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What became of each family; families that are in the folder's file are not learned again."""
    from kvgraft.testing.problem_families import problem_families

    path = arguments.folder / LEARNED_NAME
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    known = {row["family"] for row in rows}
    models = _Models(arguments.models.split(","), arguments.threads)
    for name, family in problem_families().items():
        if name in known or (arguments.families and name not in arguments.families.split(",")):
            continue
        rows.append(_learn_family(family, models, arguments))
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {_told(rows[-1])}", file=sys.stderr, flush=True)
    models.close()
    return rows


def _told(row: dict[str, Any]) -> str:
    last = row["tries"][-1]
    return f"{last['state']} by {last['model']} in {last['seconds']:.0f} s {last['detail']}"


def _learn_family(family: Any, models: _Models, arguments: argparse.Namespace) -> dict[str, Any]:
    from kvgraft.decode import Sampling
    from kvgraft.library.methods.learn import LEARNED, Learner
    from kvgraft.library.methods.records import METHODS_NAME, Methods
    from kvgraft.library.methods.writing import WritingEffort

    effort = WritingEffort(sampling=Sampling(0.8, 0.95, arguments.seed))
    tries: list[dict[str, Any]] = []
    with Methods(arguments.folder / METHODS_NAME) as methods:
        for model in models.names:
            learner = Learner(methods, None, models.open(model), effort=effort)
            given = _instances(family, 0, arguments.seed, SHOWN + HELD_BACK)
            outcomes = learner.learn(given)
            tries.append(
                {
                    "model": model,
                    "state": outcomes[0].state,
                    "detail": outcomes[0].detail,
                    "passing": outcomes[0].programs,
                    "phrasings": len(outcomes),
                    "method": outcomes[0].method,
                    **outcomes[0].cost.as_dict(),
                }
            )
            if outcomes[0].state == LEARNED:
                break
        method = tries[-1]["method"]
        programs = methods.get(method).programs if method is not None else ()
    learned = tries[-1]["state"] == LEARNED
    return {"family": family.name, "learned": learned, "tries": tries, "programs": list(programs)}


class _Models:
    """One model at a time, opened when it is first needed."""

    def __init__(self, names: Sequence[str], threads: int) -> None:
        self.names = names
        self._threads = threads
        self._open: tuple[str, Any] | None = None

    def open(self, name: str) -> Any:
        from kvgraft.engines.registry import open_engine
        from kvgraft.library.attempts import LocalModel

        if self._open is None or self._open[0] != name:
            self.close()
            self._open = name, LocalModel(open_engine(name, threads=self._threads), None)
        return self._open[1]

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


# --- asking ---------------------------------------------------------------------------------------


def part_ask(job: dict[str, Any]) -> dict[str, Any]:
    """In a process without a model: take up the other phrasings, ask fresh problems, one family
    after the other, every method of every family being there all the time."""
    from kvgraft.library.methods.records import METHODS_NAME, Methods
    from kvgraft.testing.problem_families import problem_families

    families = problem_families()
    rows = []
    with Methods(Path(job["folder"]) / METHODS_NAME) as methods:
        names = [name for name in families if name in job["families"]]
        before = {name: _held_out(methods, families[name], job) for name in names}
        took_up = {name: _take_up(methods, families[name], job["seed"]) for name in names}
        for name in names:
            row = {"family": name, "took_up": took_up[name], "held_out_before": before[name]}
            rows.append({**row, **_ask_family(methods, families[name], job)})
            print(f"asked {name}", file=sys.stderr, flush=True)
    heavy = {"torch", "transformers", "llama_cpp"} & set(sys.modules)
    if heavy:
        raise RuntimeError(f"asking loaded {heavy}")
    return {"rows": rows}


def _take_up(methods: Any, family: Any, seed: int) -> list[str]:
    """What became of the phrasings that no model saw: states."""
    from kvgraft.library.methods.learn import Learner

    learner = Learner(methods, None, None)
    out = []
    for phrasing in range(1, len(family.phrasings)):
        given = _instances(family, phrasing, seed, TAKEN_UP)
        out += [outcome.state for outcome in learner.learn(given)]
    return out


def _fresh(family: Any, phrasing: int, job: dict[str, Any], count: int) -> list[Any]:
    """Problems that nothing was learned from."""
    learned = SHOWN + HELD_BACK if phrasing == 0 else TAKEN_UP
    seen = {one.text for one in _instances(family, phrasing, job["seed"], learned)}
    made = _instances(family, phrasing, job["fresh_seed"], count + learned)
    return [one for one in made if one.text not in seen][:count]


def _held_out(methods: Any, family: Any, job: dict[str, Any]) -> dict[str, Any]:
    asked = [(one.text, one.answer) for one in _fresh(family, family.held_out, job, FRESH)]
    return _asked(methods, asked)


def _ask_family(methods: Any, family: Any, job: dict[str, Any]) -> dict[str, Any]:
    from kvgraft.testing.problem_families import hard_negatives

    fresh = [
        (one.text, one.answer)
        for phrasing in range(family.held_out)
        for one in _fresh(family, phrasing, job, FRESH)
    ]
    negatives = hard_negatives(family, job["fresh_seed"], NEGATIVES)
    return {
        "fresh": _asked(methods, fresh),
        "held_out_after": _held_out(methods, family, job),
        "negatives": _asked(methods, [(one.text, one.answer) for one in negatives]),
    }


def _asked(methods: Any, asked: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
    """Counts over (text, right answer or None) pairs; every answer to one without is wrong."""
    from kvgraft.library.methods.ask import Abstained, ask_method

    right, wrong, tokens = 0, [], 0
    reasons: Counter[str] = Counter()
    answer_ms, abstain_ms = [], []
    for text, answer in asked:
        began = time.perf_counter()
        said = ask_method(methods, None, text)
        took_ms = (time.perf_counter() - began) * 1e3
        tokens += (said.cost.decode_tokens or 0) + (said.cost.prefill_tokens or 0)
        if isinstance(said, Abstained):
            reasons[said.reason] += 1
            abstain_ms.append(took_ms)
            continue
        answer_ms.append(took_ms)
        if said.answer == answer:
            right += 1
        else:
            wrong.append({"text": text, "said": said.answer, "right": answer})
    return {
        "asked": right + len(wrong) + sum(reasons.values()),
        "right": right,
        "wrong": wrong,
        "abstained": dict(reasons),
        "tokens": tokens,
        "answer_ms": median(answer_ms) if answer_ms else None,
        "abstain_ms": median(abstain_ms) if abstain_ms else None,
    }


# --- the figures ----------------------------------------------------------------------------------


def figures_of(
    learned: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, float | None]:
    """The named figures; None is "not measured"."""

    def total(part: str, name: str) -> int:
        counts = [row[part][name] for row in rows]
        return sum(len(one) if isinstance(one, list) else one for one in counts)

    def share(part: str) -> float | None:
        asked = total(part, "asked")
        return total(part, "right") / asked if asked else None

    parts = ("fresh", "held_out_before", "held_out_after", "negatives")
    given = sum(total(part, name) for part in parts[:3] for name in ("right", "wrong"))
    right = sum(total(part, "right") for part in parts[:3])
    answered_before = sum(total("held_out_before", name) for name in ("right", "wrong"))
    return {
        "method_families": sum(row["learned"] for row in learned),
        "method_right_share": right / given if given else None,
        "method_fresh_per_family_min": min((row["fresh"]["asked"] for row in rows), default=None),
        "method_decode_tokens": sum(total(part, "tokens") for part in parts) if rows else None,
        "method_coverage": share("fresh"),
        "method_held_out_answered_before": answered_before if rows else None,
        "method_held_out_coverage": share("held_out_after"),
        "method_hard_negatives_wrong": total("negatives", "wrong") if rows else None,
        "method_hard_negatives": total("negatives", "asked") if rows else None,
    }


def totals_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All answers that were given to problems of the families, and how often they are wrong at
    most, with 95 % confidence."""
    from kvgraft.study.statistics import upper_bound

    parts = [row[part] for row in rows for part in ("fresh", "held_out_before", "held_out_after")]
    wrong = sum(len(part["wrong"]) for part in parts)
    given = wrong + sum(part["right"] for part in parts)
    bound = upper_bound(wrong, given) if given else None
    return {"given": given, "wrong": wrong, "wrong_share_upper_bound": bound}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="what was learned is kept here")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--models", default=MODELS, help="tried in this order")
    parser.add_argument("--families", default="", help="only these, with commas between")
    parser.add_argument("--seed", type=int, default=0, help="of what is learned from")
    parser.add_argument("--fresh-seed", type=int, help="of what is asked")
    parser.add_argument("--threads", type=int, default=harness.threads(), help="of the models")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        return harness.answer_part(arguments.part, {"ask": part_ask})
    if arguments.folder is None:
        parser.error("--folder is needed")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.fresh_seed is None:
        arguments.fresh_seed = secrets.randbelow(10**9)
    learned = learn(arguments)
    job = {
        "folder": str(arguments.folder),
        "families": [row["family"] for row in learned if row["learned"]],
        "seed": arguments.seed,
        "fresh_seed": arguments.fresh_seed,
    }
    rows = harness.run_part(__file__, "ask", job)["rows"]
    harness.report(
        "methods",
        figures_of(learned, rows),
        TARGETS,
        {
            "seed": arguments.seed,
            "fresh_seed": arguments.fresh_seed,
            "totals": totals_of(rows),
            "learned": learned,
            "rows": rows,
        },
        arguments.json,
        f"python benchmarks/methods.py --folder DIR --seed {arguments.seed} "
        f"--fresh-seed {arguments.fresh_seed}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
