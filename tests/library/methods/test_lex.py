"""Tokens: every character once, and values that spell themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvgraft.library.methods.lex import KINDS, tokens

PIECES = st.sampled_from(
    [
        *("12", "-3", "0", "007", "1,234", "3.50", "2024-02-29", "2023-02-29", "May 5, 2023"),
        *("A-B", "A-B, B-C and C-D", "1, 2 and 3", '"ab c"', "9:05", "A", "x2", "word", " "),
        *(".", ", ", "-"),
        *("\u2212", "é", "5x", "\n", "^", "'s", '"', "١"),
    ]
)


@given(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=40))
def test_tokens_are_the_text_and_values_spell_themselves(text: str) -> None:
    found = tokens(text)
    assert "".join(token.text for token in found) == text
    for token in found:
        if token.kind in KINDS:
            kind = KINDS[token.kind]
            assert kind.spell(kind.parse(token.text)) == token.text


@pytest.mark.parametrize(
    ("text", "kind", "argument"),
    [
        ("12", "integer", 12),
        ("-12", "integer", -12),
        ("1,234,567", "grouped integer", 1234567),
        ("3.50", "decimal", 3.5),
        ("2024-02-29", "iso date", "2024-02-29"),
        ("February 29, 2024", "long date", "2024-02-29"),
        ("5 May 2023", "day first date", "2023-05-05"),
        ("14:35", "clock", "14:35"),
        ("3, 8, -1", "integers", [3, 8, -1]),
        ("3, 8 and 1", "integers and", [3, 8, 1]),
        ("3, 8, and 1", "integers, and", [3, 8, 1]),
        ("A-B, B-C", "edges", [("A", "B"), ("B", "C")]),
        ('"two words"', "quoted", "two words"),
        ("\u201cx\u201d", "curly quoted", "x"),
        ("Q", "label", "Q"),
    ],
)
def test_values(text: str, kind: str, argument: object) -> None:
    (token,) = tokens(text)
    assert token.kind == kind
    assert KINDS[kind].argument(KINDS[kind].parse(text)) == argument


@pytest.mark.parametrize(
    "text",
    [
        *("007", "-0", "2023-02-29", "2024-13-01", "February 30, 2024", "31 April 2023"),
        *("25:10", "9:61", "1.2.3", "x2", "1.5.2", "9" * 500, "0000-01-01"),
    ],
)
def test_what_only_looks_like_a_value_is_none(text: str) -> None:
    kinds = {token.kind for token in tokens(f"so {text} it is")}
    assert "odd" in kinds


def test_signs_in_the_middle_are_operators() -> None:
    assert [token.text for token in tokens("5-3") if token.kind == "integer"] == ["5", "3"]
    assert [token.text for token in tokens("5 - 3") if token.kind == "integer"] == ["5", "3"]
    assert [token.text for token in tokens("5 * -3") if token.kind == "integer"] == ["5", "-3"]
    assert [token.kind for token in tokens("\u22123")] == ["sign", "integer"]


def test_a_long_text_takes_its_length() -> None:
    for piece in ("9", "9, ", "9.", "A-B, ", '"', "-", "9:", "2024-", "May 5, "):
        text = piece * 2_000
        assert "".join(token.text for token in tokens(text)) == text
