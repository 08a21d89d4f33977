"""Search by words: any text and question is safe, in any script; rare words decide."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvgraft.context import lexical
from kvgraft.limits import MAX_QUESTION_TERMS, MAX_TERM_CHARS
from kvgraft.sqlite import open_database


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    opened = open_database(None, (lexical.migrate,))
    yield opened
    opened.close()


def fill(db: sqlite3.Connection, *texts: str) -> None:
    for number, text in enumerate(texts, start=1):
        lexical.add(db, number, "", "", text)


def found(db: sqlite3.Connection, question: str, count: int = 10) -> list[int]:
    return [passage for passage, _ in lexical.search(db, question, count)]


def test_the_passage_with_the_rare_word_is_first(db: sqlite3.Connection) -> None:
    fill(db, "the port of the server", "the port of Zanzibar", "a server and a port", "nothing")
    scored = lexical.search(db, "Which server is at the port of Zanzibar?", 10)
    assert [passage for passage, _ in scored] == [2, 1, 3]
    assert scored[0][1] > scored[1][1] > 0
    assert found(db, "Which server is at the port of Zanzibar?", 1) == [2]
    assert found(db, "giraffe") == []


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("It was founded by monks", "who was the founder? founding!"),  # stems
        ("connections are pooled", "pool a connection"),
        ("set max_connections to 5", "what is maxConnections?"),
        ("set max_connections to 5", "MAX connections"),
        ("pass --no-install-recommends", "noInstallRecommends"),
        ("das Maß der Straße", "MASS STRASSE"),
        ("café à la crème", "cafe"),
        ("cafe", "CAFÉ"),
        ("ΑΘΗΝΑ είναι", "αθήνα"),
        ("\ufb01le \uff21\uff22\uff23", "file ABC"),  # a ligature, wide letters
        ("東京都に住んでいます", "東京の人口は?"),
        ("東京都に住んでいます", "都"),
        ("住む水", "水"),
        ("ｶﾀｶﾅ ②", "カタカナ"),  # half its width
        ("สวัสดีครับ", "สวัสดี"),
        ("한국어를 배웁니다", "한국어"),
        ("हिन्दी भाषा में", "हिन्दी"),
        ("привет мир", "Привет, медведь"),
        ("ship it \N{ROCKET} now", "\N{ROCKET}?"),
        ("the QX7-3391 valve", "QX73391"),
        ("a\0b\0zebra", "zebra\0"),
        ("\ud800zebra", "zebra \udfff"),
        ("e\u0301" + "\u0301" * 50_000 + " zebra", "zebra"),
        ("x" * 100_000, "x" * 200),
        ("и" + "\u0301\u0316" * 10, "и" + "\u0301\u0316" * 25_000),
    ],
)
def test_it_is_found_as_people_write_it(db: sqlite3.Connection, text: str, question: str) -> None:
    fill(db, "other words entirely", text, "вещь 魚 πράγμα")
    assert found(db, question) == [2]


def test_another_word_of_the_script_is_not_found(db: sqlite3.Connection) -> None:
    fill(db, "हिन्दी", "สวัสดี", "東京")
    assert found(db, "हद") == []
    assert found(db, "大阪") == []


@pytest.mark.parametrize(
    "question",
    [
        'x" OR "y', "NEAR(a b)", "text : zebra", "title:zebra", "zebra*", "-zebra", "^zebra",
        "a AND NOT b", "(((", "'; DROP TABLE lexical; --", '"', "*", "{title} : zebra", "+",
        "\0", "\ud800", "", "   ", "?!", "\N{COMBINING ACUTE ACCENT}",
    ],
)  # fmt: skip
def test_nothing_in_a_question_is_an_operator(db: sqlite3.Connection, question: str) -> None:
    fill(db, "a striped animal", "zebra")
    assert found(db, question) == ([2] if "zebra" in question else [])
    assert found(db, "zebra") == [2]


@settings(max_examples=150)
@given(text=st.text(max_size=200), question=st.text(max_size=100))
def test_any_text_and_question_are_taken(text: str, question: str) -> None:
    db = open_database(None, (lexical.migrate,))
    lexical.add(db, 1, text, text, text)
    lexical.add(db, 2, "", "", "alpha")
    assert 2 in found(db, f"{question} alpha")
    if any(character.isalnum() for character in text):
        assert 1 in found(db, text[:4_000])
    lexical.remove(db, [1, 2])
    assert found(db, f"{text} {question} alpha") == []
    db.close()


def test_title_and_heading_count_less_than_text(db: sqlite3.Connection) -> None:
    lexical.add(db, 1, "zebra", "", "striped animals")
    lexical.add(db, 2, "", "zebra", "striped animals")
    lexical.add(db, 3, "", "", "zebra animals")
    lexical.add(db, 4, "", "", "striped animals")
    assert found(db, "zebra") == [3, 2, 1]


def test_removal_and_a_second_addition(db: sqlite3.Connection) -> None:
    fill(db, "one zebra", "two zebra", "three")
    lexical.remove(db, [1, 99])
    assert found(db, "zebra one") == [2]
    lexical.add(db, 1, "", "", "giraffe")
    assert found(db, "giraffe") == [1]
    assert [term.passages for term in lexical.terms(db, "zebra")] == [1]


def test_terms_are_counted_and_the_rarest_come_first(db: sqlite3.Connection) -> None:
    fill(db, "red zebra", "red lion", "red ant")
    terms = lexical.terms(db, "Is the zebra red, or a unicorn?")
    assert [(term.text, term.passages) for term in terms] == [
        ("zebra", 1), ("red", 3), ("unicorn", 0),
    ]  # fmt: skip
    assert terms[2].weight > terms[0].weight > terms[1].weight > 0


def test_a_question_of_stop_words_alone_is_asked_as_it_is(db: sqlite3.Connection) -> None:
    fill(db, "to be, or not to be", "something else")
    assert found(db, "To be or not to be?") == [1]
    assert [term.text for term in lexical.terms(db, "what is a zebra?")] == ["zebra"]


def test_a_long_question_is_cut_to_its_rarest_terms(db: sqlite3.Connection) -> None:
    fill(db, *[f"word{number} common" for number in range(50)])
    terms = lexical.terms(db, "common " + " ".join(f"word{number}" for number in range(2_000)))
    assert [term.passages for term in terms] == [1] * MAX_QUESTION_TERMS
    assert max(len(one.text) for one in lexical.terms(db, "y" * 1_000)) == MAX_TERM_CHARS


def test_only_rare_terms_are_ranked_by(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexical, "MAX_RANKED_ROWS", 3)
    fill(db, *["common usual"] * 5, "common usual zebra", "zebra", "usual")
    asked = lexical.terms(db, "common usual zebra")
    assert [(term.text, term.passages) for term in asked] == [
        ("zebra", 2), ("common", 4), ("usual", 4),
    ]  # fmt: skip
    assert {passage for passage, score in lexical.ranked(db, asked, 10) if score > 0} == {6, 7}
    # Without a rare one: all that have every common one, in order and without a score.
    assert lexical.search(db, "common usual", 3) == [(1, 0.0), (2, 0.0), (3, 0.0)]
    fill_more = "usual oddity"
    for number in range(20, 25):
        lexical.add(db, number, "", "", fill_more)
    assert [passage for passage, _ in lexical.search(db, "oddity common", 3)] == [20, 21, 22]


def test_shared_says_which_terms_a_passage_has(db: sqlite3.Connection) -> None:
    fill(db, "red zebra", "red lion")
    terms = lexical.terms(db, "red zebra unicorn lion")
    names = [{terms[place].text for place in one} for one in lexical.shared(db, terms, [1, 2, 9])]
    assert names == [{"red", "zebra"}, {"red", "lion"}, set()]
