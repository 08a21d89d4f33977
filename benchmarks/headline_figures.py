"""The headline study's figures: who was right, at what cost, and what was accepted wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import headline_plan as plan
from headline_score import MEASURES, Worked, acceptance, compared, effort, right_by, share
from kvgraft.study.score import Scorer

Found = dict[str, Any]
LIBRARY = "library, recurring"
TARGETS = {
    "aime_recurring_library_0_5b": (">=", 0.0),
    "aime_bare_0_5b": (">=", 0.0),
    "aime_bare_1_5b": (">=", 0.0),
    "gsm8k_recurring_library_0_5b": (">=", 0.0),
    "gsm8k_bare_0_5b": (">=", 0.0),
    "gsm8k_bare_1_5b": (">=", 0.0),
    "key_free_wrong_acceptance": ("<=", 0.1),
    "token_ratio_failed_first": (">=", 300),
}


def score_all(
    found: dict[str, dict[str, Worked]],
    libraries: dict[str, Found],
    threshold: Found,
    registration: str,
    path: Path,
    command: str,
) -> None:
    """Print and write everything. Keys are read here and in the threshold's choice alone."""
    with Scorer(plan.keys()) as scorer:
        right = {
            model: {
                set: _right(found[model], libraries[model], set, scorer)
                for set in (plan.AIME, plan.GSM8K)
            }
            for model in plan.MODELS
        }
        accepted = {
            model: acceptance(_deposits(found[model]), threshold["threshold"], scorer)
            for model in plan.MODELS
        }
        held_out = {
            model: _held_out(found[model], libraries[model], scorer) for model in plan.MODELS
        }
    ratios = {model: _ratios(found[model], libraries[model], right[model]) for model in plan.MODELS}
    small = right["0.5b"]
    figures = {
        "aime_recurring_library_0_5b": _share(small[plan.AIME][LIBRARY]),
        "aime_bare_0_5b": _share(small[plan.AIME]["bare"]),
        "aime_bare_1_5b": _share(right["1.5b"][plan.AIME]["bare"]),
        "gsm8k_recurring_library_0_5b": _share(small[plan.GSM8K][LIBRARY]),
        "gsm8k_bare_0_5b": _share(small[plan.GSM8K]["bare"]),
        "gsm8k_bare_1_5b": _share(right["1.5b"][plan.GSM8K]["bare"]),
        "key_free_wrong_acceptance": accepted["0.5b"]["wrong_share"],
        "token_ratio_failed_first": ratios["0.5b"]["failed_first"]["token_ratio"],
    }
    details = {
        "registration": registration,
        "threshold": threshold,
        "accuracy": {
            model: {
                set: {measure: share(list(by.values())) for measure, by in measures.items()}
                for set, measures in sets.items()
            }
            for model, sets in right.items()
        },
        "compared": _comparisons(right),
        "accepted_without_a_key": accepted,
        "held_out": held_out,
        "cost": {
            model: {
                "baselines": _costs(found[model], right[model]),
                "replay": ratios[model],
            }
            for model in plan.MODELS
        },
        "joules": None,
    }
    harness.report("headline", figures, TARGETS, details, path, command)


def _deposits(found: dict[str, Worked], set: str | None = None) -> dict[str, Worked]:
    ids = [
        problem.id
        for problem in plan.problems()
        if problem.part == "deposit" and set in (None, problem.set)
    ]
    return {id: found[id] for id in ids}


def _right(
    found: dict[str, Worked], library: Found, set: str, scorer: Scorer
) -> dict[str, dict[str, bool]]:
    """Whether each way is right, for every problem of a set."""
    problems = _deposits(found, set)
    out = {measure: right_by(problems, measure, scorer) for measure in MEASURES}
    asked = library["asked"]["recurring"]
    out[LIBRARY] = {
        id: scorer.right(id, asked[id]["answer"]) if id in asked else out["bare"][id]
        for id in problems
    }
    return out


def _share(by: dict[str, bool]) -> float:
    return sum(by.values()) / len(by)


