"""The verifier `program`: what a program computes, and who agrees with it."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.library.verify.derivation import Derivations
from kvgraft.library.verify.program import ProgramVerifier
from kvgraft.library.verify.program_constant import only_says_a_constant
from kvgraft.library.verify.specs import make_verifier
from kvgraft.sandbox.run import Limits, Ran, run_program

QUICK = Limits(seconds=1.0, cpu_seconds=1.0, output_bytes=65_536)


def program(source: str) -> str:
    return f"Here it is.\n```python\n{source}\n```\n"


def program_verdict(
    trace: str, *peers: str, spec: str = "program", expected: str | None = None
) -> Verdict:
    return make_verifier(spec).verify(Case("How much?", expected, peers=peers), trace)


def test_a_program_and_a_text_agree() -> None:
    verdict = program_verdict(program("print(sum(range(5)))"), "Answer: 10", "Answer: 11")
    assert (verdict.passed, verdict.grade, verdict.answer) == (True, "agreed", "10")
    assert verdict.evidence["computed_by_programs"] == 1


def test_a_text_passes_where_a_program_computes_its_answer() -> None:
    assert program_verdict("Answer: 10", program("x = 4\nprint(x + 6)")).passed


@pytest.mark.parametrize(
    "peers",
    [
        (),
        ("Answer: 10",),  # two texts, and nothing computed
        ("Answer: 10", program("print(5 + 6)")),  # nothing that computes this one
        (program("print(10)"),),  # says it, and computes nothing
        (program("def f():\n    return 10\nprint(f())"),),
        (program("print(5 + 6)"),),
        (program("print(("),),
        (program("x = 4\nprint()"),),
    ],
)
def test_what_no_program_computes_is_not_agreed(peers: tuple[str, ...]) -> None:
    assert not program_verdict("Answer: 10", *peers).passed


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise SystemExit(1)", "status 1"),
        ("1 / 0", ""),
        ("while True: pass", ""),
        ("import os\nos.kill(os.getpid(), 9)", ""),
        ("import os\nwhile True: os.fork()", ""),
        ("x = bytearray(10**10)", ""),
        ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()", ""),
        ("print('10\\n' * 10**5)\nprint(5 + 5)", "bytes"),  # its last line is not kept
        ("while True: print('10' * 10**6)", ""),
        ("print('x' * 10**7)", "bytes"),
        ("import time\ntime.sleep(60)", ""),
        ("input()", ""),
    ],
)
def test_a_program_that_breaks_is_a_verdict(source: str, reason: str) -> None:
    verifier = ProgramVerifier(2, Derivations(QUICK))
    peers = ("Answer: 10", program("print(4 + 6)"))
    verdict = verifier.verify(Case("p", peers=peers), program(source))
    assert (verdict.passed, verdict.grade, verdict.answer) == (False, "none", None)
    assert reason in str(verdict.evidence["reason"])
    # As a peer it has no vote, and changes no other's verdict.
    assert verifier.verify(Case("p", peers=(*peers, program(source))), "Answer: 10").passed


def test_a_program_too_long_to_look_at_is_none() -> None:
    long = program("x = 1\n" * 20_000 + "print(x + 9)")
    verdict = program_verdict(long, "Answer: 10")
    assert not verdict.passed
    assert "65,536" in verdict.evidence["reason"]


def test_the_last_line_is_the_answer() -> None:
    source = "total = 4\nprint('first', total)\ntotal += 6\nprint('in all', total)\nprint()"
    assert program_verdict(program(source), "Answer: 10").answer == "10"


def test_one_program_twice_is_one_derivation() -> None:
    same = program("# another comment\nprint( 4+6 )")
    assert not program_verdict(program("print(4 + 6)"), same).passed
    assert program_verdict(program("print(4 + 6)"), same, program("print(12 - 2)")).passed


def test_other_names_and_comments_make_no_other_program() -> None:
    one = program("def area(w, h):\n    r = w * h  # its area\n    return r\nprint(area(2, h=5))")
    other = program("def f(a, b):\n    '''Doc.'''\n    c = a*b\n    return c\nprint(f(2, b=5))")
    third = program("def f(a, b):\n    c = a*b\n    return c\nprint(f(5, b=2))")
    assert not program_verdict(one, other).passed
    assert program_verdict(one, third).passed


def test_an_import_alias_and_a_pass_make_no_other_program() -> None:
    one = program("import math\nprint(math.comb(5, 2))")
    other = program("import math as m\npass\nprint(m.comb(5, 2))")
    third = program("import math as m\nprint(m.comb(5, 3))")
    assert not program_verdict(one, other).passed
    assert program_verdict(one, third).passed
    assert program_verdict(other, third).passed


def test_a_constant_is_one_voice_however_often_it_is_copied() -> None:
    copies = [program(f"{name} = 2 * 3\nx = 70\nprint(x)") for name in "yzab"]
    others = (program("print(9 * 9)"), program("print(3 ** 4)"))
    assert not program_verdict(program("print(7 * 10)"), *copies, *others).passed


def test_a_deep_program_is_judged() -> None:
    deep = program("print(" + " + ".join(["1"] * 500) + ")")
    assert program_verdict(deep, "Answer: 500").passed


@pytest.mark.parametrize("trace", ["Answer: 5", "Answer: 6", program("print(2 + 3)"), ""])
def test_the_key_changes_nothing(trace: str) -> None:
    peers = ("Answer: 5", program("print(10 - 5)"))
    seen = [program_verdict(trace, *peers, expected=key) for key in (None, "5", "6", "")]
    assert all(verdict == seen[0] for verdict in seen)


def test_a_tie_is_not_agreed() -> None:
    peers = ("Answer: 10", program("print(5 + 6)"), "Answer: 11")
    assert not program_verdict(program("print(4 + 6)"), *peers).passed


def test_each_program_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def counted(source: str, **limits: Any) -> Ran:
        ran.append(source)
        return run_program(source, **limits)

    monkeypatch.setattr("kvgraft.library.verify.derivation.run_program", counted)
    verifier = ProgramVerifier()
    traces = [program(f"print({number} + 1)") for number in range(3)]
    for trace in traces:
        verifier.verify(Case("p", peers=tuple(one for one in traces if one != trace)), trace)
    assert sorted(ran) == [f"print({number} + 1)\n" for number in range(3)]


@pytest.mark.parametrize(
    ("source", "constant"),
    [
        ("print(70)", True),
        ("x = 70\nprint(x)", True),
        ("print(int('70'))", True),
        ("print(-70)", True),
        ("print(7 * 10)", False),
        ("print(sum([70]))", False),
        ("for x in range(71): pass\nprint(x)", False),
        ("def f():\n    return 70\nprint(f())", True),
        ("def main():\n    x = 70\n    print(f'It is {x}.')\nmain()", True),
        ("print('It is ' + str(70))", True),
        ("print('{}'.format(70))", True),
        ("for i in range(9): pass\nprint(70)", True),  # whatever ran before it
        ("if 7 % 2:\n    print('odd')\nelse:\n    print('even')", False),
        ("def f(n):\n    return n * 10\nprint(f(7))", False),
        ("print(f'{7 * 10}')", False),
        ("f = lambda: 70\nprint(f())", True),
        ("print((lambda: 70)())", True),
        ("f = lambda n: n * 10\nprint(f(7))", False),
        ("class A:\n    def f(self):\n        return 70\nprint(A().f())", True),
        ("class A:\n    def f(self, n):\n        return n * 10\nprint(A().f(7))", False),
        ("x = 3 * 4\nx = 70\nprint(x)", True),
        ("x = 70\nx = x * 2\nprint(x)", False),
        ("x = 70\nx += 1\nprint(x)", False),
        ("x = 70\nfor x in range(9): pass\nprint(x)", False),
        ("x = 70\nif 2 * 2 > 3:\n    x = 2 ** 5\nprint(x)", False),
        ("y = 2 * 3\nx: int = 70\nprint('It is', x)", True),
        ("def f(n):\n    n = n * 2\n    return 70\nprint(f(3))", True),
        ("def f(n):\n    if n > 2 * 2:\n        return 70\n    return n\nprint(f(3))", False),
        ("def f(n):\n    return 70\nx = f(2 * 3)\nprint(x)", True),
        ("def main():\n    y = 2 * 3\n    print(70)\nmain()", True),
        ("def main():\n    y = 2 * 3\n    print(y)\nmain()", False),
        ("y = 2 * 3\nif __name__ == '__main__':\n    print(70)", True),
        ("y = 2 * 3\nif y > 5:\n    print(70)\nelse:\n    print(71)", False),
        ("def f():\n    return f()\ny = 2 * 3\nprint(f())", False),
        ("x = y\ny = x\nz = 2 * 3\nprint(x)", False),
        ("def f():\n    yield 70\nprint(sum(f()))", False),
        ("x, y = 70, 2 * 3\nprint(x)", False),  # not looked into
        ("print(int(str(70)))", True),
        (
            "def f(n):\n    for i in range(2, n):\n        if n % i == 0:\n"
            "            return 'no'\n    return 'yes'\nprint(f(97))",
            False,
        ),
        ("answer = 0\ndef show(answer): print(answer)\nshow(6 * 7)", False),
        (
            "class A:\n    def run(self, n): return 1\nclass B:\n"
            "    def run(self, n): return n * 6\nprint(B().run(7))",
            False,
        ),
        ("f = lambda n: n\nn = 3\nprint(f(6 * 7))", False),
        ("y = 2 * 3\nprint('It is {}'.format(70))", True),
        ("y = 2 * 3\nprint('It is %d' % 70)", True),
        ("y = 2 * 3\nprint('It is ' + str(70))", True),
        ("y = 2 * 3\nprint('It is ' + str(y))", False),
        ("y = 2 * 3\nprint('It is {}'.format(y))", False),
        ("y = 2 * 3\nprint(70)\npass\nexit()", True),
        ("import sys\ny = 2 * 3\nprint(70)\nsys.exit(0)", True),
        ("def int(n):\n    return n * 10\nprint(int(7))", False),
        ("print()", True),
    ],
)
def test_programs_that_only_say_their_output(source: str, constant: bool) -> None:
    assert only_says_a_constant(ast.parse(source)) is constant


@pytest.mark.parametrize("spec", ["program:1", "program:0", "program:-2", "program:two"])
def test_too_few_to_agree_are_refused(spec: str) -> None:
    with pytest.raises(UsageError):
        make_verifier(spec)


def test_more_derivations_may_be_demanded() -> None:
    trace, peers = program("print(4 + 6)"), ("Answer: 10",)
    assert program_verdict(trace, *peers).passed
    assert not program_verdict(trace, *peers, spec="program:3").passed
    assert program_verdict(trace, *peers, "So 10.", spec="program:3").passed
