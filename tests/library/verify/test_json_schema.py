"""The verifier `schema`: which JSON of a trace is judged, and that a schema cannot do harm."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.errors import MissingExtra, VerifierError
from kvgraft.library.verify.base import Case
from kvgraft.library.verify.json_schema import SchemaVerifier, json_in

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


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
        ('{"n": "a", "n": 1}', False, "none"),  # readers do not agree on what it says
        ('{"n": 1} and more', False, "none"),
        ('```json\n{"n": 1}', False, "none"),  # cut off
        ('```json\n{"n": 1}\n```\n```json\n{"n": \n```', False, "none"),  # the last is meant
        ('```json\n{"n": "a"}\n```\n```json\n{"n": 1}\n```', True, "proved"),
        ('```json\n{"n": 1}\n```\n```json\n{"n": "a"}\n```', False, "proved"),
        ('```python\nx = 1\n```\n```json\n{"n": 1}\n```\n```\n{"n": "b"}\n```', True, "proved"),
        ('{"n": 1e999}', False, "proved"),
        ('{"n": 1, "pad": "' + "x" * 5_000 + '"}', False, "none"),
    ],
)
def test_json_by_a_schema(schema: SchemaVerifier, trace: str, passed: bool, grade: str) -> None:
    verdict = schema.verify(Case("p", checks={"schema": OBJECT}), trace)
    assert (verdict.passed, verdict.grade) == (passed, grade), verdict.evidence


def test_a_pattern_that_explodes_is_given_up(schema: SchemaVerifier) -> None:
    explosive = {"type": "string", "pattern": "^(a+)+$"}
    verdict = schema.verify(Case("p", checks={"schema": explosive}), '"' + "a" * 40 + '!"')
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert "limit" in verdict.evidence["failure"]


@pytest.mark.parametrize(
    "bad",
    [
        None,
        5,
        {"type": "nope"},
        {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "#/nowhere"},
        {"pattern": "("},
        [],
    ],
)
def test_a_schema_that_is_none_is_said_to_be_so(schema: SchemaVerifier, bad: Any) -> None:
    with pytest.raises(VerifierError):
        schema.verify(Case("p", checks={"schema": bad}), '"1"')


def test_a_case_without_a_schema_is_an_error(schema: SchemaVerifier) -> None:
    with pytest.raises(VerifierError, match="schema"):
        schema.verify(Case("p"), "1")


def test_what_a_verdict_says(schema: SchemaVerifier) -> None:
    case = Case("p", "no key is looked at", {"schema": OBJECT})
    trace = 'So:\n```json\n {"n": 1}\n```\n'
    verdict = schema.verify(case, trace)
    assert verdict.answer == '{"n": 1}'
    assert verdict.answer in trace
    assert "jsonschema-" in verdict.version
    wrong = schema.verify(case, '{"n": "a"}')
    assert "$.n" in str(wrong.evidence["reason"])


def test_the_drafts_themselves_may_be_referred_to(schema: SchemaVerifier) -> None:
    case = Case("p", checks={"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}})
    assert schema.verify(case, '{"type": "string"}').passed
    assert not schema.verify(case, '{"type": "nope"}').passed


@pytest.mark.parametrize(
    "endless", [{"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}]
)
def test_a_schema_without_an_end_is_no_pass(schema: SchemaVerifier, endless: Any) -> None:
    verdict = schema.verify(Case("p", checks={"schema": endless}), "1")
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert schema.verify(Case("p", checks={"schema": True}), "1").passed  # the next is judged


def test_a_long_schema_is_evidence_by_its_digest(schema: SchemaVerifier) -> None:
    long = {"enum": [1, *(f"value {number}" for number in range(5_000))]}
    verdict = schema.verify(Case("p", checks={"schema": long}), "1")
    assert verdict.passed
    assert verdict.evidence["schema"]["sha256"]


@pytest.mark.parametrize(
    "trace",
    [
        "```" + "a" * 300_000 + "`",
        "```" + " " * 300_000 + "`x",
        "~" * 300_000 + "`",
        "```json\n" * 40_000,
        "`" * 300_000,
        '{"a":' * 60_000,
    ],
)
def test_finding_the_json_takes_time_with_the_length_alone(trace: str) -> None:
    started = time.monotonic()
    assert json_in(trace) is None
    assert time.monotonic() - started < 20  # with its square: minutes


def test_a_trace_over_the_cap_holds_none() -> None:
    assert json_in("1" + " " * limits.MAX_TRACE_CHARS) is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists))
def test_json_is_found_alone_and_in_a_block(value: Any) -> None:
    text = json.dumps(value)
    assert json_in(text) == text
    assert json_in(f"So:\n```json\n{text}\n```\nDone.") == text


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="jsonschema"):
        SchemaVerifier()
