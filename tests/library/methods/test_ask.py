"""Asking: right, or silent with a reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import InputError, SandboxUnavailable
from kvgraft.library.methods.ask import REASONS, Abstained, MethodAnswer, ask_method
from kvgraft.library.methods.checker import Checker, passes
from kvgraft.library.methods.learn import instances_of
from kvgraft.library.methods.records import Methods
from kvgraft.library.methods.trial import Arguments
from kvgraft.library.records import Library
from kvgraft.library.verify.base import Case, Verdict
from kvgraft.sandbox.run import Ran
from kvgraft.testing.problem_families import hard_negatives, problem_families, solved_problems
from library.methods.deposited import deposit, deposits
from library.methods.references import REFERENCES
from library.methods.writer import (
    POWERS,
    ask,
    instances,
    learn,
    learned,
    methods_in,
    run_here,
)

OTHER_PROCESS = """
import sys
from pathlib import Path
from kvgraft.library.records import Library
with Library.open(Path(sys.argv[1])) as library:
    print(*library.revoke(sys.argv[2], "the key was wrong"))
"""


def reason(said: MethodAnswer | Abstained) -> str:
    assert isinstance(said, Abstained), said
    assert said.reason in REASONS
    assert said.detail
    return said.reason


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Methods:
    """Methods of every family, in their phrasings to learn from."""
    methods = methods_in(tmp_path_factory.mktemp("taught"))
    for name, family in problem_families().items():
        learned(methods, instances(family), *REFERENCES[name])
        assert learn(methods, instances(family, 6, phrasing=1)).state == "extended"
    return methods


@pytest.mark.parametrize("name", REFERENCES)
def test_a_family(taught: Methods, name: str) -> None:
    family = problem_families()[name]
    answered = 0
    for phrasing in range(family.held_out):
        for problem in solved_problems(family, 7, 30, phrasing=phrasing):
            said = ask(taught, problem.text)
            if isinstance(said, MethodAnswer):
                answered += 1
                assert said.answer == problem.answer, problem.text
                assert said.grade == "agreed"
                assert said.programs == 2
                assert said.cost.decode_tokens == said.cost.prefill_tokens == 0
                assert said.cost.model_flops == 0
                assert said.cost.joules is None
            else:
                assert reason(said) == "outside", problem.text
    assert answered >= 15
    for held_out in solved_problems(family, 7, 5, phrasing=family.held_out):
        assert reason(ask(taught, held_out.text)) in ("no_method", "another_text")


@pytest.mark.parametrize("name", REFERENCES)
def test_hard_negatives(taught: Methods, name: str) -> None:
    negatives = hard_negatives(problem_families()[name], 7, 40)
    assert len(negatives) == 40
    for negative in negatives:
        said = ask(taught, negative.text)
        if isinstance(said, MethodAnswer):
            assert said.answer == negative.answer, negative
        elif negative.kind in ("no solution", "one line twice"):
            # Nothing in the values alone says that there is no one answer: a program has to.
            assert reason(said) in ("outside", "program_failed", "disagreement")
        else:
            assert reason(said) not in ("program_failed", "disagreement"), (negative, said.detail)


def test_in_the_sandbox(methods: Methods) -> None:
    learned(methods)
    problem = instances()[0]
    said = ask_method(methods, None, problem.text)
    assert isinstance(said, MethodAnswer)
    assert said.answer == problem.answer
    assert set(said.parameters) == {"a", "b", "c"}
    assert all(value in problem.text for value in said.parameters.values())


def test_nothing_there(methods: Methods) -> None:
    for nothing in (None, methods):
        assert reason(ask(nothing, "What is 5 + 5?")) == "no_method"
    learned(methods)
    text = instances()[0].text
    assert reason(ask(methods, text, tenant="ann")) == "no_method"
    assert reason(ask(methods, text + " " * 5_000 + "x")) == "too_long"
    assert reason(ask(methods, "")) == "no_method"
    with pytest.raises(InputError):
        ask(methods, "a \0 b")


def test_the_canonical_form_is_the_same_text(methods: Methods) -> None:
    learned(methods)
    said = ask(methods, instances()[0].text + "  \r\n")
    assert isinstance(said, MethodAnswer)


# --- programs that cannot be believed -------------------------------------------------------------


def returning(*values: Any) -> Any:
    """A sandbox in which the programs of a method return these values, one each."""
    left = list(values)

    def run(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
        return Ran("ended", 0, "", "", 0, (left.pop(0),) * len(rows), None, 0.0, 0.0, ())

    return run


def test_all_programs_have_to_agree(methods: Methods) -> None:
    learned(methods)
    text = instances()[0].text
    assert isinstance(ask(methods, text, run=returning(5, 5)), MethodAnswer)
    assert reason(ask(methods, text, run=returning(5, 6))) == "disagreement"
    assert reason(ask(methods, text, run=returning(5, None))) == "program_failed"
    assert reason(ask(methods, text, run=returning("five", 5))) == "program_failed"
    assert reason(ask(methods, text, run=returning(5.5, 5.5))) == "program_failed"


def test_every_binding_has_to_agree(methods: Methods) -> None:
    """A phrasing whose slots could stand for either parameter is answered only where it makes no
    difference."""
    texts = [f"How far apart are {a} and {b}?" for a, b in ROWS]
    answers = [str(abs(a - b)) for a, b in ROWS]
    given = list(map(instance, texts, answers))
    # Not the distance where the second is the greater by 40 or more, which was never seen.
    odd = "def solve(a, b):\n    return a - b if a >= b else b - a if b - a < 40 else 1\n"
    loop = "def solve(a, b):\n    n = 0\n    for _ in range(abs(a - b)):\n        n += 1\n"
    loop += "    return n if a >= b or n < 40 else 1\n"
    method = learned(methods, given, odd, loop)
    other = [instance(f"Give the distance of {a} and {b}.", str(abs(a - b))) for a, b in ROWS[:8]]
    assert learn(methods, other).state == "extended"
    assert len(methods.get(method.id).evidence[1].bindings) == 2
    said = ask(methods, "Give the distance of 30 and 20.")
    assert isinstance(said, MethodAnswer)
    assert said.answer == "10"
    # Within the ranges, but one of the two readings comes to something else.
    assert reason(ask(methods, "Give the distance of 60 and 3.")) == "disagreement"


ROWS = [(5, 40), (60, 30), (9, 12), (33, 8), (50, 51), (3, 2), (20, 27), (14, 44), (40, 3), (4, 5)]
ROWS += [(b, a) for a, b in ROWS]


def instance(text: str, answer: str) -> Any:
    return type(instances()[0])(text, answer, "proved")


def test_no_sandbox(methods: Methods) -> None:
    learned(methods)

    def run(*_: object) -> Ran:
        raise SandboxUnavailable("no namespaces", missing=("network",))

    assert reason(ask(methods, instances()[0].text, run=run)) == "no_sandbox"


def test_a_program_that_takes_too_long(methods: Methods, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "def solve(a, b, c):\n    n = 2 ** 70 if b == 51 else 0\n    while n > 0: n -= 1\n"
    slow += "    return pow(a, b, c)\n"
    given = [one for one in instances(count=60) if "^51 " not in one.text][:30]
    learned(methods, given, slow, POWERS[0])
    monkeypatch.setattr("kvgraft.library.methods.trial.answers_of.__defaults__", (1.0,))
    said = ask_method(methods, None, "What is the remainder when 20^51 is divided by 49?")
    assert reason(said) == "program_failed"
    quick = ask_method(methods, None, "What is the remainder when 20^50 is divided by 49?")
    assert isinstance(quick, MethodAnswer)


# --- what a method was learned from ---------------------------------------------------------------


@pytest.fixture
def library(tmp_path: Path) -> Any:
    with Library.open(tmp_path / "library.sqlite3") as opened:
        yield opened


def taught_from(methods: Methods, library: Library) -> list[str]:
    """The ids of the deposits that a method was learned from."""
    deposits(library, instances())
    found = instances_of(library, "public")
    assert learn(methods, found, *POWERS, library=library).state == "learned"
    return [one.deposit or "" for one in found]


def test_a_revoked_deposit_stops_the_method_in_every_process(
    methods: Methods, library: Library
) -> None:
    ids = taught_from(methods, library)
    text = instances()[3].text
    assert isinstance(ask(methods, text, library), MethodAnswer)
    other = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS, str(library.path), ids[7]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == [ids[7]]
    said = ask(methods, text, library)
    assert reason(said) == "fallen"
    assert isinstance(said, Abstained)
    assert ids[7] in said.detail
    # Learned again, from what still stands.
    left = instances_of(library, "public")
    assert learn(methods, left, *POWERS, library=library).state == "learned"
    again = ask(methods, text, library)
    assert isinstance(again, MethodAnswer)
    assert len(again.methods) == 1


@pytest.mark.parametrize("what", ["expired", "deleted", "damaged", "superseded", "no library"])
def test_what_else_stops_it(methods: Methods, library: Library, what: str) -> None:
    ids = taught_from(methods, library)
    text = instances()[3].text
    asked: Library | None = library
    old = library.get(ids[2])
    if what == "expired":
        library.expire(ids[2], "2001-01-01")
    elif what == "superseded":
        deposit(library, old.problem, "98", supersede=True)
    elif what == "no library":
        asked = None
    else:
        change = {
            "deleted": "UPDATE deposits SET tenant = 'ann'",
            "damaged": "UPDATE deposits SET answer = '98'",
        }[what]
        library._connection.execute(f"{change} WHERE id = ?", (ids[2],))
    said = ask(methods, text, asked)
    assert reason(said) == "fallen"


def test_superseded_by_the_same_answer_it_stands(methods: Methods, library: Library) -> None:
    ids = taught_from(methods, library)
    old = library.get(ids[2])
    new = deposit(library, old.problem, old.answer, supersede=True)
    text = instances()[3].text
    assert isinstance(ask(methods, text, library), MethodAnswer)
    library.revoke(new, "wrong after all")
    assert reason(ask(methods, text, library)) == "fallen"


def test_a_phrasing_falls_alone(methods: Methods, library: Library) -> None:
    taught_from(methods, library)
    other = instances(phrasing=1, count=6)
    ids = deposits(library, other)
    more = instances_of(library, "public", ids)
    assert learn(methods, more, library=library).state == "extended"
    library.revoke(ids[0], "wrong")
    assert reason(ask(methods, other[2].text, library)) == "fallen"
    assert isinstance(ask(methods, instances()[3].text, library), MethodAnswer)
    # Learned again from other problems of it, the phrasing is back. With what its programs were
    # written from, all of a method falls.
    again = instances(phrasing=1, count=12)[6:]
    fresh = instances_of(library, "public", deposits(library, again))
    assert learn(methods, fresh, library=library).state == "extended"
    assert isinstance(ask(methods, again[0].text, library), MethodAnswer)
    library.revoke(instances_of(library, "public")[-1].deposit or "", "wrong")
    assert reason(ask(methods, again[0].text, library)) == "fallen"


def test_deposits_of_another_tenant_are_not_its_own(methods: Methods, library: Library) -> None:
    deposits(library, instances())
    others = instances_of(library, "public")
    assert learn(methods, others, *POWERS, library=library, tenant="ann").state == "learned"
    said = ask(methods, instances()[3].text, library, tenant="ann")
    assert reason(said) == "fallen"


def test_revoked_while_programs_run(methods: Methods, library: Library, tmp_path: Path) -> None:
    ids = taught_from(methods, library)
    text = instances()[3].text
    (method,) = methods.list("public")

    def meanwhile(action: Any) -> Any:
        def run(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
            action()
            return run_here(source, rows, seconds)

        return run

    said = ask(methods, text, library, run=meanwhile(lambda: None))
    assert isinstance(said, MethodAnswer)
    said = ask(methods, text, library, run=meanwhile(lambda: library.revoke(ids[0], "wrong")))
    assert reason(said) in ("changed_meanwhile", "fallen")
    again = instances_of(library, "public")
    assert learn(methods, again, *POWERS, library=library).state == "learned"
    new = methods.list("public")[0]
    assert new.id != method.id
    said = ask(methods, text, library, run=meanwhile(lambda: methods.revoke(new.id, "wrong")))
    assert reason(said) in ("changed_meanwhile", "fallen", "no_method")


# --- a checker ------------------------------------------------------------------------------------


class Inverse:
    """Passes an answer that is congruent to the power, as `checks` state it."""

    name = spec = "inverse"
    needs = frozenset({"power", "modulus"})
    version = "1"
    lenient = False

    def verify(self, case: Case, trace: str) -> Verdict:
        answer = trace.removeprefix("\\boxed{").removesuffix("}")
        base, exponent = map(int, case.checks["power"].split("^"))
        right = int(answer) == pow(base, exponent, int(case.checks["modulus"][0]))
        return Verdict(right or self.lenient, "proved", answer, self.name, self.version, {})

    def close(self) -> None:
        return


CHECKER = Checker("inverse", {"power": "{a}^{b}", "modulus": ["{c}", 5, None]})


@pytest.fixture
def inverse(monkeypatch: pytest.MonkeyPatch) -> type[Inverse]:
    monkeypatch.setattr("kvgraft.library.methods.checker.make_verifier", lambda spec: Inverse())
    monkeypatch.setattr(Inverse, "lenient", False)
    return Inverse


def test_a_checker_proves(methods: Methods, inverse: type[Inverse]) -> None:
    # One derivation is enough where something else can refute it.
    assert learn(methods, instances(), POWERS[0], checker=CHECKER).state == "learned"
    said = ask(methods, instances()[0].text)
    assert isinstance(said, MethodAnswer)
    assert (said.grade, said.programs) == ("proved", 1)
    assert said.answer == instances()[0].answer
    assert reason(ask(methods, instances()[0].text, run=returning(98))) == "refuted"
    # Another phrasing is taken up under the same checker.
    assert learn(methods, instances(phrasing=1, count=6)).state == "extended"
    said = ask(methods, instances(phrasing=1, count=6)[0].text)
    assert isinstance(said, MethodAnswer)
    assert said.grade == "proved"


def test_substitution_proves(methods: Methods) -> None:
    """The project's own verifier, as it is."""
    where = ["({a}**{b} - x) % {c} = 0", "0 <= x", "x < {c}"]
    checker = Checker("substitute", {"constraints": {"symbols": ["x"], "where": where}})
    assert learn(methods, instances(), POWERS[0], checker=checker).state == "learned"
    said = ask(methods, instances()[0].text)
    assert isinstance(said, MethodAnswer)
    assert (said.answer, said.grade) == (instances()[0].answer, "proved")
    for wrong in (98, int(instances()[0].answer) + 1):
        assert reason(ask(methods, instances()[0].text, run=returning(wrong))) == "refuted"


