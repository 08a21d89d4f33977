"""The figures of a study, from its outcomes. Groups are never added up: new, held-out and recurring
problems are reported apart. What was not measured is None."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from kvgraft.library.answer import RECORDED, REPLAYED
from kvgraft.meter import Cost
from kvgraft.study.items import GROUPS, RECURRING
from kvgraft.study.journal import Row
from kvgraft.study.outcomes import Outcome, Outcomes, cost_of
from kvgraft.study.statistics import (
    break_even_reuses,
    mcnemar_counts,
    paired_bootstrap,
    risk_coverage,
    upper_bound,
    wilson,
)

# What a cost is compared in. Tokens are those computed: prefilled and decoded, not reused.
UNITS = ("tokens", "seconds", "cpu_seconds", "joules")
_MAX_POINTS = 50  # of a risk curve


def amount(cost: Cost, unit: str) -> float | None:
    """A cost in one unit."""
    if unit != "tokens":
        value: float | None = getattr(cost, unit)
        return value
    if cost.prefill_tokens is None or cost.decode_tokens is None:
        return None
    return cost.prefill_tokens + cost.decode_tokens


def total(costs: Iterable[Cost]) -> Cost:
    """All costs together."""
    return sum(costs, Cost.nothing())


def of_group(outcomes: Outcomes, group: str) -> list[Outcome]:
    """The outcomes of one group, in their order."""
    return [one for one in outcomes.values() if one.item.group == group]


def accuracy(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """How many are right, with the score interval at 95 %, by family too, and what it cost; None
    for none."""
    if not outcomes:
        return None
    right = sum(one.right for one in outcomes)
    interval = wilson(right, len(outcomes))
    families: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for one in outcomes:
        families[one.item.family][0] += one.right
        families[one.item.family][1] += 1
    cost = total(one.cost for one in outcomes)
    return {
        "problems": len(outcomes),
        "right": right,
        "share": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "without_answer": sum(one.answer is None for one in outcomes),
        "how": dict(Counter(one.how for one in outcomes)),
        "from_store_wrong": sum(one.stored and not one.right for one in outcomes),
        "vouched_for": sum(one.vouched_for for one in outcomes),
        "vouched_for_wrong": sum(one.vouched_for and not one.right for one in outcomes),
        "families": {name: {"right": k, "problems": n} for name, (k, n) in families.items()},
        "cost": cost.as_dict(),
        "per_right": {
            unit: None if not right or (all_ := amount(cost, unit)) is None else all_ / right
            for unit in UNITS
        },
    }


def paired(first: Outcomes, second: Outcomes, group: str) -> dict[str, Any] | None:
    """Two conditions on the same problems: McNemar's exact test, and the difference of the shares
    with a bootstrap interval; None where they share none."""
    ids = [id for id, one in first.items() if one.item.group == group and id in second]
    if not ids:
        return None
    ours, theirs = [first[id].right for id in ids], [second[id].right for id in ids]
    only_ours = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    only_theirs = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    interval = paired_bootstrap([float(a) for a in ours], [float(b) for b in theirs])
    assert interval is not None  # a difference always has one
    return {
        "group": group,
        "problems": len(ids),
        "only_first": only_ours,
        "only_second": only_theirs,
        "p": mcnemar_counts(only_ours, only_theirs),
        "difference": interval.estimate,
        "low": interval.low,
        "high": interval.high,
    }


def deposits(rows: Mapping[str, Row], right: Mapping[str, bool]) -> dict[str, Any]:
    """What was kept, and what of it is wrong, each named. `right`: of those with a deposit."""
    kept = [id for id, row in rows.items() if row["deposit_id"] is not None]
    wrong = [id for id in kept if not right[id]]
    solving = total(cost_of(row) for row in rows.values())
    whole = [row["cost_with_capture"] for row in rows.values()]
    with_capture = None if None in whole else total(Cost(**one) for one in whole)
    return {
        "problems": len(rows),
        "deposited": len(kept),
        "replaying": sum(row["replays"] is True for row in rows.values()),
        "text_only": sum(row["replays"] is False for row in rows.values()),
        "states": dict(Counter(row["state"] for row in rows.values())),
        "grades": dict(Counter(rows[id]["grade"] for id in kept)),
        "wrong": [
            {"id": id, "answer": rows[id]["answer"], "grade": rows[id]["grade"]} for id in wrong
        ],
        "wrong_share": len(wrong) / len(kept) if kept else None,
        "wrong_upper": upper_bound(len(wrong), len(kept)) if kept else None,
        "cost": solving.as_dict(),
        "cost_with_capture": None if with_capture is None else with_capture.as_dict(),
    }


def recurrence(library: Outcomes, bare: Outcomes, rows: Mapping[str, Row]) -> dict[str, Any]:
    """What asking again took, where it was answered by replay, against what solving took."""
    replays = [one for one in of_group(library, RECURRING) if one.how == REPLAYED]
    decoded = [one.cost.decode_tokens or 0 for one in replays]
    failed_first = [one for one in replays if not bare[one.item.id].right]
    return {
        "replayed": len(replays),
        "replayed_right": sum(one.right for one in replays),
        "replay_decode_tokens_median": median(decoded) if decoded else None,
        "failed_first": len(failed_first),
        "ratios": _ratios(replays, rows),
        "ratios_failed_first": _ratios(failed_first, rows),
    }


def _ratios(replays: Sequence[Outcome], rows: Mapping[str, Row]) -> dict[str, Any]:
    """Solving over replaying, in sum, with a paired bootstrap interval."""
    found: dict[str, Any] = {}
    for unit in UNITS:
        pairs = [(amount(cost_of(rows[o.item.id]), unit), amount(o.cost, unit)) for o in replays]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        interval = None
        if known and len(known) == len(pairs):
            interval = paired_bootstrap([a for a, _ in known], [b for _, b in known], of="ratio")
        found[unit] = None
        if interval is not None:
            found[unit] = {
                "ratio": interval.estimate,
                "low": interval.low,
                "high": interval.high,
            }
    return found


def break_even(made: Mapping[str, Any], reuse: Cost, without: Cost) -> dict[str, int | str | None]:
    """From how many rounds of asking again on the deposits have paid, by unit: a number, "never",
    or None where a cost was not measured."""
    found: dict[str, int | str | None] = {}
    if made["cost_with_capture"] is None:
        return dict.fromkeys(UNITS)
    deposit = Cost(**made["cost_with_capture"])
    for unit in UNITS:
        costs = [amount(one, unit) for one in (deposit, reuse, without)]
        known = [cost for cost in costs if cost is not None]
        found[unit] = None
        if len(known) == len(costs):
            reuses = break_even_reuses(*known)
            found[unit] = "never" if reuses is None else reuses
    return found


def risk_curve(votes: Outcomes) -> list[dict[str, float]]:
    """How wrong the majority's answers are, over how many of the attempts have to agree."""
    if not votes:
        return []
    shares = [one.row["share"] for one in votes.values()]
    scores = [float("-inf") if share is None else float(share) for share in shares]
    points = risk_coverage(scores, [not one.right for one in votes.values()])
    return [
        {
            "threshold": point.threshold,
            "coverage": point.coverage,
            "accepted": point.accepted,
            "wrong": point.wrong,
            "risk": point.risk,
            "risk_upper": point.risk_upper,
        }
        for point in points[-_MAX_POINTS:]
    ]


