"""Scoring a finished study: the key is opened here, and nowhere before.

What comes out is plain data, from which `kvgraft.study.page` makes the page. Scoring needs no model
and can be done again by anyone who has the run folder and the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kvgraft
from kvgraft.errors import CheckFailed, InputError
from kvgraft.meter import Cost
from kvgraft.store.local import write_whole
from kvgraft.study import figures
from kvgraft.study.bench import RESULTS
from kvgraft.study.findings import findings
from kvgraft.study.items import GROUPS, RECURRING, Item, collect, read_items
from kvgraft.study.journal import Journal, Row
from kvgraft.study.outcomes import Outcomes, answer_cache, cost_of, outcomes, read_rows
from kvgraft.study.protocol import CONTROLS, ModelSpec, Protocol, parse_protocol
from kvgraft.study.registration import (
    Registration,
    blind,
    canonical_json,
    load_registration,
    problems_digest,
)
from kvgraft.study.score import Scorer
from kvgraft.testing.near_misses import near_misses, similarity_cache_hits

FORMAT = "kvgraft-study-1"
NAME = "figures.json"
GREEDY, VOTE, LIBRARY = "greedy", "vote", "library"
# Conditions, in the order in which they are told of, and the step that each is in.
CONDITIONS = {
    GREEDY: "greedy",
    VOTE: "vote",
    "few_shot_text": "few_shot_text",
    "prefix_cache": "emptied",
    LIBRARY: "library",
}
CACHES = ("answer_cache", "similarity_cache")


def score_study(folder: Path, base: Path) -> dict[str, Any]:
    """Score the run in `folder` and write its figures there. `base`: where data files are named
    from.

    Raises:
        CheckFailed: the study is not finished, or data or problems are not the registered ones.
        InputError, MissingExtra, DownloadFailed: no registration, or no data.
        StoreError: the folder cannot be written.
    """
    registration = load_registration(folder)
    plan = parse_protocol(registration.parts["protocol"], "the registered protocol")
    rows = read_rows(folder, plan, registration)
    items = read_items(folder)
    _, sealed = blind(item.problem for item in collect(plan, base))
    _check_posed(items, registration)
    with Scorer(sealed.open(registration)) as scorer:
        data = _figures(plan, registration, rows, items, scorer)
    text = json.dumps(data, indent=1, allow_nan=False)
    write_whole(folder / NAME, text.encode() + b"\n")
    return data


def load_figures(folder: Path) -> dict[str, Any]:
    """The figures that scoring left in a run folder.

    Raises:
        InputError: there are none, or they are of another registration or release.
    """
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = data["format"] == FORMAT
        same = data["registration"]["hash"] == load_registration(folder).hash
    except OSError as error:
        raise InputError(
            "the study was not scored", where=str(folder), hint="kvgraft study score"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"these are no figures of a study: {error!r}", where=str(path)) from error
    if not known or not same:
        raise InputError(
            "the figures are of another study or release", where=str(path), hint="score it again"
        )
    found: dict[str, Any] = data
    return found


def raw_results(folder: Path) -> str:
    """Every row of every step as it came, a line of JSON each; the first line of a step names it.

    Raises:
        InputError, StoreError: results are damaged, or cannot be read.
    """
    registration = load_registration(folder)
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in (folder / RESULTS).glob("*.gz"))
    journals = [Journal(folder / RESULTS, name, registration.hash) for name in names]
    lines = [line for one in journals for line in (one.head, *one.rows)]
    return "".join(f"{canonical_json(line)}\n" for line in lines)


def _check_posed(items: list[Item], registration: Registration) -> None:
    """What was posed is what was registered."""
    data = registration.parts["data"]
    splits = {name: [item.id for item in items if item.group == name] for name in GROUPS}
    same = problems_digest(item.problem for item in items) == data["problems_sha256"]
    if not same or splits != data["splits"]:
        raise CheckFailed("the problems that were posed are not those that were registered")


def _figures(
    plan: Protocol,
    registration: Registration,
    rows: Mapping[str, Mapping[str, Row]],
    items: list[Item],
    scorer: Scorer,
) -> dict[str, Any]:
    conditions = {
        model.label: _conditions(plan, model, rows, items, scorer) for model in plan.models
    }
    models = {
        model.label: _model(plan, model, rows, items, scorer, conditions) for model in plan.models
    }
    controls = [
        one["controls"][name]["verified_wrongly"]
        for one in models.values()
        for name in one["controls"]
        if name != "always_yes"  # a verifier that looks at nothing is wrong by design
    ]
    data: dict[str, Any] = {
        "format": FORMAT,
        "kvgraft": kvgraft.__version__,
        "name": plan.name,
        "question": plan.question,
        "registration": {
            "hash": registration.hash,
            "registered_at": registration.registered_at,
            "amendments": list(registration.amendments),
            **registration.parts,
        },
        "problems": {name: sum(item.group == name for item in items) for name in GROUPS},
        "models": models,
        "controls_verified_wrongly": sum(controls) if controls else None,
    }
    data["findings"] = findings(data)
    plain: dict[str, Any] = json.loads(json.dumps(data, allow_nan=False))
    return plain


def _conditions(
    plan: Protocol,
    model: ModelSpec,
    rows: Mapping[str, Mapping[str, Row]],
    items: list[Item],
    scorer: Scorer,
) -> dict[str, Outcomes]:
    """Every condition of a model that was run, and the caches that follow from them."""
    found = {
        name: outcomes(rows[key], items, scorer)
        for name, step in CONDITIONS.items()
        if (key := f"{model.label}.{step}") in rows and _wanted(plan, name)
    }
    if model.library:
        kept = rows[f"{model.label}.deposit"]
        for name, ratio in zip(CACHES, (1.0, plan.ask.similarity), strict=True):
            if name in plan.baselines:
                found[name] = answer_cache(found[GREEDY], kept, scorer, ratio)
    return found


def _wanted(plan: Protocol, name: str) -> bool:
    return name in plan.baselines or name in (GREEDY, LIBRARY)


def _model(
    plan: Protocol,
    model: ModelSpec,
    rows: Mapping[str, Mapping[str, Row]],
    items: list[Item],
    scorer: Scorer,
    conditions: Mapping[str, Mapping[str, Outcomes]],
) -> dict[str, Any]:
    mine = conditions[model.label]
    made: dict[str, Any] = {
        "name": model.name,
        "library": model.library,
        "conditions": {name: figures.groups(one) for name, one in mine.items()},
        "risk_coverage": figures.risk_curve(mine.get(VOTE, {})),
        "controls": {},
        "paired": [],
    }
    if not model.library:
        return made
    kept = rows[f"{model.label}.deposit"]
    right = {id: scorer.right(id, row["answer"]) for id, row in kept.items()}
    library, bare = mine[LIBRARY], mine[GREEDY]
    made["deposits"] = figures.deposits(kept, right)
    made["recurrence"] = figures.recurrence(library, bare, kept)
    again = figures.total(cost_of(row) for row in kept.values())
    asked = figures.total(one.cost for one in figures.of_group(library, RECURRING))
    made["break_even"] = {
        "solving_again": figures.break_even(made["deposits"], asked, again),
        **{
            name: figures.break_even(made["deposits"], asked, _cost_of_group(mine[name], RECURRING))
            for name in (GREEDY, VOTE)
            if name in mine
        },
    }
    made["paired"] = [
        {"first": f"{model.label} {LIBRARY}", "second": f"{label} {name}", **found}
        for label, theirs in conditions.items()
        for name, other in theirs.items()
        if (label, name) != (model.label, LIBRARY)
        for group in GROUPS
        if (found := figures.paired(library, other, group)) is not None
    ]
    made["controls"] = _controls(plan, model, rows, items, scorer, mine)
    if plan.near_misses:
        made["near_misses"] = {
            **figures.near_miss_table(rows[f"{model.label}.near_misses"]),
            "similarity_caches": [
                asdict(one)
                for one in similarity_cache_hits(near_misses(plan.seed, plan.near_misses))
            ],
        }
    return made


def _cost_of_group(condition: Outcomes, group: str) -> Cost:
    return figures.total(one.cost for one in figures.of_group(condition, group))


def _controls(
    plan: Protocol,
    model: ModelSpec,
    rows: Mapping[str, Mapping[str, Row]],
    items: list[Item],
    scorer: Scorer,
    mine: Mapping[str, Outcomes],
) -> dict[str, Any]:
    found = {}
    for name in (one for one in CONTROLS if one in plan.controls):
        seen = outcomes(rows[f"{model.label}.{name}"], items, scorer)
        found[name] = figures.control(seen, mine[GREEDY], mine[LIBRARY])
        kept = rows.get(f"{model.label}.{name}.deposit")
        if kept is not None:
            right = {id: scorer.right(id, row["answer"]) for id, row in kept.items()}
            made = figures.deposits(kept, right)
            found[name] |= {"deposited": made["deposited"], "deposited_wrong": len(made["wrong"])}
    return found
