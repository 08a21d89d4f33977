"""Routing: words and meaning together find the page, or say that there is none."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from context.embedders import TinyEmbedder
from kvgraft.context import dense, lexical
from kvgraft.context.route import Routing, route
from kvgraft.errors import StoreError, UsageError
from kvgraft.limits import MAX_ROUTED_PASSAGES
from kvgraft.sqlite import open_database, statements

TABLE = statements("CREATE TABLE passages (id INTEGER PRIMARY KEY, page INTEGER NOT NULL)")
MIGRATIONS = (TABLE, lexical.migrate, dense.migrate)
PAGES = {
    10: ["The gate of Zarvik opens with 4711.", "Bread is sold in the market of the town."],
    20: ["The gate of Lomeda opens with 1234.", "Anna purchased a vehicle from an old friend."],
    30: ["Rain falls all day in the green hills.", "The town has a market and a gate."],
}


def fill(db: sqlite3.Connection, embedder: TinyEmbedder | None) -> None:
    texts = []
    for page, passages in PAGES.items():
        for number, text in enumerate(passages):
            id = page + number
            db.execute("INSERT INTO passages VALUES (?,?)", (id, page))
            lexical.add(db, id, "A town", "", text)
            texts.append(dense.Text(id, text))
    if embedder is not None:
        dense.add(db, embedder, texts)


@pytest.fixture
def embedder() -> TinyEmbedder:
    return TinyEmbedder()


@pytest.fixture
def db(embedder: TinyEmbedder) -> Iterator[sqlite3.Connection]:
    opened = open_database(None, MIGRATIONS)
    fill(opened, embedder)
    yield opened
    opened.close()


def numbers(routing: Routing) -> list[int]:
    return [page.page for page in routing.pages]


def test_a_literal_question_finds_its_page(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    for using in (None, embedder):
        routing = route(db, "With what does the gate of Lomeda open?", embedder=using)
        assert routing.relevant
        assert numbers(routing)[0] == 20  # 10 and 30 have a gate too
        best = routing.pages[0]
        assert best.passages[0].passage == 20
        assert best.score == best.passages[0].score
        assert 0 < best.score <= 1
        assert [page.score for page in routing.pages] == sorted(
            (page.score for page in routing.pages), reverse=True
        )


def test_the_best_that_can_be_scores_one(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    text = PAGES[10][0]
    assert route(db, text, embedder=embedder).pages[0].score == pytest.approx(1)
    assert route(db, text).pages[0].score == pytest.approx(1)
    assert route(db, "Zarvik is unknown to geographers").pages[0].score < 0.2


def test_meaning_finds_what_shares_no_word(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    question = "Who acquired the automobile?"
    alone = route(db, question)
    assert (alone.pages, alone.relevant, alone.similarity) == ((), False, None)
    routing = route(db, question, embedder=embedder)
    assert (numbers(routing)[0], routing.relevant) == (20, True)
    assert routing.pages[0].passages[0].passage == 21
    assert routing.share == 0
    assert routing.similarity is not None


def test_common_words_do_not_outvote_meaning(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    # "town" is in every passage's title and "market" on two other pages.
    question = "Who bought a car from an elderly market companion in town?"
    assert numbers(route(db, question))[0] in (10, 30)
    assert numbers(route(db, question, embedder=embedder))[0] == 20


@pytest.mark.parametrize("question", ["Which vaccine do puppies get?", "Explain photosynthesis!"])
def test_nothing_relevant_is_said(
    db: sqlite3.Connection, embedder: TinyEmbedder, question: str
) -> None:
    alone = route(db, question)
    assert (alone.pages, alone.relevant, alone.why) == ((), False, "no passage was found")
    routing = route(db, question, embedder=embedder)
    assert not routing.relevant
    assert routing.pages  # the nearest, for whoever wants them anyway
    assert "0% of what the question's words say" in routing.why
    assert "are needed" in routing.why


def test_a_part_of_the_words_is_weighed_by_their_rarity(db: sqlite3.Connection) -> None:
    common = route(db, "gate elephant giraffe")  # one common word of three
    assert not common.relevant
    assert common.pages
    rare = route(db, "Zarvik elephant")
    assert rare.relevant
    assert common.share < 0.35 < rare.share < 1


def test_few_of_the_words_are_no_evidence_where_meaning_says_no(
    db: sqlite3.Connection, embedder: TinyEmbedder
) -> None:
    routing = route(db, "Zarvik 4711 elephant giraffe", embedder=embedder)
    assert 0.3 < routing.share < 0.5
    assert routing.similarity is not None
    assert routing.similarity < 0.4
    assert not routing.relevant


def test_more_of_the_words_beat_one_of_them_many_times() -> None:
    db = open_database(None, MIGRATIONS)
    filler = " ".join(f"filler{number}" for number in range(200))
    texts = [
        "zebra zebra zebra zebra",
        f"zebra lion {filler}",
        "lion",
        "zebra",
        "ant",
        "bee",
        "cow",
    ]
    for id, text in enumerate(texts):
        db.execute("INSERT INTO passages VALUES (?,?)", (id, id))
        lexical.add(db, id, "", "", text)
    assert [passage for passage, _ in lexical.search(db, "zebra lion", 1)] != [1]
    assert numbers(route(db, "zebra lion"))[0] == 1
    db.close()


def test_a_compound_is_no_evidence_beside_its_parts(db: sqlite3.Connection) -> None:
    share = route(db, "Zarvik elephant").share
    assert route(db, "Zarvik-elephant").share == share
    # But where the rarest terms of a long question are compounds alone, they are what there is.
    compounds = " ".join(f"k{number}_m{number}" for number in range(40))
    for id, text in ((50, compounds), (60, compounds.replace("_", " "))):
        db.execute("INSERT INTO passages VALUES (?,?)", (id, id))
        lexical.add(db, id, "", "", text)
    routing = route(db, compounds)
    assert (numbers(routing), routing.share) == ([50], 1)


def test_count_and_order_are_fixed(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    three = route(db, "the gate of a town", embedder=embedder, count=3)
    assert len(three.pages) == 3
    assert route(db, "the gate of a town", embedder=embedder, count=1).pages == three.pages[:1]
    assert route(db, "the gate of a town", embedder=embedder, count=3) == three
    with pytest.raises(UsageError):
        route(db, "gate", count=0)


@pytest.mark.parametrize("question", ["", " \n\t", "?!", "\0", "\ud800", "\ufeff"])
def test_an_empty_question_is_about_nothing(
    db: sqlite3.Connection, embedder: TinyEmbedder, question: str
) -> None:
    before = embedder.embedded
    routing = route(db, question, embedder=embedder)
    assert not routing.relevant
    assert not route(db, question).relevant
    if not question.strip():
        assert routing == Routing((), False, "the question is empty")
        assert embedder.embedded == before


def test_a_removed_passage_is_not_routed_to(db: sqlite3.Connection, embedder: TinyEmbedder) -> None:
    lexical.remove(db, [10])
    assert 10 not in numbers(route(db, "gate of Zarvik"))
    db.execute("DELETE FROM passages WHERE id=20")  # between a search and its reading
    for using in (None, embedder):
        found = [
            p.passage for one in route(db, "Lomeda", embedder=using).pages for p in one.passages
        ]
        assert 20 not in found


def test_a_collection_without_vectors_is_routed_by_words(embedder: TinyEmbedder) -> None:
    db = open_database(None, MIGRATIONS)
    assert route(db, "gate", embedder=embedder) == Routing((), False, "no passage was found")
    fill(db, None)
    routing = route(db, "gate of Zarvik", embedder=embedder)
    assert (numbers(routing)[0], routing.relevant, routing.similarity) == (10, True, None)
    assert routing == route(db, "gate of Zarvik")
    db.close()


def test_vectors_of_another_embedder_are_refused(db: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="another embedding model"):
        route(db, "gate", embedder=TinyEmbedder("tiny-2"))


def test_a_page_with_many_weak_passages_does_not_win(embedder: TinyEmbedder) -> None:
    db = open_database(None, MIGRATIONS)
    for id in range(2 * MAX_ROUTED_PASSAGES):
        db.execute("INSERT INTO passages VALUES (?,1)", (id,))
        lexical.add(db, id, "", "", f"the harbour of town {id}")
    db.execute("INSERT INTO passages VALUES (500,2)")
    lexical.add(db, 500, "", "", "the harbour of Zarvik was dug by hand")
    routing = route(db, "Who dug the harbour of Zarvik?")
    assert numbers(routing) == [2, 1]
    assert len(routing.pages[1].passages) == 8
    db.close()


def test_it_reads_a_file_that_is_open_for_reading_alone(
    tmp_path: Path, embedder: TinyEmbedder
) -> None:
    path = tmp_path / "c.sqlite3"
    written = open_database(path, MIGRATIONS)
    fill(written, embedder)
    written.close()
    db = open_database(path, MIGRATIONS, read_only=True)
    assert numbers(route(db, "gate of Zarvik", embedder=embedder))[0] == 10
    db.close()


def test_a_damaged_file_is_named(db: sqlite3.Connection) -> None:
    db.execute("UPDATE lexical_data SET block = x'00ff00ff' WHERE id > 10")
    with pytest.raises(StoreError):
        route(db, "gate of Zarvik")