def control(outcomes: Outcomes, bare: Outcomes, library: Outcomes) -> dict[str, Any]:
    """What a wrong library did. `noticed`: a deposit was there and was not believed.

    `verified_wrongly` counts wrong answers that were vouched for, but not those that the library as
    it is gives too: these the verifier let in, and they are counted with the deposits. Of these,
    `recorded_wrongly` came from deposits that keep text only, which no replay can check.
    """
    rows = list(outcomes.values())
    wrong = [one for one in rows if one.vouched_for and not one.right]
    inherited = [one for one in wrong if _as_before(one, library.get(one.item.id))]
    noticed = ("not_reproduced", "damaged", "rendering")
    return {
        "problems": len(rows),
        "how": dict(Counter(one.how for one in rows)),
        "noticed": sum(
            any(reason.startswith(noticed) for reason in one.row.get("reasons", ())) for one in rows
        ),
        "verified_wrongly": len(wrong) - len(inherited),
        "recorded_wrongly": sum(one.how == RECORDED and one not in inherited for one in wrong),
        "wrong_in_the_library_too": len(inherited),
        "same_as_bare": sum(_same(one, bare[one.item.id]) for one in rows),
        "right": sum(one.right for one in rows),
        "from_decoy": sum(one.row.get("from_decoy", False) for one in rows),
    }


def _as_before(one: Outcome, library: Outcome | None) -> bool:
    return library is not None and (one.how, one.answer) == (library.how, library.answer)


def _same(one: Outcome, other: Outcome) -> bool:
    """Token for token, and to the last bit of the logits that chose them."""
    digest = one.row.get("logits_sha256")
    return digest is not None and (digest, one.row["text"]) == (
        other.row.get("logits_sha256"),
        other.row["text"],
    )


def near_miss_table(rows: Mapping[str, Row]) -> dict[str, Any]:
    """By kind: how many near misses were asked, how many have another answer than the stored
    problem, and how many were answered from the library all the same."""
    kinds: dict[str, dict[str, int]] = {}
    for row in rows.values():
        kind = kinds.setdefault(row["kind"], {"asked": 0, "differing": 0, "from_library": 0})
        kind["asked"] += 1
        kind["differing"] += row["differs"] is True
        kind["from_library"] += row["from_library"]
    asked = sum(kind["asked"] for kind in kinds.values())
    answered = sum(kind["from_library"] for kind in kinds.values())
    return {
        "asked": asked,
        "from_library": answered,
        "upper": upper_bound(answered, asked) if asked else None,
        "kinds": kinds,
    }


def groups(outcomes: Outcomes) -> dict[str, Any]:
    """`accuracy` of each group."""
    return {group: accuracy(of_group(outcomes, group)) for group in GROUPS}