def _comparisons(right: dict[str, dict[str, dict[str, dict[str, bool]]]]) -> Found:
    """The small model with its library against every way of the large one, and against its own."""
    out: Found = {}
    for set, ways in right["0.5b"].items():
        library = ways[LIBRARY]
        for model, sets in right.items():
            for measure, by in sets[set].items():
                if (model, measure) != ("0.5b", LIBRARY):
                    out[f"{set}: 0.5b {LIBRARY} / {model} {measure}"] = compared(library, by)
    return out


def _held_out(found: dict[str, Worked], library: Found, scorer: Scorer) -> Found:
    """Problems of the same family that were never deposited: bare, and with a related solution in
    context."""
    asked = library["asked"]["held_out"]
    bare = {id: scorer.right(id, found[id].answer_of("bare")) for id in asked}
    transferred = {id: scorer.right(id, one["answer"]) for id, one in asked.items()}
    return {
        "bare": share(list(bare.values())),
        "with_a_related_solution": share(list(transferred.values())),
        "had_one_in_context": sum(bool(one["context"]) for one in asked.values()),
        "replayed": sum(one["how"] == "replayed" for one in asked.values()),
        "compared": compared(transferred, bare),
    }


def _ratios(found: dict[str, Worked], library: Found, right: Found) -> Found:
    """What solving took over what replaying takes: of all that replays, and of what the model got
    wrong at first."""
    asked = library["asked"]["recurring"]
    bare = {**right[plan.AIME]["bare"], **right[plan.GSM8K]["bare"]}
    replayed = {id: one for id, one in asked.items() if one["how"] == "replayed"}
    decoded = sorted(one["decode_tokens"] for one in replayed.values())
    return {
        "deposits": len(asked),
        "replayed": len(replayed),
        "decode_tokens_median": decoded[len(decoded) // 2] if decoded else None,
        "all": _ratio(found, replayed),
        "failed_first": _ratio(found, {id: one for id, one in replayed.items() if not bare[id]}),
        "by_problem": {id: _ratio(found, {id: one}) for id, one in replayed.items()},
    }


def _ratio(found: dict[str, Worked], replayed: Found) -> Found:
    if not replayed:
        return {"problems": 0, "token_ratio": None, "cpu_ratio": None}
    solved = [effort(found[id]) for id in replayed]

    def total(rows: list[Found], *names: str) -> float:
        return sum(row[name] for row in rows for name in names)

    rows = list(replayed.values())
    tokens = ("prefill_tokens", "decode_tokens")
    solving, again = total(solved, *tokens), total(rows, *tokens)
    return {
        "problems": len(rows),
        "solving_tokens": solving,
        "replay_tokens": again,
        "token_ratio": solving / again,
        "cpu_ratio": total(solved, "cpu_seconds") / total(rows, "cpu_seconds"),
        # At the budget of a published figure, 50,000 tokens before giving up: waste, not merit.
        "token_ratio_at_50_000_tokens_a_problem": 50_000 * len(rows) / again,
    }


def _costs(found: dict[str, Worked], right: Found) -> Found:
    """Tokens and seconds for each right answer."""
    batches: dict[str, Callable[[Worked], Found]] = {
        "bare": lambda one: one.batches[plan.CHAIN]["greedy"],
        "corrected": lambda one: one.batches[plan.CHAIN],
        "voted": lambda one: one.batches[plan.TEXT],
        "programs": lambda one: one.batches[plan.PROGRAM],
    }
    out: Found = {}
    for set in (plan.AIME, plan.GSM8K):
        problems = _deposits(found, set)
        for measure, batch in batches.items():
            rows = [batch(one) for one in problems.values()]
            count = sum(right[set][measure].values())
            row: Found = {"right": count}
            for name in ("decode_tokens", "seconds", "cpu_seconds"):
                if all(name in one for one in rows):
                    spent = sum(one[name] for one in rows)
                    row[name] = round(spent, 2)
                    row[f"{name}_per_right_answer"] = round(spent / count, 2) if count else None
            out[f"{set}: {measure}"] = row
    return out