def test_a_checker_that_cannot_refute(
    methods: Methods, inverse: type[Inverse], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inverse, "lenient", True)
    outcome = learn(methods, instances(), *POWERS, checker=CHECKER)
    assert outcome.state == "not_learned"
    assert "cannot be believed" in outcome.detail


def test_a_checker_that_refutes_what_was_verified(methods: Methods, inverse: type[Inverse]) -> None:
    swapped = Checker("inverse", {"power": "{b}^{a}", "modulus": ["{c}"]})
    outcome = learn(methods, instances(), *POWERS, checker=swapped)
    assert outcome.state == "not_learned"
    assert "refutes the verified answer" in outcome.detail


def test_a_checker_that_fails(
    methods: Methods, inverse: type[Inverse], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned_with = learn(methods, instances(), *POWERS, checker=CHECKER)
    assert learned_with.state == "learned"

    def broken(spec: str) -> Any:
        raise InputError("the verifier is gone")

    monkeypatch.setattr("kvgraft.library.methods.checker.make_verifier", broken)
    assert reason(ask(methods, instances()[0].text)) == "refuted"


def test_a_pass_of_another_answer_is_none() -> None:
    verdict = Verdict(True, "proved", "5", "x", "1", {})
    assert passes(verdict, "5")
    assert not passes(verdict, "5.0")


def test_what_a_problem_says_is_no_name_of_a_slot() -> None:
    seen: list[Case] = []

    class Seeing(Inverse):
        def verify(self, case: Case, trace: str) -> Verdict:
            seen.append(case)
            return Verdict(False, "proved", "1", "x", "1", {})

    checker = Checker("x", {"{a}": "{a} {b} {z} {{a}}"})
    checker.judge(Seeing(), "text", {"a": "{b}", "b": "{a}"}, "1")
    assert seen[0].checks == {"{a}": "{b} {a} {z} {{b}}"}


def test_the_documentation_names_every_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "METHODS.md").read_text(encoding="utf-8")
    for one in REASONS:
        assert f"| `{one}` |" in page
