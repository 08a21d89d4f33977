"""What a model is asked for, and what is heard of its answers."""

from __future__ import annotations

from typing import Any

from kvgraft.library.methods.answers import form_of
from kvgraft.library.methods.skeleton import Skeleton, phrasings
from kvgraft.library.methods.source import Program
from kvgraft.library.methods.writing import STYLES, WritingEffort, ask_for, write_programs
from library.methods.writer import POWERS, Writer, fenced, instances

SHOWN = [((2, 3, 5), "3"), ((4, 2, 7), "2")]
FORM = form_of(["3", "2"])


def skeleton() -> Skeleton:
    ((found, _),) = phrasings([one.text for one in instances()], enough=12).items()
    return found


def written(model: Writer, wanted: int = 99, **effort: Any) -> tuple[list[Program], Any]:
    found: list[Program] = []

    def hear(program: Program) -> bool:
        found.append(program)
        return len(found) >= wanted

    out = write_programs(model, skeleton(), SHOWN, FORM, WritingEffort(**effort), hear)
    return found, out


def test_the_prompt_says_what_is_known() -> None:
    text = ask_for(skeleton(), SHOWN, FORM, STYLES[0])
    assert "What is the remainder when {a}^{b} is divided by {c}?" in text
    assert "def solve(a: int, b: int, c: int) -> int:" in text
    assert "solve(2, 3, 5) == 3\nsolve(4, 2, 7) == 2" in text
    as_text = ask_for(skeleton(), SHOWN, FORM, STYLES[1])
    assert "-> str:" in as_text
    assert "solve(2, 3, 5) == '3'" in as_text
    days = ["On which day does 2024-03-04 fall?", "On which day does 2024-03-05 fall?"]
    ((dated, _),) = phrasings(days, enough=2).items()
    named = ask_for(dated, [(("2024-03-04",), "Monday")], form_of(["Monday"]), STYLES[0])
    assert 'a is a date as "YYYY-MM-DD".' in named
    assert "solve('2024-03-04') == 'Monday'" in named


def test_each_program_is_passed_on_once() -> None:
    model = Writer(*map(fenced, POWERS), "I cannot.")
    found, out = written(model)
    assert [program.source for program in found] == list(POWERS)
    assert len(model.prompts) == 2
    assert model.prompts[0] != model.prompts[1]
    assert out.cost.attempts == 16
    assert out.cost.decode_tokens == 160
    assert out.refused == ["it defines no function solve"] * 4


def test_no_more_is_written_than_needed() -> None:
    model = Writer(*map(fenced, POWERS))
    found, _ = written(model, wanted=1)
    assert len(found) == 1
    assert len(model.prompts) == 1
    assert len(written(Writer(fenced(POWERS[0])), batches=5)[0]) == 1


def test_a_whole_program_in_a_text_that_was_cut_off() -> None:
    found, _ = written(Writer(fenced(POWERS[0]) + " and it ..."), batches=1)
    assert [program.source for program in found] == [POWERS[0]]
    found, out = written(Writer(fenced(POWERS[1])[:-16] + "..."), batches=1)
    assert found == []
    assert out.refused == ["it was cut off"] * 8
