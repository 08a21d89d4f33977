"""Combinators, plug-ins, the verifier `schema`, and what all verifiers have in common."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import UsageError, VerifierError
from kvgraft.library.verify.base import Case, make_verifier
from kvgraft.library.verify.combine import member_specs
from kvgraft.library.verify.json_schema import SchemaVerifier

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


# --- all and any ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected", "trace", "passed", "grade"),
    [
        ("all:[exact] [regex:[0-9]+]", "5", "Answer: 5", True, "proved"),
        ("all:[exact] [regex:[0-9]+]", "6", "Answer: 5", False, "proved"),
        ("all:[regex:[0-9]+] [exact]", "6", "Answer: 5", False, "proved"),
        ("any:[exact] [regex:[0-9]+]", "6", "Answer: 5", True, "proved"),
        ("any:[exact] [regex:[a-z]+]", "6", "Answer: 5", False, "proved"),
        ("all:[consensus:0.5,2] [regex:[0-9]+]", None, "Answer: 5", True, "proved"),
        ("all:[consensus:0.5,2]", None, "Answer: 5", True, "agreed"),
        ("any:[exact] [all:[regex:[0-9]] [regex:5]]", "6", "Answer: 5", True, "proved"),
    ],
)
def test_members_together(
    spec: str, expected: str | None, trace: str, passed: bool, grade: str
) -> None:
    verifier = make_verifier(spec)
    assert verifier.spec == spec
    verdict = verifier.verify(Case("p", expected, peers=("Answer: 5",)), trace)
    assert (verdict.passed, verdict.grade) == (passed, grade)
    assert make_verifier(verifier.spec).version == verifier.version


def test_later_members_are_not_asked_and_are_named() -> None:
    verifier = make_verifier("all:[regex:[a-z]+] [command:false]")
    verdict = verifier.verify(Case("p"), "Answer: 5")
    assert verdict.evidence["not_run"] == [make_verifier("command:false").spec]
    assert len(verdict.evidence["members"]) == 1


def test_all_is_about_one_answer(tmp_path: Path) -> None:
    trace = '```json\n{"n": 1}\n```\nThe answer is 7.'
    verifier = make_verifier("all:[regex:[0-9]] [schema]")
    verdict = verifier.verify(Case("p", checks={"schema": OBJECT}), trace)
    verifier.close()
    assert not verdict.passed
    assert "another answer" in verdict.evidence["members"][1]["reason"]


def test_needs_are_those_of_all_members() -> None:
    for kind in ("all", "any"):
        verifier = make_verifier(f"{kind}:[exact] [consensus] [code]")
        assert verifier.needs == {"expected", "peers", "tests"}


@pytest.mark.parametrize(
    "argument",
    ["", "exact", "[exact", "exact]", "[exact] math", "[]", "[ ]", "[[exact]", "][", "[a]]"],
)
def test_brackets_that_do_not_match_are_refused(argument: str) -> None:
    with pytest.raises(UsageError):
        member_specs(argument)


def test_brackets_inside_a_spec_are_its_own() -> None:
    assert member_specs("[regex:[0-9]+]  [all:[a] [b]]") == ["regex:[0-9]+", "all:[a] [b]"]


def test_an_unknown_member_is_refused() -> None:
    with pytest.raises(UsageError, match="no verifier 'nope'"):
        make_verifier("all:[exact] [nope]")


# --- plug-ins ---------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with entry points, as an installer leaves it."""
    (tmp_path / "parity_plugin.py").write_text(
        "from kvgraft.library.verify.base import Verdict\n"
        "class Parity:\n"
        "    name, version, spec, needs = 'parity', '7', 'parity', frozenset()\n"
        "    def __init__(self, argument): self.argument = argument\n"
        "    def verify(self, case, trace):\n"
        "        if self.argument == 'crash': raise RuntimeError('oh')\n"
        "        if self.argument == 'lie': return True\n"
        "        return Verdict(True, 'proved', trace, 'parity', '7', {})\n"
        "    def close(self): pass\n"
    )
    info = tmp_path / "parity_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parity-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[kvgraft.verifiers]\n"
        "parity = parity_plugin:Parity\n"
        "exact = parity_plugin:Parity\n"
        "broken = parity_plugin:Absent\n"
        "missing = no_such_module_anywhere:make\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("parity_plugin", None)


