"""Which pages a question is to be put to: search by words and by meaning, fused; or none of them.

Both searches rank passages, and a passage counts by its ranks (reciprocal rank fusion: Cormack,
Clarke and Büttcher, 2009). A rank by words counts as much as the words that were found say: where a
question is asked in other words than the text's, its few common words find nothing but noise, and
the meaning decides. A page is as good as its best passage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvgraft.context import dense, lexical
from kvgraft.context.embed import Embedder
from kvgraft.context.lexical import Term
from kvgraft.errors import UsageError
from kvgraft.limits import MAX_ROUTED_PASSAGES, MAX_ROUTED_QUESTION_CHARS
from kvgraft.sqlite import naming_errors

# When a collection says something about a question: one passage has this share of its words, or
# one is so similar. Measured by `benchmarks/route_recall.py` in manuals of 640 and 1,900 passages.
# By words alone 96 % and 100 % of questions that the manual answers pass, and 8 % and 25 % of
# others. With meaning 100 % of both, some 82 % of those that share no telling word with their
# answer, and 10 % and 28 % of others: the more there is, the nearer something is. Low on purpose:
# a model that is asked in vain can still say so.
MIN_SHARE_ALONE = 0.35
MIN_SHARE, MIN_SIMILARITY = 0.50, 0.40

_RANKS = 20.0  # how slowly a rank loses: 1 / (20 + rank). Cormack et al. take 60, for more lists
_PAGE_PASSAGES = 8


@dataclass(frozen=True)
class RoutedPassage:
    """A passage that was found. `score`: 0 to 1, where 1 is the first by words, with all of them,
    and by meaning."""

    passage: int
    score: float


@dataclass(frozen=True)
class RoutedPage:
    """A page, as good as its best passage. Its best ones come first."""

    page: int
    score: float
    passages: tuple[RoutedPassage, ...]


@dataclass(frozen=True)
class Routing:
    """The best pages first. `relevant` False: nothing in the collection answers the question, and
    `pages` are merely the nearest. `why` says what was found, for people.

    `share`: of what the question's words say, the part that one passage has, 0 to 1. `similarity`:
    the cosine of the nearest passage; None where meaning was not searched by.
    """

    pages: tuple[RoutedPage, ...]
    relevant: bool
    why: str
    share: float = 0.0
    similarity: float | None = None


def route(
    db: sqlite3.Connection, question: str, *, count: int = 3, embedder: Embedder | None = None
) -> Routing:
    """The pages of a collection that a question is about, up to `count`; and whether there are any.

    Raises:
        UsageError: `count` is not positive; the collection's vectors were made by another embedder.
        EngineError: the embedder gave no vector.
        StoreError: the collection is damaged.
    """
    if count < 1:
        raise UsageError(f"a question cannot go to {count} pages")
    question = question[:MAX_ROUTED_QUESTION_CHARS]
    if not question.strip():
        return Routing((), False, "the question is empty")
    with naming_errors("collection", "ingest the documents again"):
        by_words = _by_words(db, question)
        by_meaning: list[tuple[int, float]] = []
        if embedder is not None:
            by_meaning = dense.search(db, embedder, question, MAX_ROUTED_PASSAGES)
        pages = _pages(db, _fused(by_words, by_meaning))
    share = max((share for _, share in by_words), default=0.0)
    similarity = by_meaning[0][1] if by_meaning else None
    relevant, why = _judged(share, similarity)
    if not pages:
        relevant, why = False, "no passage was found"
    return Routing(tuple(pages[:count]), relevant, why, share, similarity)


def _by_words(db: sqlite3.Connection, question: str) -> list[tuple[int, float]]:
    """Passages by BM25, with the share of the question that they have."""
    asked = lexical.terms(db, question)
    found = [passage for passage, _ in lexical.ranked(db, asked, MAX_ROUTED_PASSAGES)]
    return list(zip(found, _shares(db, asked, found), strict=True))


def _shares(db: sqlite3.Connection, asked: Sequence[Term], passages: Iterable[int]) -> list[float]:
    """Of the weight of all terms, the part that each passage has. A compound's parts say it all."""
    simple = [term for term in asked if not term.whole] or asked
    total = sum(term.weight for term in simple)
    return [
        sum(simple[place].weight for place in places) / total
        for places in lexical.shared(db, simple, passages)
    ]


def _fused(
    by_words: Iterable[tuple[int, float]], by_meaning: Sequence[tuple[int, float]]
) -> list[RoutedPassage]:
    scores: dict[int, float] = {}
    for rank, (passage, share) in enumerate(by_words):
        scores[passage] = share**2 * _of_rank(rank)
    for rank, (passage, _) in enumerate(by_meaning):
        scores[passage] = scores.get(passage, 0.0) + _of_rank(rank)
    parts = 2 if by_meaning else 1
    found = [RoutedPassage(passage, score / parts) for passage, score in scores.items()]
    return sorted(found, key=lambda one: (-one.score, one.passage))


def _of_rank(rank: int) -> float:
    """1 for the first, which has rank 0."""
    return (_RANKS + 1) / (_RANKS + 1 + rank)


def _pages(db: sqlite3.Connection, found: Iterable[RoutedPassage]) -> list[RoutedPage]:
    pages: dict[int, list[RoutedPassage]] = {}
    for one in found:
        row = db.execute("SELECT page FROM passages WHERE id=?", (one.passage,)).fetchone()
        if row is not None:  # else it was removed since
            pages.setdefault(row[0], []).append(one)
    return [
        RoutedPage(page, some[0].score, tuple(some[:_PAGE_PASSAGES]))
        for page, some in pages.items()
    ]


def _judged(share: float, similarity: float | None) -> tuple[bool, str]:
    said = f"one passage has {share:.0%} of what the question's words say"
    if similarity is None:
        return share >= MIN_SHARE_ALONE, f"{said} ({MIN_SHARE_ALONE:.0%} are needed)"
    said += f", and the nearest in meaning has a similarity of {similarity:.2f}"
    needed = f"{MIN_SHARE:.0%} or {MIN_SIMILARITY:.2f} are needed"
    return share >= MIN_SHARE or similarity >= MIN_SIMILARITY, f"{said} ({needed})"
