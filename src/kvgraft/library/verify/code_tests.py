"""The tests of a `code` problem, and when an outcome is the right one.

Everything here runs outside of the sandbox, on plain data: what was expected never goes in.
"""

from __future__ import annotations

import ast
import cmath
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvgraft import limits
from kvgraft.errors import VerifierError
from kvgraft.sandbox import wire


@dataclass(frozen=True)
class CallTest:
    """A function, its arguments, and the value that it has to return."""

    name: str
    arguments: list[Any]
    named: dict[str, Any]
    expect: Any
    tolerance: float


@dataclass(frozen=True)
class OutputTest:
    """What a program reads, and what it has to print."""

    stdin: str
    stdout: str
    tolerance: float


@dataclass(frozen=True)
class AssertTest:
    """An expression, or statements with `assert`, over the program's functions."""

    source: str


Test = CallTest | OutputTest | AssertTest

_KEYS = {
    "call": {"call", "args", "kwargs", "expect", "tolerance"},
    "stdout": {"stdin", "stdout", "tolerance"},
    "assert": {"assert"},
}
_HINT = (
    'one of {"call": "f", "args": [2], "expect": 4}, {"stdin": "", "stdout": ""}, {"assert": ""}'
)


def read_tests(checks: Mapping[str, Any]) -> list[Test]:
    """The tests of a problem's `checks`.

    Raises:
        VerifierError: there are none, too many, or one that is none; nothing is skipped.
    """
    tests = checks.get("tests")
    if not isinstance(tests, Sequence) or isinstance(tests, str | bytes) or not tests:
        raise VerifierError(
            "the verifier 'code' needs `tests`, a list with one at least", hint=_HINT
        )
    if len(tests) > limits.MAX_CODE_TESTS:
        raise VerifierError(f"{len(tests):,} tests; the cap is {limits.MAX_CODE_TESTS:,}")
    return [_read(test, f"tests[{number}]") for number, test in enumerate(tests)]


def _read(test: Any, where: str) -> Test:
    def need(condition: bool, what: str) -> None:
        if not condition:
            raise VerifierError(what, where=where, hint=_HINT)

    need(isinstance(test, Mapping), "a test is an object")
    kinds = _KEYS.keys() & test.keys()
    need(len(kinds) == 1, "a test has one of `call`, `stdout` and `assert`")
    kind = kinds.pop()
    unknown = sorted(map(str, test.keys() - _KEYS[kind]))
    need(not unknown, f"unknown keys in a test: {', '.join(unknown)}")
    try:
        wire.dumps(dict(test))
    except wire.Unencodable as error:
        need(False, f"a test holds {error}")
    tolerance = test.get("tolerance", limits.CODE_TOLERANCE)
    number = isinstance(tolerance, int | float) and not isinstance(tolerance, bool)
    need(number and 0 <= tolerance < math.inf, "`tolerance` is a number that is not negative")
    if kind == "assert":
        need(_asserts(test["assert"]), "`assert` is no Python, or asserts nothing")
        return AssertTest(test["assert"])
    if kind == "stdout":
        stdin, stdout = test.get("stdin", ""), test["stdout"]
        need(isinstance(stdin, str) and isinstance(stdout, str), "`stdin` and `stdout` are text")
        return OutputTest(stdin, stdout, tolerance)
    name, arguments, named = test["call"], test.get("args", []), test.get("kwargs", {})
    need(isinstance(name, str) and name.isidentifier(), "`call` is the name of a function")
    need(isinstance(arguments, list | tuple), "`args` is a list")
    need(isinstance(named, dict) and all(isinstance(key, str) for key in named), "`kwargs`: names")
    need("expect" in test, "a call without `expect`")
    return CallTest(name, list(arguments), named, test["expect"], tolerance)


def _asserts(source: Any) -> bool:
    try:
        tree = ast.parse(source)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return False
    expression = len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr)
    return expression or any(isinstance(node, ast.Assert) for node in ast.walk(tree))


# --- when two values are the same ---------------------------------------------------------------


def same_value(value: Any, expect: Any, tolerance: float) -> bool:
    """Whether `value` is what was expected. Both are plain data (`wire`).

    An int is compared exactly with an int; where one side is a float or complex, the difference
    may be `tolerance`, absolute or relative. A truth value is no number. A list that is expected
    may be a tuple, as JSON has no tuples; every other type has to be the same.
    """
    if type(value) in (int, float, complex) and type(expect) in (int, float, complex):
        return _same_number(value, expect, tolerance)
    if type(value) is not type(expect) and (type(value), type(expect)) != (tuple, list):
        return False
    if isinstance(expect, list | tuple):
        pairs = zip(value, expect, strict=False)
        return len(value) == len(expect) and all(same_value(*pair, tolerance) for pair in pairs)
    if isinstance(expect, dict):
        return _typed(value) == _typed(expect) and all(
            same_value(value[key], expect[key], tolerance) for key in expect
        )
    if isinstance(expect, set | frozenset):
        return _typed(value) == _typed(expect)
    return bool(value == expect)


def _typed(keys: Any) -> set[tuple[type, Any]]:
    """Keys with their types: 1, 1.0 and True are one key to Python."""
    return {(type(key), key) for key in keys}


def _same_number(value: Any, expect: Any, tolerance: float) -> bool:
    if type(value) is type(expect) is int:
        return bool(value == expect)
    try:
        if cmath.isnan(value) or cmath.isnan(expect):
            return cmath.isnan(value) and cmath.isnan(expect)
        return cmath.isclose(value, expect, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # an int that no float can hold
        return bool(value == expect)


# A number that stands by itself: in `1.2.3`, `x2` and `2nd` there is none.
_NUMBER = re.compile(
    r"((?<![\w.])[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?![\w.]))"
)
_INTEGER = re.compile(r"[-+]?[0-9]+")


def same_output(given: str, expected: str, tolerance: float) -> bool:
    """Whether the lines are the same. White space at the end of a line, and lines at the end with
    nothing else in them, do not count. Where one of two numbers is no integer, they may differ by
    `tolerance`, absolute or relative."""
    given_lines, lines = _lines(given), _lines(expected)
    pairs = zip(given_lines, lines, strict=False)
    return len(given_lines) == len(lines) and all(_same_line(*pair, tolerance) for pair in pairs)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_line(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return True
    given_parts, parts = _NUMBER.split(given), _NUMBER.split(expected)
    if len(given_parts) != len(parts):
        return False
    # Every other part is a number.
    return given_parts[::2] == parts[::2] and all(
        _same_written(*pair, tolerance) for pair in zip(given_parts[1::2], parts[1::2], strict=True)
    )


def _same_written(given: str, expected: str, tolerance: float) -> bool:
    if given == expected:
        return True
    if _INTEGER.fullmatch(given) and _INTEGER.fullmatch(expected):
        return False  # 007 is not 7, nor is a digit in 5,000 to be overlooked
    values = float(given), float(expected)
    return all(map(math.isfinite, values)) and math.isclose(
        *values, rel_tol=tolerance, abs_tol=tolerance
    )
