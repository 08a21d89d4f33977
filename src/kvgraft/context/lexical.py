"""Which passages share words with a question: BM25 in an FTS5 table of the collection's file.

Text and question become terms in the same way, here and not in SQLite, whose own tables of letters
are of 2012: words in Unicode's compatibility form without case, Latin and Greek ones without
accents; pairs of characters where a script writes no spaces; symbols, one by one. A compound
("max_connections", "getName", "e-mail") counts as its parts and as one word too. SQLite then stems
what is English (Porter, 1980), ranks (BM25: Robertson and Zaragoza, 2009), and keeps it on disk.

Only terms that few passages have are ranked by (`limits.MAX_RANKED_ROWS`), so that a question of
common words costs no more in a large collection.
"""

from __future__ import annotations

import math
import sqlite3
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import regex

from kvgraft.limits import (
    MAX_QUESTION_TERMS,
    MAX_RANKED_ROWS,
    MAX_ROUTED_QUESTION_CHARS,
    MAX_TERM_CHARS,
)
from kvgraft.sqlite import statements

migrate = statements(
    "CREATE VIRTUAL TABLE lexical USING fts5(title, heading, text, tokenize='porter ascii')"
)
"""Makes the table. Its rows have the numbers of the passages."""

# A word in a passage's text counts 1.0; its title and heading are those of many other passages.
_RANK = "bm25(lexical, 0.3, 0.6, 1.0)"

