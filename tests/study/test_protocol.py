"""Protocols: what a file may say, and that nothing of it is guessed or lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import InputError
from kvgraft.limits import MAX_PROTOCOL_BYTES, MAX_TRANSFERRED_SOLUTIONS
from kvgraft.study.protocol import (
    BASELINES,
    CONTROLS,
    ModelSpec,
    SetSpec,
    parse_protocol,
    read_protocol,
)
from study.studied import PLAN

ROOT = Path(__file__).resolve().parents[2]
SET = PLAN["sets"][0]


def test_what_is_left_out_has_its_default_and_is_registered_too() -> None:
    plan = parse_protocol(PLAN)
    assert plan.models == (ModelSpec("toy", "scripted"),)
    assert plan.sets[0] == SetSpec("sums", 0.5, 8, families=("add", "double"))
    assert plan.baselines == BASELINES
    assert plan.controls == CONTROLS
    registered = plan.as_dict()
    assert registered["solve"]["top_p"] == 0.95
    assert registered["sets"][0]["split"] == "test"
    assert json.loads(json.dumps(registered)) == registered
    assert parse_protocol(registered) == plan  # a worker reads it back out of the registration


def test_a_whole_number_may_stand_for_another() -> None:
    plan = parse_protocol({**PLAN, "solve": {"temperature": 1}, "watts": 65})
    assert (plan.solve.temperature, plan.watts) == (1.0, 65.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seeds": 1}, "unknown keys seeds"),
        ({"solve": {"attempt": 8}}, "unknown keys attempt"),
        ({"models": [{"name": "toy", "label": "a", "lable": "b"}]}, "unknown keys lable"),
        ({"models": [{"name": "toy"}]}, "missing: label"),
        ({"models": []}, "one or more"),
        ({"models": {"name": "toy", "label": "a"}}, "a list"),
        ({"models": [{"name": "toy", "label": "a"}] * 2}, "its own name"),
        ({"models": [{"name": "toy", "label": "../a"}]}, "is made of"),
        ({"models": [{"name": "toy", "label": "A"}]}, "is made of"),
        ({"models": [{"name": "toy", "label": "a", "library": False}]}, "has a library"),
        ({"models": [{"name": "http://h/v1#m", "label": "a"}]}, "endpoint has no library"),
        ({"sets": [SET, SET]}, "its own name"),
        ({"sets": [{**SET, "file": "x.jsonl"}]}, "one of file, hub and families"),
        ({"sets": [{"name": "a"}]}, "one of file, hub and families"),
        ({"sets": [{**SET, "families": ["adding"]}]}, "no family adding"),
        ({"sets": [{"name": "a", "families": ["add"]}]}, "how many"),
        ({"sets": [{**SET, "deposit_share": 1.5}]}, "0 to 1"),
        ({"sets": [{**SET, "deposit_share": 0}]}, "nothing would be deposited"),
        ({"sets": [{**SET, "count": 0}]}, "over 0"),
        ({"sets": [{**SET, "count": 8.0}]}, "whole number"),
        ({"seed": True}, "whole number"),
        ({"seed": -1}, "a seed"),
        ({"seed": "1"}, "whole number"),
        ({"name": " "}, "are text"),
        ({"question": ""}, "are text"),
        ({"verifier_sees_key": 1}, "true or false"),
        ({"baselines": ["greedy", "luck"]}, "no luck"),
        ({"controls": ["shuffle"]}, "no shuffle"),
        ({"control_problems": -1}, "control_problems"),
        ({"near_misses": 1001}, "near_misses"),
        ({"watts": 0}, "watts"),
        ({"watts": float("inf")}, "a number"),
        ({"solve": {"attempts": 0}}, "attempts"),
        ({"solve": {"temperature": 0}}, "temperature"),
        ({"solve": {"ladder": "climb:3"}}, "rung"),
        ({"solve": {"ladder": "correct:1"}}, "nothing to correct"),
        ({"solve": {"budget_tokens": 0}}, "budget"),
        ({"ask": {"max_new_tokens": 0}}, "max_new_tokens"),
        ({"ask": {"solutions": MAX_TRANSFERRED_SOLUTIONS + 1}}, "solutions"),
        ({"ask": {"similarity": 0}}, "similarity"),
        ({"ask": {"verified": True}}, "sees the key"),
        ({"ask": None}, "an object"),
    ],
)
def test_bad_protocols_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse_protocol({**PLAN, **change})


@pytest.mark.parametrize("missing", ["name", "question", "seed", "models", "sets", "verifier"])
def test_what_decides_a_study_has_no_default(missing: str) -> None:
    with pytest.raises(InputError, match=f"missing: {missing}"):
        parse_protocol({name: value for name, value in PLAN.items() if name != missing})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"name": "a", "name": "b"}', "\xff", "[" * 100_000, "x" * MAX_PROTOCOL_BYTES],
)
def test_files_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "protocol.json"
    path.write_bytes(text.encode("latin-1") + b" ")
    with pytest.raises(InputError) as caught:
        read_protocol(path)
    assert str(path) in caught.value.where
    with pytest.raises(InputError, match="cannot read"):
        read_protocol(tmp_path)


def test_the_protocols_that_we_ship_can_be_read() -> None:
    paths = sorted((ROOT / "benchmarks" / "studies").glob("*.json"))
    assert paths
    for path in paths:
        assert read_protocol(path).question
