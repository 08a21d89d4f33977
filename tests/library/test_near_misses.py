"""Near misses by the hundred (row 20): not one is answered from the problem that it looks like."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from kvgraft.errors import BelowMinimum, UsageError
from kvgraft.library.address import canonical_text
from kvgraft.library.ask import ask
from kvgraft.library.problem import Problem
from kvgraft.library.solve import Effort
from kvgraft.library.transfer import Transfer
from kvgraft.library.workspace import Workspace
from kvgraft.prompt import CUES
from kvgraft.testing import near_misses as module
from kvgraft.testing.near_misses import (
    NearMiss,
    Posed,
    edit_distance,
    near_misses,
    similarity_cache_hits,
)
from library.scripted import Judge, ScriptedEngine, opened, run

MISSES = near_misses()
STORED = list(dict.fromkeys(miss.stored for miss in MISSES))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Every stored problem solved, deposited and replaying; to anything else the model says that
    it has to think."""
    engine = ScriptedEngine()
    engine.on("<eos><assistant>", "I have to think.")
    for posed in STORED:
        solution = f"{posed.text}\nAnswer: {posed.answer}"
        engine.on_problem(f"<user>{posed.text}", solution)
        engine.on(solution + CUES[0], f" {posed.answer}\n")
    with opened(tmp_path_factory.mktemp("store"), engine) as workspace:
        problems = [Problem(posed.text, posed.text, posed.answer) for posed in STORED]
        done = run(workspace, *problems, judge=Judge(), effort=Effort(1, 300))
        assert all(outcome.replays for outcome in done)
        yield workspace


def test_five_hundred_near_misses_are_never_replayed(library: Workspace) -> None:
    assert len(MISSES) >= 500
    for miss in MISSES:
        with pytest.raises(BelowMinimum) as refused:
            ask(library, Problem("", miss.asked), minimum="replayed")
        assert refused.value.details["reasons"] == ["no_deposit: nothing at this exact address"]


def test_the_stored_problems_are(library: Workspace) -> None:
    """So that the test above cannot pass because nothing is ever replayed."""
    for posed in STORED[:20]:
        answer = ask(library, Problem("", posed.text), minimum="replayed")
        assert (answer.how, answer.answer) == ("replayed", posed.answer)


@pytest.mark.parametrize("kind", sorted({miss.kind for miss in MISSES}))
def test_a_near_miss_of_each_kind_gets_an_attempt_of_its_own(library: Workspace, kind: str) -> None:
    miss = next(miss for miss in MISSES if miss.kind == kind)
    # With the stored solution as context too: it stays an attempt, and without a grade.
    for transfer in (None, Transfer(solutions=1)):
        answer = ask(library, Problem("", miss.asked), max_new_tokens=20, transfer=transfer)
        assert (answer.how, answer.grade, answer.deposit_id) == ("fresh", "none", None)
        assert answer.text.startswith("I have to think.") or answer.context
        assert library.library.get(answer.context[0]) if transfer else answer.context == ()


def test_caches_by_similarity_would_have_answered_many_of_them_wrongly() -> None:
    cosine, edits = similarity_cache_hits(MISSES)
    for hits in (cosine, edits):
        assert hits.asked == len(MISSES)
        assert hits.differing == sum(miss.differs is True for miss in MISSES)
        assert 0 < hits.wrong <= hits.differing
        assert hits.wrong + hits.right <= hits.answered < hits.asked
    assert edits.wrong > hits.differing / 3


# --- the generator ------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_near_misses() -> None:
    assert near_misses() == MISSES
    assert near_misses(1) != MISSES
    assert len(near_misses(3, 7)) >= 70
    for problems in (0, 1001):
        with pytest.raises(UsageError):
            near_misses(0, problems)


