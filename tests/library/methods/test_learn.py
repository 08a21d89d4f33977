"""Learning: what is shown, what decides, and what becomes of other phrasings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import ContextTooLong, InputError, RecordNotFound, SandboxUnavailable
from kvgraft.library.methods.ask import Abstained, MethodAnswer
from kvgraft.library.methods.learn import Learner, instances_of
from kvgraft.library.methods.records import Methods
from kvgraft.library.methods.trial import Arguments, Instance, run_sandboxed
from kvgraft.library.records import Library
from kvgraft.sandbox.run import Ran
from kvgraft.testing.problem_families import problem_families
from library.methods.deposited import deposit, deposits
from library.methods.writer import (
    CHOICE,
    CHOICES,
    POWERS,
    Writer,
    ask,
    fenced,
    instances,
    learn,
    learned,
    run_here,
)

RIGHT, ALSO_RIGHT = POWERS
WRONG = "def solve(a, b, c):\n    return (a * b) % c\n"
NEARLY = "def solve(a, b, c):\n    return pow(a, b, c) if b < 55 else 7\n"


def in_a_second(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
    return run_sandboxed(source, rows, 1.0)


def shown_in(prompt: str) -> set[str]:
    return {line for line in prompt.splitlines() if line.startswith("solve(")}


def test_a_model_sees_six_problems_and_the_rest_decides(methods: Methods) -> None:
    model = Writer(fenced(RIGHT), fenced(ALSO_RIGHT))
    (outcome,) = Learner(methods, None, model, run=run_here).learn(instances())
    assert outcome.state == "learned"
    assert outcome.instances == 16
    assert outcome.programs == 2
    assert outcome.cost.decode_tokens == 80
    assert len(shown_in(model.prompts[0])) == 6
    assert methods.get(outcome.method or "").programs == POWERS


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ((WRONG,), "no program gave every answer"),
        ((NEARLY,), "no program gave every answer"),
        ((RIGHT,), "one derivation only"),
        (
            (RIGHT, RIGHT.replace("return pow(a, b, c)", "x = pow(a, b, c)\n    return x")),
            "one deri",
        ),
        ((RIGHT, WRONG), "one derivation only"),
        (("def solve(a):\n    return a\n",), "does not take 3 arguments"),
        (("def solve(a, b, c):\n    while True: pass\n",), "no program gave every answer"),
        (("def solve(a, b, c):\n    return [0] * 10**10\n",), "no program gave every answer"),
        (("import random\n" + RIGHT,), "imports random"),
    ],
)
def test_what_is_not_learned(methods: Methods, texts: tuple[str, ...], why: str) -> None:
    outcome = learn(methods, instances(), *texts, run=in_a_second)
    assert outcome.state == "not_learned"
    assert outcome.method is None
    assert why in outcome.detail
    assert methods.list("public", status=None) == ()


def test_a_table_of_what_was_shown_is_no_method(methods: Methods) -> None:
    model = Writer("")
    (outcome,) = Learner(methods, None, model, run=run_here).learn(instances())
    assert "defines no function" in outcome.detail
    rows = [line.removeprefix("solve(") for line in shown_in(model.prompts[0])]
    table = ", ".join(f"({row.replace(') ==', '):')}" for row in rows)
    source = f"TABLE = {{{table}}}\ndef solve(a, b, c):\n    return TABLE"
    honest = f"{source}.get((a, b, c), pow(a, b, c))\n"
    for cheat in (f"{source}[a, b, c]\n", f"{source}.get((a, b, c), 1)\n", honest):
        outcome = learn(methods, instances(), cheat)
        assert outcome.state == "not_learned"
        assert "holds the problems" in outcome.detail


def test_it_needs_enough_that_differs(methods: Methods) -> None:
    model = Writer(fenced(RIGHT), fenced(ALSO_RIGHT))
    few = Learner(methods, None, model, run=run_here).learn(instances(count=11))
    assert [one.detail for one in few] == ["11 solved problems, 12 are needed"]
    same = [Instance(one.text, "5", "proved") for one in instances()]
    (alike,) = Learner(methods, None, model, run=run_here).learn(same)
    assert "one of 1 answers" in alike.detail
    assert Learner(methods, None, model, run=run_here).learn([]) == ()
    assert Learner(methods, None, None).learn(instances())[0].state == "not_learned"
    assert model.prompts == []  # nothing of it was worth a token


def test_a_text_with_two_answers_is_left_out(methods: Methods) -> None:
    given = instances(count=12)
    doubtful = Instance(given[0].text + "  ", "99", "agreed")  # the same text in canonical form
    outcome = learn(methods, [*given, doubtful], *POWERS)
    assert outcome.detail == "11 solved problems, 12 are needed"
    twice = learn(methods, [*given, given[0]], *POWERS)
    assert (twice.state, twice.instances) == ("learned", 12)


def test_one_wrong_answer_among_the_verified_ones(methods: Methods) -> None:
    given = instances()
    given[5] = replace(given[5], answer="98")
    assert learn(methods, given, *POWERS).state == "not_learned"


# --- other phrasings ------------------------------------------------------------------------------


def test_another_phrasing_is_taken_up_without_a_model(methods: Methods) -> None:
    method = learned(methods)
    other = instances(phrasing=1, count=6)
    before = ask(methods, other[0].text)
    assert isinstance(before, Abstained)
    outcome = learn(methods, other)
    assert (outcome.state, outcome.method) == ("extended", method.id)
    assert outcome.cost.decode_tokens == 0
    after = ask(methods, other[0].text)
    assert isinstance(after, MethodAnswer)
    assert after.answer == other[0].answer
    assert learn(methods, other).state == "known"
    assert len(methods.get(method.id).evidence) == 2


def test_slots_in_another_order(methods: Methods) -> None:
    method = learned(methods, instances(CHOICE), *CHOICES)
    other = instances(CHOICE, phrasing=2, count=6)  # "There are {n} books ... sets of {k}"
    assert learn(methods, other).state == "extended"
    assert methods.get(method.id).evidence[1].bindings == ((1, 0),)
    said = ask(methods, other[0].text)
    assert isinstance(said, MethodAnswer)
    assert said.answer == other[0].answer


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (instances(phrasing=1, count=4), "too few"),
        ([replace(one, answer="3") for one in instances(phrasing=1, count=6)], "another question"),
        (instances(CHOICE, count=8), "another family"),
    ],
)
def test_what_is_not_taken_up(methods: Methods, given: list[Instance], why: str) -> None:
    method = learned(methods)
    assert learn(methods, given).state == "not_learned", why
    assert methods.get(method.id).evidence == method.evidence


def test_one_answer_that_differs_keeps_a_phrasing_out(methods: Methods) -> None:
    learned(methods)
    other = instances(phrasing=1, count=8)
    other[3] = replace(other[3], answer=str(int(other[3].answer) + 1))
    assert learn(methods, other).state == "not_learned"
    assert isinstance(ask(methods, other[0].text), Abstained)


def test_more_of_the_same_widens_where_it_answers(methods: Methods) -> None:
    method = learned(methods)
    more = instances(count=60)[16:]
    outside = [one for one in more if isinstance(ask(methods, one.text), Abstained)]
    assert outside
    assert learn(methods, more).state == "extended"
    assert all(isinstance(ask(methods, one.text), MethodAnswer) for one in outside)
    assert methods.get(method.id).model == "writer"


def test_a_verified_answer_that_is_another_revokes(methods: Methods) -> None:
    method = learned(methods)
    inside = [
        one for one in instances(count=60)[16:] if isinstance(ask(methods, one.text), MethodAnswer)
    ]
    wrong = [replace(inside[0], answer="99"), *inside[1:]]
    outcome = learn(methods, wrong)
    assert (outcome.state, outcome.method) == ("contradicted", method.id)
    assert "contradicted" in (methods.get(method.id).revoke_reason or "")
    assert isinstance(ask(methods, inside[1].text), Abstained)


def test_a_program_that_came_to_nothing_contradicts_nothing(methods: Methods) -> None:
    method = learned(methods)

    def late(source: str, rows: Sequence[Arguments], seconds: float) -> Ran:
        return Ran("late", None, "", "", 0, (), "it was late", seconds, 0.0, ())

    outcome = learn(methods, instances(count=24)[16:], run=late)
    assert (outcome.state, outcome.method) == ("known", method.id)
    assert methods.is_active(method.id)


def test_a_program_that_fails_outside_stays_inside(methods: Methods) -> None:
    small = [one for one in instances(count=80) if int(one.text.split("^")[1].split()[0]) < 50][:16]
    # Right as long as exponents are small, and nothing else was ever seen.
    limited = [source.replace("):\n", "):\n    if b >= 50: return 1\n", 1) for source in POWERS]
    method = learned(methods, small, *limited)
    large = [one for one in instances(count=80) if one not in small]
    outcome = learn(methods, large)
    assert (outcome.state, outcome.method) == ("known", method.id)
    assert "do not give every" in outcome.detail
    assert methods.get(method.id).evidence == method.evidence
    for one in large:
        said = ask(methods, one.text)
        assert isinstance(said, Abstained) or said.answer == one.answer


def test_phrasings_of_several_families_at_once(methods: Methods) -> None:
    model = Writer(*map(fenced, (*POWERS, *CHOICES)))
    outcomes = Learner(methods, None, model, run=run_here).learn([*instances(), *instances(CHOICE)])
    assert [one.state for one in outcomes] == ["learned", "learned"]
    assert len({one.method for one in outcomes}) == 2


def test_words_as_values(methods: Methods) -> None:
    units = problem_families()["unit conversion"]
    table = "T = {'inches feet': 12, 'inches yards': 36, 'feet yards': 3, 'feet miles': 5280,"
    table += " 'yards miles': 1760}\n"
    chain = "    n = {'inches': 1, 'feet': 12, 'yards': 36, 'miles': 63360}\n"
    programs = (
        f"{table}def solve(a, b, c):\n    return T[a + ' ' + c] * b\n",
        f"def solve(a, b, c):\n{chain}    return b * n[c] // n[a]\n",
    )
    model = Writer(*map(fenced, programs))
    (outcome,) = Learner(methods, None, model, run=run_here).learn(instances(units))
    assert outcome.state == "learned", outcome
    # Every pair of words that there is was shown.
    shown = {tuple(line.split("'")[1::2][:2]) for line in shown_in(model.prompts[0])}
    texts = [one.text.rstrip("?").split() for one in instances(units)]
    assert shown == {(words[2], words[-1]) for words in texts}


# --- from deposits --------------------------------------------------------------------------------


def test_deposits_as_instances(methods: Methods, tmp_path: Path) -> None:
    with Library.open(tmp_path / "library.sqlite3") as library:
        ids = deposits(library, instances())
        deposit(library, "What is it?", "4", system="Speak like a king.")
        other = deposit(library, "What is it?", "4", tenant="ann")
        found = instances_of(library, "public")
        assert {one.deposit for one in found} == set(ids)
        assert instances_of(library, "public", ids[:2])[0].deposit == ids[0]
        assert [one.deposit for one in instances_of(library, "ann")] == [other]
        library.revoke(ids[0], "wrong")
        assert {one.deposit for one in instances_of(library, "public")} == set(ids[1:])
        for bad, kind in ((ids[0], InputError), (other, InputError), ("no", RecordNotFound)):
            with pytest.raises(kind):
                instances_of(library, "public", [bad])


def test_examples_that_do_not_fit_the_model(methods: Methods) -> None:
    class Small(Writer):
        def attempt(self, *_: Any, **__: Any) -> Any:
            raise ContextTooLong("300 tokens for 256")

    model = Small(*map(fenced, POWERS))
    (outcome,) = Learner(methods, None, model, run=run_here).learn(instances())
    assert outcome.state == "not_learned"
    assert "300 tokens" in outcome.detail


def test_no_sandbox_is_no_method(methods: Methods) -> None:
    def run(*_: object) -> object:
        raise SandboxUnavailable("no namespaces", missing=("network",))

    with pytest.raises(SandboxUnavailable):
        learn(methods, instances(), *POWERS, run=run)
    assert methods.list("public") == ()
