"""Problem files: every line that cannot be used is refused by name, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import limits
from kvgraft.errors import InputError, LimitExceeded
from kvgraft.library import problem as problem_module
from kvgraft.library.address import canonical_text
from kvgraft.library.problem import Problem, read_problems

Write = Callable[[bytes | str], Path]
GOOD = '{"problem": "What is 1 + 1?", "answer": "2"}'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(data: bytes | str) -> Path:
        path = tmp_path / "problems.jsonl"
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    return _write


# --- what is read -----------------------------------------------------------------------------


def test_a_file_of_problems(write: Write) -> None:
    lines = [
        {"id": "a", "problem": "What is 1 + 1?", "answer": "2", "system": "Be brief."},
        {"question": "And 2 + 2?", "answer": 4},
        {"id": 7, "problem": "Why?"},
        {"id": "", "problem": "What for?", "answer": None, "system": None},
    ]
    assert read_problems(write("\n".join(map(json.dumps, lines)))) == [
        Problem("a", "What is 1 + 1?", "2", "Be brief."),
        Problem("2", "And 2 + 2?", "4"),
        Problem("7", "Why?"),
        Problem("4", "What for?"),
    ]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n \t\n"], ids=repr)
@pytest.mark.parametrize("between", ["\n", "\r\n", "\n\n", "\n  \r\n"], ids=repr)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_line_ends_blank_lines_and_a_byte_order_mark(
    write: Write, mark: bytes, between: str, end: str
) -> None:
    path = write(mark + f"{GOOD}{between}{GOOD}{end}".encode())
    found = read_problems(path)
    assert [problem.text for problem in found] == ["What is 1 + 1?"] * 2
    # Without an id, the number of the line is it: blank lines count.
    assert [problem.id for problem in found] == ["1", str(between.count("\n") + 1)]


def test_texts_come_in_canonical_form(write: Write) -> None:
    line = {"problem": "cafe\u0301 \r\nx\u00b2 \t\n", "system": "Be\rbrief. "}
    (found,) = read_problems(write(json.dumps(line)))
    assert (found.text, found.system) == ("caf\u00e9\nx\u00b2", "Be\nbrief.")


def test_line_separators_of_unicode_do_not_end_a_line(write: Write) -> None:
    (found,) = read_problems(write('{"problem": "a\u2028b\u0085c"}'))
    assert found.text == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "42", "3.10", "0.1234567890123456789012", "1e400", "6.02E23", "9" * 5000],
    ids=lambda number: number[:24],
)
def test_a_number_stays_as_it_is_written(write: Write, number: str) -> None:
    (found,) = read_problems(write(f'{{"problem": "p", "answer": {number}, "id": {number}}}'))
    assert (found.expected, found.id) == (number, number)
    assert type(found.expected) is str


def test_ids_that_are_alike_as_text_are_one_id(write: Write) -> None:
    with pytest.raises(InputError, match="the id '1' stands in line 1 too") as caught:
        read_problems(write('{"id": 1, "problem": "a"}\n{"id": "1", "problem": "b"}'))
    assert caught.value.where.endswith("problems.jsonl:2")


def test_an_id_may_not_be_the_number_of_a_line_without_one(write: Write) -> None:
    with pytest.raises(InputError, match="stands in line 1 too"):
        read_problems(write('{"id": "2", "problem": "a"}\n{"problem": "b"}'))


# --- what is refused --------------------------------------------------------------------------

BAD_LINES = {
    "not JSON": "what is 1 + 1?",
    "half an object": '{"problem": "a"',
    "two objects": '{"problem": "a"} {"problem": "b"}',
    "a list": '["What is 1 + 1?"]',
    "a string": '"What is 1 + 1?"',
    "a number": "42",
    "null": "null",
    "no problem": '{"answer": "2"}',
    "problem and question": '{"problem": "a", "question": "b"}',
    "an empty problem": '{"problem": ""}',
    "a blank problem": '{"problem": " \\n\\t"}',
    "a null problem": '{"problem": null}',
    "a number as problem": '{"problem": 12}',
    "a list as problem": '{"problem": ["a"]}',
    "a number as system": '{"problem": "a", "system": 1}',
    "an object as system": '{"problem": "a", "system": {}}',
    "a list as answer": '{"problem": "a", "answer": ["2"]}',
    "a truth value as answer": '{"problem": "a", "answer": true}',
    "a truth value as id": '{"problem": "a", "id": false}',
    "an object as id": '{"problem": "a", "id": {}}',
    "a misspelt key": '{"problem": "a", "anwser": "2"}',
    "a key twice": '{"problem": "a", "problem": "b"}',
    "not a number": '{"problem": "a", "answer": NaN}',
    "infinity": '{"problem": "a", "answer": -Infinity}',
    "a lone surrogate": '{"problem": "\\ud800"}',
    "a lone surrogate in the system text": '{"problem": "a", "system": "\\udfff"}',
    "a NUL": '{"problem": "a\\u0000b"}',
    "nested too deep": '{"problem": ' + "[" * 100_000,
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_is_named(write: Write, bad: str) -> None:
    with pytest.raises(InputError) as caught:
        read_problems(write(f"{GOOD}\n\n{BAD_LINES[bad]}\n{GOOD}"))
    assert "problems.jsonl:3" in caught.value.where
    assert caught.value.exit_status == 3
    assert caught.value.what


def test_a_misspelt_key_is_named_and_the_known_ones_too(write: Write) -> None:
    with pytest.raises(InputError, match="unknown keys anwser, sytem") as caught:
        read_problems(write('{"problem": "a", "sytem": "s", "anwser": "2"}'))
    assert "'answer', 'checks', 'id', 'problem', 'question', 'system'" in caught.value.hint


@pytest.mark.parametrize(
    "data", [b'{"problem": "\xff"}', b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD.encode()]
)
def test_bytes_that_are_not_utf_8_or_a_mark_too_many(write: Write, data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_problems(write(data))
    assert caught.value.where.endswith("problems.jsonl:1")


def test_a_byte_order_mark_elsewhere_is_no_space(write: Write) -> None:
    with pytest.raises(InputError, match="not JSON"):
        read_problems(write(GOOD.encode() + b"\n\xef\xbb\xbf" + GOOD.encode()))


@pytest.mark.parametrize("data", [b"", b"\n \n\r\n", b"\xef\xbb\xbf"], ids=repr)
def test_a_file_without_problems_is_refused(write: Write, data: bytes) -> None:
    path = write(data)
    with pytest.raises(InputError, match="holds no problems") as caught:
        read_problems(path)
    assert caught.value.where == str(path)


def test_no_such_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.jsonl", "No such file"), (tmp_path, "directory")):
        with pytest.raises(InputError, match="cannot read the problem file") as caught:
            read_problems(path)
        assert reason in caught.value.what
        assert caught.value.where == str(path)


def sized_line(size_bytes: int) -> bytes:
    frame = b'{"problem": ""}\n'
    return frame[:-3] + b"x" * (size_bytes - len(frame)) + frame[-3:]


def test_a_line_may_have_as_many_bytes_as_the_cap(write: Write) -> None:
    line = sized_line(limits.MAX_PROBLEM_LINE_BYTES)
    assert len(line) == limits.MAX_PROBLEM_LINE_BYTES
    assert len(read_problems(write(line + GOOD.encode()))) == 2


def test_a_longer_line_is_refused_and_named(write: Write) -> None:
    line = sized_line(limits.MAX_PROBLEM_LINE_BYTES + 1)
    with pytest.raises(LimitExceeded, match="1,048,576 bytes") as caught:
        read_problems(write(GOOD.encode() + b"\n" + line))
    assert caught.value.where.endswith("problems.jsonl:2")


def test_a_file_of_one_endless_line_is_not_read_whole(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_module, "MAX_PROBLEM_LINE_BYTES", 40)
    with pytest.raises(LimitExceeded) as caught:
        read_problems(write(b"x" * 100_000))
    assert caught.value.where.endswith(":1")


def test_more_problems_than_the_cap_are_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_module, "MAX_PROBLEMS", 3)
    assert len(read_problems(write("\n".join([GOOD] * 3)))) == 3
    with pytest.raises(LimitExceeded, match="more than 3 problems"):
        read_problems(write("\n".join([GOOD] * 4)))


# --- a problem itself -------------------------------------------------------------------------


@given(st.text(max_size=30), st.none() | st.text(max_size=10))
def test_a_problem_holds_canonical_text_or_is_refused(text: str, system: str | None) -> None:
    try:
        wanted = canonical_text(text), None if system is None else canonical_text(system)
    except InputError:
        with pytest.raises(InputError):
            Problem("1", text, system=system)
        return
    made = Problem("1", text, system=system)
    assert (made.text, made.system) == wanted
    assert made == Problem("1", made.text, system=made.system)


def test_a_problem_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        Problem("1", "a").text = "b"  # type: ignore[misc]


def test_checks_are_json_and_their_numbers_are_numbers(write: Write) -> None:
    line = '{"problem": "a", "checks": {"tests": [{"args": [1, 2.5], "x": {"y": [3]}}]}}'
    (problem,) = read_problems(write(line))
    assert problem.checks == {"tests": [{"args": [1, 2.5], "x": {"y": [3]}}]}
    (number,) = problem.checks["tests"][0]["x"]["y"]
    assert type(number) is int
    assert problem.case(["b"]).checks == problem.checks


def test_checks_that_are_no_object_are_refused(write: Write) -> None:
    with pytest.raises(InputError, match="`checks` is not an object"):
        read_problems(write('{"problem": "a", "checks": [1]}'))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", '{"a": [NaN]}'])
def test_a_number_in_checks_that_is_not_finite_is_refused(write: Write, number: str) -> None:
    with pytest.raises(InputError, match="not finite"):
        read_problems(write(f'{{"problem": "a", "checks": {{"n": {number}}}}}'))


def test_a_whole_number_of_5_000_digits_in_checks_is_read(write: Write) -> None:
    line = '{"problem": "a", "checks": {"tests": [1' + "0" * 4999 + ", -7, 1e3]}}"
    (problem,) = read_problems(write(line))
    assert problem.checks["tests"] == [10**4999, -7, 1000.0]


def test_a_number_that_takes_a_minute_to_read_is_refused(write: Write) -> None:
    with pytest.raises(LimitExceeded, match="over 16,384 digits"):
        read_problems(write('{"problem": "a", "checks": {"n": [1' + "0" * 500_000 + "]}}"))