@pytest.mark.parametrize("seed", range(5))
def test_every_question_is_another_one(seed: int) -> None:
    misses = near_misses(seed, 40)
    asked = [miss.asked for miss in misses]
    assert len(set(asked)) == len(asked)
    assert set(asked).isdisjoint(miss.stored.text for miss in misses)
    assert all(canonical_text(text) == text for text in asked)
    assert all(canonical_text(miss.stored.text) == miss.stored.text for miss in misses)
    each = Counter(miss.stored for miss in misses)
    assert len(each) == 40
    assert min(each.values()) >= 10


def test_the_kinds_that_faults_were_reported_of_are_there() -> None:
    kinds = Counter(miss.kind for miss in MISSES)
    assert len(kinds) >= 30
    assert {
        *("negation", "number", "bound", "clauses reordered", "unit", "operator", "minus dropped"),
        *("exponent flattened", "hyphen or minus", "case of a variable", "word added"),
        *("word removed", "names swapped", "two spaces inside", "homoglyph"),
    } <= set(kinds)
    assert min(kinds.values()) >= 3


_SUM = re.compile(r"What is (-?\d+) ([-+*\u2212]) (\d+)\?")
_COUNT = re.compile(r"from 1 to (\d+) are (not )?(at least|at most|more than|divisible by) (\d+)")
_RULES = {
    "at least": lambda n, k: n >= k,
    "at most": lambda n, k: n <= k,
    "more than": lambda n, k: n > k,
    "divisible by": lambda n, k: n % k == 0,
}


def _worked_out(text: str) -> int | None:
    """The right answer, found otherwise than the generator does; None where this cannot tell."""
    if found := _SUM.fullmatch(text):
        a, sign, b = int(found[1]), found[2], int(found[3])
        return a * b if sign == "*" else a + b if sign == "+" else a - b
    if found := _COUNT.search(text):
        rule, negated = _RULES[found[3]], bool(found[2])
        return sum(rule(n, int(found[4])) != negated for n in range(1, int(found[1]) + 1))
    return None


def test_the_right_answers_are_right() -> None:
    misses = [miss for seed in range(5) for miss in near_misses(seed)]
    checked = 0
    for text, answer in {
        *((miss.asked, miss.answer) for miss in misses),
        *((miss.stored.text, miss.stored.answer) for miss in misses),
    }:
        if (right := _worked_out(text)) is not None and "  " not in text:
            assert answer == str(right), text
            checked += 1
    assert checked > 300


def test_whether_the_stored_answer_is_wrong() -> None:
    stored = Posed("a", "1")
    assert NearMiss("k", stored, "b", "2").differs is True
    assert NearMiss("k", stored, "b", "1").differs is False
    assert NearMiss("k", stored, "b", None).differs is None
    assert {miss.differs for miss in MISSES} == {True, False, None}


# --- the comparison -----------------------------------------------------------------------------


def test_a_similarity_cache_on_a_case_worked_by_hand() -> None:
    stored = Posed("Is twelve more than the number of days in a week?", "yes")
    other = Posed("Name the capital of the smallest country in Europe.", "Vatican City")
    misses = [
        NearMiss("number", stored, "Is twelve more than the number of days in a weeks?", "yes"),
        NearMiss("negation", stored, "Isn't twelve more than the number of days in a week?", "no"),
        NearMiss("k", other, "Something else altogether, to which nothing is alike.", "?"),
    ]
    cosine, edits = similarity_cache_hits(misses)
    assert (edits.answered, edits.wrong, edits.right, edits.differing) == (2, 1, 1, 2)
    assert (cosine.measure, cosine.threshold) == ("TF-IDF cosine", module.COSINE)
    assert cosine.answered <= 2
    assert similarity_cache_hits([]) == ()


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("", "", 0),
        ("", "ab", 2),
        ("ab", "", 2),
        ("kitten", "sitting", 3),
        ("flaw", "lawn", 2),
        ("abc", "abc", 0),
        ("ab", "ba", 2),
        ("x" * 200, "x" * 199 + "y", 1),
        ("at least 3", "at most 3", 3),
    ],
)
def test_edit_distance(one: str, other: str, distance: int) -> None:
    assert edit_distance(one, other) == distance == edit_distance(other, one)
