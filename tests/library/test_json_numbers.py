"""JSON with whole numbers of any length."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kvgraft.cli.output import write_document
from kvgraft.errors import KvgraftError
from kvgraft.library.json_numbers import dumps, loads
from kvgraft.library.problem import Problem
from kvgraft.library.solve import problem_key
from kvgraft.library.verify.base import Case
from kvgraft.library.verify.specs import make_verifier
from kvgraft.library.workspace import Workspace
from library.scripted import FOUR, run

LONG = 10**4999 + 7


@pytest.mark.parametrize(
    "value",
    [
        {"n": LONG},
        {"n": -LONG},
        [1, [LONG, {"x": [LONG, -LONG, LONG - 1]}], "a", None, True, 1.5],
        {"b": "\0\ud800 é", "a": {"deep": [2**70]}},
        {},
    ],
)
def test_what_is_written_is_read(value: Any) -> None:
    assert loads(dumps(value)) == value
    assert list(loads(dumps(value))) == list(value)


def test_it_is_plain_json() -> None:
    assert dumps({"n": 10**4999}) == '{"n": 1' + "0" * 4999 + "}"
    options: dict[str, Any] = {"sort_keys": True, "separators": (",", ":")}
    plain = {"b": [1, 2.5], "a": "x"}
    assert dumps(plain, **options) == json.dumps(plain, **options)
    assert dumps({"b": LONG, "a": LONG}, **options).startswith('{"a":1000')


def test_what_is_no_json_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (float("nan"), [float("inf"), LONG]):
        with pytest.raises(ValueError, match="JSON compliant"):
            dumps(value, allow_nan=False)
    for value in (object(), [object(), LONG]):
        with pytest.raises(TypeError):
            dumps(value)
    with pytest.raises((ValueError, RecursionError)):
        dumps(endless)
    for text in ("", "{", "1" * 5_000 + "x"):
        with pytest.raises(ValueError):  # noqa: PT011 (JSON's own)
            loads(text)


# --- where checks go ------------------------------------------------------------------------------


def test_a_check_of_5_000_digits_is_solved_kept_and_shown(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = Problem("long", FOUR.text, "4", checks={"tests": [{"n": LONG}]})
    (outcome,) = run(workspace, problem)
    deposit = workspace.library.get(outcome.deposit_id or "")
    assert deposit.grounds is not None
    assert deposit.grounds.case == problem.case()
    write_document({"checks": deposit.grounds.case.checks})
    assert loads(capsys.readouterr().out) == {"checks": problem.checks}


def test_other_digits_are_another_problem_of_a_run(workspace: Workspace) -> None:
    one, same, other = (
        problem_key(workspace, Problem("x", "x", checks={"n": number}))
        for number in (LONG, LONG, LONG + 1)
    )
    assert one == same != other


def test_a_command_sees_every_digit(tmp_path: Path) -> None:
    script = tmp_path / "check.py"
    script.write_text(
        "import sys; text = sys.stdin.read()\nsys.exit(not ('1' + '0' * 4998 + '7') in text)\n"
    )
    judge = make_verifier(f"command:{sys.executable} {script}")
    for number, passed in ((LONG, True), (LONG + 10, False)):
        case = Case("p", checks={"n": number})
        assert judge.verify(case, "Answer: 4").passed is passed
    judge.close()


@pytest.mark.parametrize(
    ("spec", "checks"),
    [
        ("schema", {"schema": {"type": "object", "maxProperties": LONG}}),
        ("substitute", {"constraints": {"symbols": ["x"], "where": ["x > 0"], "extra": LONG}}),
    ],
)
def test_other_verifiers_do_not_crash_on_it(spec: str, checks: dict[str, Any]) -> None:
    """Whether they take such a number is theirs to say."""
    judge = make_verifier(spec)
    try:
        verdict = judge.verify(Case("p", checks=checks), 'Answer: 4\n```json\n{"x": 4}\n```')
    except KvgraftError:
        return
    finally:
        judge.close()
    assert verdict.passed or verdict.evidence