_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:[_.'’-][\p{L}\p{M}\p{N}]+)*|\p{So}")
_PART = regex.compile(rf"[{_UNSPACED}]+|[\p{{L}}\p{{M}}\p{{N}}--{_UNSPACED}]+|\p{{So}}", regex.V1)
_RUN = regex.compile(rf"[{_UNSPACED}]+")
_HUMP = regex.compile(r"(?<=[\p{Ll}\p{N}])(?=\p{Lu})")
_ACCENTS = regex.compile(r"(?<=[\p{Latin}\p{Greek}])\p{Mn}+")
# Normalising sorts a run of combining marks in quadratic time, and no writing has runs like that.
_MARKS = regex.compile(r"(\p{M}{16})\p{M}+")

STOP_WORDS = frozenset(
    [
        "a",
        "about",
        "all",
        "also",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "being",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "doing",
        "for",
        "from",
        "had",
        "has",
        "have",
        "having",
        "he",
        "her",
        "him",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "may",
        "me",
        "might",
        "must",
        "my",
        "no",
        "not",
        "of",
        "on",
        "or",
        "our",
        "s",
        "shall",
        "she",
        "should",
        "so",
        "some",
        "such",
        "t",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "under",
        "up",
        "upon",
        "us",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whom",
        "whose",
        "why",
        "will",
        "with",
        "within",
        "would",
        "you",
        "your",
    ]
)
"""English words of every question, which say nothing of what it is about."""


@dataclass(frozen=True)
class Term:
    """A term of a question. `passages`: how many have it, counted up to one more than
    `limits.MAX_RANKED_ROWS`. `weight`: how much it says, the logarithm of its rarity as in BM25.
    `whole`: it is a compound, whose parts are terms too."""

    text: str
    passages: int
    weight: float
    whole: bool

    @property
    def match(self) -> str:
        """It as a query. Quotes and operators cannot be in a term."""
        return f'"{self.text}"*' if _is_character(self.text) else f'"{self.text}"'


def add(db: sqlite3.Connection, passage: int, title: str, heading: str, text: str) -> None:
    """Take a passage in. Any text will do."""
    db.execute(
        "INSERT INTO lexical (rowid, title, heading, text) VALUES (?,?,?,?)",
        (passage, *(" ".join(_terms(one)) for one in (title, heading, text))),
    )


def remove(db: sqlite3.Connection, passages: Iterable[int]) -> None:
    """Take passages out; those that are not in are no error."""
    db.executemany("DELETE FROM lexical WHERE rowid=?", ((passage,) for passage in passages))


def search(db: sqlite3.Connection, question: str, count: int) -> list[tuple[int, float]]:
    """Up to `count` passages that share terms with `question`, the best first, with BM25 scores
    above 0. The score is 0 where it has no rare term: those passages have all of its common ones,
    or its rarest."""
    return ranked(db, terms(db, question), count)


def terms(db: sqlite3.Connection, question: str) -> list[Term]:
    """The terms of a question, the rarest first and behind them those that no passage has; without
    `STOP_WORDS`, unless it has no others."""
    texts: dict[str, bool] = {}
    for text, whole in _asked(question[:MAX_ROUTED_QUESTION_CHARS]):
        texts.setdefault(text, whole)
        if len(texts) == 4 * MAX_QUESTION_TERMS:
            break
    telling = {text: whole for text, whole in texts.items() if text not in STOP_WORDS}
    total = db.execute("SELECT count(*) FROM lexical_docsize").fetchone()[0]
    found = [_counted(db, text, whole, total) for text, whole in (telling or texts).items()]
    found.sort(key=lambda term: (not term.passages, term.passages))
    return found[:MAX_QUESTION_TERMS]


def _counted(db: sqlite3.Connection, text: str, whole: bool, total: int) -> Term:
    match = Term(text, 0, 0.0, whole).match
    passages = db.execute(
        "SELECT count(*) FROM (SELECT 1 FROM lexical WHERE lexical MATCH ? LIMIT ?)",
        (match, MAX_RANKED_ROWS + 1),
    ).fetchone()[0]
    weight = math.log(1 + (total - passages + 0.5) / (passages + 0.5))
    return Term(text, passages, weight, whole)


def ranked(db: sqlite3.Connection, asked: Sequence[Term], count: int) -> list[tuple[int, float]]:
    """`search` by terms that are there already, the rarest first."""
    known = [term for term in asked if term.passages]
    rare, rows = [], 0
    for term in known:
        rows += term.passages
        if rows > MAX_RANKED_ROWS:
            break
        rare.append(term)
    if rare:
        found = db.execute(
            f"SELECT rowid, -{_RANK} FROM lexical WHERE lexical MATCH ?"
            f" ORDER BY {_RANK}, rowid LIMIT ?",
            (" OR ".join(term.match for term in rare), count),
        ).fetchall()
        return [(int(passage), float(score)) for passage, score in found]
    for some in (known, known[:2], known[:1]):
        found = (
            db.execute(
                "SELECT rowid FROM lexical WHERE lexical MATCH ? LIMIT ?",
                (" AND ".join(term.match for term in some), count),
            ).fetchall()
            if some
            else []
        )
        if found:
            return [(int(passage), 0.0) for (passage,) in found]
    return []


def shared(
    db: sqlite3.Connection, asked: Sequence[Term], passages: Iterable[int]
) -> list[set[int]]:
    """For every passage, which of the terms (by place) it has."""
    return [
        {
            place
            for place, term in enumerate(asked)
            if term.passages
            and db.execute(
                "SELECT 1 FROM lexical WHERE lexical MATCH ? AND rowid=?", (term.match, passage)
            ).fetchone()
        }
        for passage in passages
    ]


# --- terms ----------------------------------------------------------------------------------------


def _terms(text: str) -> Iterator[str]:
    """The terms of a text, in its order."""
    for word in _words(text):
        for term, _ in _of_word(word):
            yield term
        for run in _RUN.findall(word):
            if len(run) > 1:  # so that every character of it begins a term, and is found by that
                yield run[-1]


def _asked(question: str) -> Iterator[tuple[str, bool]]:
    for word in _words(question):
        yield from _of_word(word)


def _words(text: str) -> Iterator[str]:
    normal = unicodedata.normalize("NFKC", _MARKS.sub(r"\1", text))
    return (word.group() for word in _WORD.finditer(normal))


@lru_cache(maxsize=1 << 16)
def _of_word(word: str) -> tuple[tuple[str, bool], ...]:
    """The terms of a word or compound; with each, whether it is the whole of several."""
    parts: list[str] = []
    joined = True
    for part in _PART.findall(word):
        if _RUN.match(part):
            joined = False
            parts += [part[at : at + 2] for at in range(max(1, len(part) - 1))]
        else:
            parts += [_folded(hump) for hump in _HUMP.split(part) if hump]
    made = [(part[:MAX_TERM_CHARS], False) for part in parts if part]
    whole = "".join(parts)
    if joined and len(made) > 1 and len(whole) <= MAX_TERM_CHARS:
        made.append((whole, True))
    return tuple(made)


def _folded(word: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", word.casefold()))
    return unicodedata.normalize("NFC", plain)


def _is_character(term: str) -> bool:
    return len(term) == 1 and _RUN.match(term) is not None