def test_a_plug_in_is_a_verifier(plugin: None) -> None:
    verdict = make_verifier("parity").verify(Case("p"), "4")
    assert (verdict.passed, verdict.version) == (True, "7")
    assert make_verifier("all:[parity] [regex:4]").verify(Case("p"), "4").passed


@pytest.mark.parametrize("how", ["crash", "lie"])
def test_a_plug_in_that_breaks_fails_the_trace(plugin: None, how: str) -> None:
    verdict = make_verifier(f"parity:{how}").verify(Case("p"), "4")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["failure"]


def test_what_is_built_in_is_not_replaced(plugin: None) -> None:
    assert type(make_verifier("exact")).__name__ == "ExactVerifier"


@pytest.mark.parametrize("name", ["broken", "missing"])
def test_a_plug_in_that_cannot_be_loaded_is_named(plugin: None, name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        make_verifier(name)
    assert "entry point" in str(caught.value.where)


def test_plug_ins_are_offered(plugin: None) -> None:
    with pytest.raises(UsageError) as caught:
        make_verifier("nope")
    assert "parity" in str(caught.value.hint)


# --- schema -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schema() -> Iterator[SchemaVerifier]:
    made = SchemaVerifier(seconds=2.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("trace", "passed", "grade"),
    [
        ('{"n": 1}', True, "proved"),
        ('So:\n```json\n{"n": 2}\n```\nDone.', True, "proved"),
        ('```\nnot json\n```\n```\n{"n": 3}\n```', True, "proved"),
        ('{"n": 12345678901234567890123}', True, "proved"),
        ('{"n": "a"}', False, "proved"),
        ("{}", False, "proved"),
        ('{"n": NaN}', False, "none"),
        ("no JSON at all", False, "none"),
        ('```json\n{"n": \n```\n```\n{"n": 3}\n```', False, "none"),  # what is said to be JSON
        ("[" * 100_000, False, "none"),
    ],
)
def test_json_by_a_schema(schema: SchemaVerifier, trace: str, passed: bool, grade: str) -> None:
    verdict = schema.verify(Case("p", checks={"schema": OBJECT}), trace)
    assert (verdict.passed, verdict.grade) == (passed, grade)


def test_a_pattern_that_explodes_is_given_up(schema: SchemaVerifier) -> None:
    explosive = {"type": "string", "pattern": "^(a+)+$"}
    verdict = schema.verify(Case("p", checks={"schema": explosive}), '"' + "a" * 40 + '!"')
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "limit" in verdict.evidence["failure"]


@pytest.mark.parametrize(
    "bad", [None, 5, {"type": "nope"}, {"$ref": "http://127.0.0.1:9/x"}, {"$ref": "#/nowhere"}]
)
def test_a_schema_that_is_none_is_said_to_be_so(schema: SchemaVerifier, bad: Any) -> None:
    with pytest.raises(VerifierError):
        schema.verify(Case("p", checks={"schema": bad}), "1")


# --- all of them ------------------------------------------------------------------------------

CASE = Case(
    "p",
    "5",
    {
        "schema": {"type": "integer"},
        "constraints": {"symbols": ["x"], "where": ["x + 1 = 6"]},
        "tests": [{"call": "f", "args": [2], "expect": 5}],
    },
    ("Answer: 5", "```python\nx = 2\nprint(x + 3)\n```", "Answer: 6", "", "#### 5"),
)
SPECS = (
    *("exact", "math", "regex:[0-9]+", "command:true", "consensus:0.4,3", "program"),
    *("schema", "substitute", "code", "all:[exact] [substitute]", "any:[exact] [consensus]"),
)


@pytest.mark.parametrize("spec", SPECS)
def test_a_verdict_can_be_had_again(spec: str) -> None:
    trace = "def f(x):\n    return x + 3\n" if spec == "code" else "5"
    seen = []
    for _ in range(2):  # the second time by another one, made from what the first says it is
        verifier = make_verifier(spec)
        verdict = verifier.verify(CASE, trace)
        verifier.close()
        assert verdict.passed, verdict.evidence
        assert verifier.needs <= {"expected", "peers", *CASE.checks}
        evidence = _without_seconds(verdict.evidence)
        seen.append((evidence, verdict.grade, verdict.answer, verdict.version))
        spec = verifier.spec
    assert seen[0] == seen[1]


def _without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_seconds(one) for name, one in value.items() if "seconds" not in name}
    if isinstance(value, list):
        return [_without_seconds(one) for one in value]
    return value
