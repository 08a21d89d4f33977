"""The verifier `code`: tests decide, by a channel that the program cannot write to."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from kvgraft import limits
from kvgraft.errors import SandboxUnavailable, UsageError, VerifierError
from kvgraft.library.verify import code as code_module
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.code import CodeVerifier, make
from kvgraft.library.verify.code_tests import same_output, same_value
from kvgraft.library.verify.program_text import program_in
from kvgraft.sandbox.run import Limits

FIVE = [{"call": "f", "args": [n], "expect": n * n} for n in range(5)]
RIGHT = "def f(x):\n    return x * x\n"
SHORT = Limits(seconds=1.2, cpu_seconds=1.0, memory_bytes=256 * 2**20)


def judge(source: str, tests: list[Any] = FIVE, *, verifier: CodeVerifier | None = None) -> Verdict:
    verifier = verifier or CodeVerifier(limits=SHORT)
    trace = f"So:\n```python\n{source}```\nThis prints 5 and the answer is 7."
    verdict = verifier.verify(Case("Square it.", "16", {"tests": tests}), trace)
    assert len(json.dumps(verdict.evidence)) < limits.MAX_EVIDENCE_CHARS / 2
    return verdict


# --- what passes --------------------------------------------------------------------------------


def test_a_right_program() -> None:
    verdict = judge(RIGHT)
    assert (verdict.passed, verdict.grade, verdict.verifier) == (True, "proved", "code")
    # The program was tested, and not what else the text says.
    assert verdict.answer == RIGHT.strip()
    evidence = verdict.evidence
    assert (evidence["tests"], evidence["outcomes"], evidence["failures"]) == (5, ".....", [])
    assert {"files", "network", "tree"} <= set(evidence["isolation"])
    assert not {"failure", "feedback", "reason"} & evidence.keys()


@pytest.mark.parametrize(
    ("source", "test"),
    [
        # Row 24: no harness is to be stricter than the tests.
        ("def f(): return 0.333333\n", {"call": "f", "expect": 0.333333333333}),
        ("print('0.333333')\n", {"stdin": "", "stdout": "0.333333333333"}),
        ("import sys; sys.stdout.buffer.write(b'4\\n')\n", {"stdout": "4"}),
        ("print(10 ** 4999)\n", {"stdout": str(10**4000) + "0" * 999}),
        ("def f(): return 10 ** 4999\n", {"call": "f", "expect": 10**4999}),
        ("def f(): return 10 ** 4999\n", {"assert": "f() == 10 ** 4999"}),
        ("def f(x): return x + 1\n", {"call": "f", "args": [10**4999], "expect": 10**4999 + 1}),
        ("print(int(input()) + 1)\n", {"stdin": "1" * 5_000, "stdout": "1" * 4_999 + "2"}),
        ("print('a  '); print()\n", {"stdout": "a"}),
        ("print('a', end='')\n", {"stdout": "a\n\n"}),
        ("print('a\\r')\n", {"stdout": "a"}),
        ("def f(): return (1, [2])\n", {"call": "f", "expect": [1, [2]]}),
        ("def f(): return 2.0\n", {"call": "f", "expect": 2}),
        ("def f(): return None\n", {"call": "f", "expect": None}),
        ("def f(): return {'a': [1.0000001]}\n", {"call": "f", "expect": {"a": [1]}}),
        ("def f(*, b): return b\n", {"call": "f", "kwargs": {"b": 1}, "expect": 1}),
        ("def f(): return 3.3\n", {"call": "f", "expect": 3, "tolerance": 0.5}),
        ("print('x = 3.3 m')\n", {"stdout": "x = 3.0 m", "tolerance": 0.5}),
        ("import sys\nprint(sum(map(int, sys.stdin)))\n", {"stdin": "1\n2\n3\n", "stdout": "6"}),
        ("print(open(0).read())\nexit()\n", {"stdin": "1", "stdout": "1"}),
        ("if __name__ == '__main__': print(1)\n", {"stdout": "1"}),
        ("print('x' * 900_000)\n", {"stdout": "x" * 900_000}),
        ("def f(): print('5 passed'); return 1\n", {"call": "f", "expect": 1}),
        ("def f(x): return x * 2\n", {"assert": "f(2) == 4"}),
        ("def f(x): return x * 2\n", {"assert": "assert f(2) == 4, 'why'"}),
        ("def f(x): return x * 2\n", {"assert": "all(f(n) == f(n - 1) + 2 for n in range(99))"}),
        ("def f(x): return x / 3\n", {"assert": "math.isclose(f(1), 0.3333, abs_tol=1e-3)"}),
        ("def f(x): return {x}\n", {"assert": "f((1, 2)) == {(1, 2)} and f(3) >= {3}"}),
        (
            "def f(x): return x[::-1]\ndef g(x): return sorted(x)\n",
            {"assert": "import itertools\nfor p in itertools.permutations('abc'):\n"
             "    assert g(f(list(p))) == ['a', 'b', 'c']"},
        ),
    ],
)  # fmt: skip
def test_what_passes(source: str, test: dict[str, Any]) -> None:
    verdict = judge(source, [test])
    assert (verdict.passed, verdict.grade) == (True, "proved"), verdict.evidence


def test_functions_stay_for_all_tests() -> None:
    source = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)\n"
    tests = [{"call": "f", "args": [0], "expect": 1}, {"assert": "f(1) == 2"}]
    assert judge(source, tests).passed


# --- what fails ---------------------------------------------------------------------------------


def test_what_is_wrong_is_told_but_not_what_was_expected() -> None:
    tests = [
        {"call": "f", "args": [2], "expect": 12345},
        {"call": "f", "args": [0], "expect": 1},
        {"assert": "f(3) == 67890"},
        {"call": "g", "expect": 1},
        {"stdin": "", "stdout": "98765"},
        {"call": "f", "args": [1], "expect": 2},
    ]
    source = "def f(x):\n    if x == 0: raise ValueError('zero')\n    return x * 2\nprint('so')\n"
    verdict = judge(source, tests)
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "proved", source.strip())
    assert verdict.evidence["outcomes"] == "FFFFF."
    assert verdict.evidence["failures"] == [
        {"test": 1, "reason": "f returned 4"},
        {"test": 2, "reason": "f: raised ValueError: zero"},
        {"test": 3, "reason": "the assertion does not hold"},
        {"test": 4, "reason": "g: the program defines no such function"},
        {"test": 5, "reason": "it printed 'so\\n'"},
    ]
    assert verdict.evidence["feedback"] == "The program fails test 1 of 6: f returned 4."
    told = json.dumps(verdict.evidence)
    assert not any(secret in told for secret in ("12345", "67890", "98765"))


# Row 22: each is right for the first tests at most, and says that all is well.
CHEATS = {
    "exit status 0 after test 1": """
import os
def f(x):
    if x == 1: os._exit(0)
    return x * x
""",
    "sys.exit(0) after test 1": "import sys\ndef f(x): return x if x < 1 else sys.exit(0)\n",
    "5 passed": "print('5 passed')\ndef f(x): return 0\n",
    "5 passed on every descriptor": """
import os
for fd in range(64):
    try: os.write(fd, b'{"value": 0}\\n5 passed\\n')
    except OSError: pass
def f(x): return 0
""",
    "standard output replaced": """
import io, sys
sys.stdout = sys.stderr = io.StringIO("5 passed")
def f(x): return 0
""",
    "an exit at the start": "import os\nprint('OK')\nos._exit(0)\n",
    "a handler at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): exit(0)\n",
    "a number that equals all": """
class Any(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Any(0)
""",
    "a text that equals all": """
class Any(str):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def f(x): return Any("0")
""",
    "an object that equals all": """
class Any:
    def __eq__(self, other): return True
def f(x): return Any()
""",
    "truth for one": "def f(x): return x * x if x != 1 else True\n",
    "other builtins": """
import builtins
builtins.abs = builtins.all = builtins.len = builtins.isinstance = lambda *a, **k: True
int.__eq__ if False else None
def f(x): return 0
""",
    "our own code inside": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("kvgraft"):
        for key, value in list(vars(module).items()):
            if callable(value):
                try: setattr(module, key, lambda *a, **k: '{"value": true}')
                except Exception: pass
def f(x): return 0
""",
    "another json": "import json\njson.dumps = lambda *a, **k: '[1]'\ndef f(x): return 0\n",
    "a frame further up": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        frame.f_locals.update(passed=True, key="value", value=True)
        frame = frame.f_back
    return 0
""",
    "no function": "pass\n",
    "a name that is no function": "f = 0\n",
    "skipped": "import unittest\ndef f(x): raise unittest.SkipTest('later')\n",
    "a crash": "import ctypes\ndef f(x): ctypes.string_at(0)\n",
}


@pytest.mark.parametrize("kind", ["call", "assert"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_no_cheat_passes(cheat: str, kind: str) -> None:
    tests: list[Any] = FIVE
    if kind == "assert":
        tests = [{"assert": f"f({n}) == {n * n}"} for n in range(5)]
        if cheat == "truth for one":
            tests[1] = {"assert": "f(1) is 1"}
    verdict = judge(CHEATS[cheat], tests)
    assert (verdict.passed, verdict.grade) == (False, "proved"), verdict.evidence
    assert verdict.evidence["outcomes"][1] == "F"


@pytest.mark.parametrize(
    ("source", "test"),
    [
        ("print('5 passed')\n", {"stdout": "25"}),
        ("print(25)\nraise ValueError\n", {"stdout": "25"}),
        ("import os\nprint(25, flush=True)\nos._exit(1)\n", {"stdout": "25"}),
        ("print(25)\nprint(26)\n", {"stdout": "25"}),
        ("print('25 ')\nprint(' 26')\n", {"stdout": "25\n26"}),
        ("print('2 5')\n", {"stdout": "25"}),
        ("print(25.1)\n", {"stdout": "25"}),
        ("print('025')\n", {"stdout": "25"}),
        ("print(1 + 10 ** 4999)\n", {"stdout": "1" + "0" * 4999}),
        ("print('nan')\n", {"stdout": "25.0"}),
        ("print(10 ** 400)\n", {"stdout": "1e999"}),
        ("pass\n", {"stdout": "25"}),
        ("print('x' * 2_000_000)\n", {"stdout": "x" * 2_000_000}),
        ("def f(): return [1, 2, 3]\n", {"call": "f", "expect": [1, 2]}),
        ("def f(): return {1, 2}\n", {"call": "f", "expect": [1, 2]}),
        ("def f(): return {1: 2}\n", {"call": "f", "expect": {"1": 2}}),
        ("def f(): return 0\n", {"call": "f", "expect": False}),
        ("def f(): return None\n", {"call": "f", "expect": False}),
        ("def f(): return '1'\n", {"call": "f", "expect": 1}),
        ("def f(): return 1.00001\n", {"call": "f", "expect": 1}),
        ("def f(): return float('nan')\n", {"call": "f", "expect": 1}),
        ("def f(): return float('inf')\n", {"call": "f", "expect": 10**400}),
        ("def f(): return 10 ** 4999 + 1\n", {"call": "f", "expect": 10**4999}),
        ("def f(): return 1\n", {"assert": "True"}),
        ("def f(): return 1\n", {"assert": "for x in []:\n    assert f() == 1"}),
        ("def f(): return 1\n", {"assert": "f() == 1 and 1 / 0"}),
        ("def f(): return 1\n", {"assert": "f(lambda: 1) == 1"}),
        ("def f(): return []\n", {"assert": "f()"}),
        ("def f(): 1 / 0\n", {"assert": "try: f()\nexcept Exception: pass\nassert True"}),
    ],
)  # fmt: skip
def test_what_fails(source: str, test: dict[str, Any]) -> None:
    verdict = judge(source, [test])
    assert not verdict.passed
    assert verdict.evidence["failures"][0]["reason"]


def test_output_that_was_not_kept_is_not_right() -> None:
    verifier = CodeVerifier(limits=Limits(output_bytes=1000))
    tests = [{"stdout": "x" * 1000}]
    assert judge("print('x' * 1000, end='')\n", tests, verifier=verifier).passed
    assert not judge("print('x' * 1001)\n", tests, verifier=verifier).passed


def test_a_value_cannot_hold_up_the_judge() -> None:
    # Values made to cost whoever evaluates with them.
    for assertion in ("2 ** f() > 1", "'x' * f() != ''", "sum(range(f())) > 0"):
        started = time.monotonic()
        verdict = judge("def f(): return 10 ** 12\n", [{"assert": assertion}])
        assert not verdict.passed
        assert time.monotonic() - started < SHORT.seconds + 1


# --- what comes to no verdict -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("def f(x):\n    while True: pass\n", "limit"),
        ("import time\ndef f(x): time.sleep(60)\n", "f: over the limit of 1.2 s"),
        ("import time\ntime.sleep(60)\n", "f: over the limit of 1.2 s"),
        ("x = '''" + "x" * limits.MAX_SANDBOX_SOURCE_BYTES + "'''\n", "f: a program of over"),
    ],
)
def test_over_a_limit(source: str, failure: str) -> None:
    started = time.monotonic()
    verdict = judge(source)
    assert time.monotonic() - started < SHORT.seconds + 1
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert failure in verdict.evidence["failure"]
    assert verdict.evidence["outcomes"] == "-----"


def test_the_limit_of_all_tests_together() -> None:
    verifier = CodeVerifier(limits=SHORT, seconds=1.5)
    tests: list[Any] = [{"stdout": ""}, *[{"stdin": "x", "stdout": ""}] * 8]
    source = "import time\nif open(0).read(): time.sleep(60)\n"
    started = time.monotonic()
    verdict = judge(source, tests, verifier=verifier)
    assert time.monotonic() - started < 2.5
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["outcomes"] == ".--------"
    reasons = [failure["reason"] for failure in verdict.evidence["failures"]]
    assert reasons[0] == "over the limit of 1.2 s"
    assert reasons[-1] == "not run: no time was left"


def test_one_right_test_and_one_late_is_no_pass() -> None:
    source = "import time\ndef f(x): return x * x if x < 4 else time.sleep(60)\n"
    verdict = judge(source)
    assert (verdict.passed, verdict.grade) == (False, "none")
    assert verdict.evidence["outcomes"] == "....-"


def test_a_trace_without_a_program() -> None:
    verdict = make("").verify(Case("", None, {"tests": FIVE}), "I cannot do that.")
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", None)
    assert verdict.evidence["reason"] == "no program in the text"


def test_a_program_too_long_for_an_answer() -> None:
    verdict = judge(RIGHT + "# long\n" * limits.MAX_ANSWER_CHARS)
    assert (verdict.passed, verdict.answer) == (True, None)


# --- tests that are none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "checks",
    [
        {},
        {"tests": []},
        {"tests": None},
        {"tests": {}},
        {"tests": "f(2) == 4"},
        {"tests": FIVE * 201},
        *(
            {"tests": [*FIVE, test]}
            for test in (
                {},
                "f(2) == 4",
                None,
                {"call": "f"},
                {"call": "f", "args": [1]},
                {"call": "f", "expect": 1, "skip": True},
                {"call": "f", "expect": 1, "stdout": ""},
                {"call": "f.g", "expect": 1},
                {"call": 1, "expect": 1},
                {"call": "f", "args": 1, "expect": 1},
                {"call": "f", "args": "ab", "expect": 1},
                {"call": "f", "kwargs": [1], "expect": 1},
                {"call": "f", "args": [object()], "expect": 1},
                {"call": "f", "expect": 1, "tolerance": -1},
                {"call": "f", "expect": 1, "tolerance": math.nan},
                {"call": "f", "expect": 1, "tolerance": "1e-6"},
                {"call": "f", "expect": 1, "tolerance": True},
                {"stdin": "1"},
                {"stdin": 1, "stdout": ""},
                {"stdout": 1},
                {"assert": ""},
                {"assert": "x = f(1)"},
                {"assert": "f(2) = 4"},
                {"assert": 1},
            )
        ),
    ],
    ids=lambda checks: str(checks.get("tests"))[-60:],
)
def test_no_tests_are_no_pass(checks: dict[str, Any]) -> None:
    with pytest.raises(VerifierError):
        make("").verify(Case("", None, checks), f"```python\n{RIGHT}```")


# --- the comparison -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expect", "same"),
    [
        (1, 1.0000005, True),
        (1e9, 1e9 + 100, True),
        (0.0, 1e-7, True),
        (10**20, 10**20 + 1, False),
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (10**400, 10**400, True),
        (10**400, 1.0, False),
        (1 + 1e-9j, 1, True),
        (True, 1, False),
        (True, True, True),
        ([1, True], [1, 1], False),
        ({True}, {1}, False),
        ({1.0}, {1}, False),
        ({1: 2}, {True: 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ((1,), [1], True),
        ([1], (1,), False),
        (frozenset({1}), {1}, False),
        (b"a", "a", False),
        ("a", "a", True),
        ("a ", "a", False),
    ],
)
def test_same_value(value: Any, expect: Any, same: bool) -> None:
    assert same_value(value, expect, 1e-6) is same


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ("[0.333333, 2]", "[0.333333333333, 2]", True),
        ("1.0", "1", True),
        ("1e-7", "0.0", True),
        ("-0.0", "0.0", True),
        ("3.", "3.0", True),
        ("5-3.0", "5-3.0000001", True),
        ("1.2.3", "1.2.30000001", False),
        ("x2.0", "x2.00000001", False),
        ("1e5ab", "100000ab", False),
        ("007", "7", False),
        ("+5", "5", False),
        ("2024-01-02", "2024-01-02", True),
        ("a b", "a  b", False),
        (" a", "a", False),
        ("a\n\nb", "a\nb", False),
        ("\n a \t\n\n", "\n a", True),
        ("1e999", "1e998", False),
        ("1.5", "x", False),
    ],
)
def test_same_output(given: str, expected: str, same: bool) -> None:
    assert same_output(given, expected, 1e-6) is same


def test_a_long_line_takes_no_time() -> None:
    started = time.process_time()
    for part in ("1", "1.", "1e", "-", "1 "):
        assert not same_output(part * 200_000, part * 199_999 + "x", 1e-6)
    assert time.process_time() - started < 10


# --- the verifier -------------------------------------------------------------------------------


def test_specs_and_versions() -> None:
    plain, weak = make(""), make("without=network,files")
    assert (plain.spec, weak.spec) == ("code", "code:without=files,network")
    assert make("without=").spec == "code"
    other = CodeVerifier(limits=SHORT)
    assert len({plain.version, weak.version, other.version}) == 3
    assert plain.version == make("").version
    assert plain.needs == {"tests"}
    plain.close()
    plain.close()
    for argument in ("x", "with=network", "without=everything", "without=cpu"):
        with pytest.raises(UsageError):
            make(argument)


def test_what_may_be_missing_is_what_the_sandbox_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []

    def refuse(*_: object, require: frozenset[str], **__: object) -> None:
        asked.append(require)
        raise SandboxUnavailable("no", missing=("files",))

    monkeypatch.setattr(code_module, "Session", refuse)
    monkeypatch.setattr(code_module, "run_program", refuse)
    for tests in (FIVE, [{"stdout": ""}]):
        for spec in ("", "without=files"):
            with pytest.raises(SandboxUnavailable):
                judge(RIGHT, tests, verifier=make(spec))
    assert asked == [{"files", "network", "tree"}, {"network", "tree"}] * 2


def test_evidence_is_enough_to_find_the_program_again() -> None:
    trace = f"So:\n```python\n{RIGHT}```\n"
    told = make("").verify(Case("", None, {"tests": FIVE}), trace).evidence["program"]
    program = program_in(trace)
    assert program is not None
    assert (told["start"], told["end"], told["chars"]) == (program.start, program.end, len(RIGHT))


def test_evidence_stays_small_whatever_is_in_it() -> None:
    odd = "\U0001f600" * 5_000
    tests = [{"call": "f", "expect": 1}, {"stdout": "1"}, {"assert": "f() == 1"}] * 300
    source = f"def f(): raise ValueError('{odd}')\nprint('{odd}')\n"
    verdict = judge(source, [*tests[:9], *[{"call": "f", "expect": 1}] * 900])
    assert (verdict.passed, len(verdict.evidence["outcomes"])) == (False, 909)
