"""Related deposits: which solved problems read most like this one, to be context for an attempt.

By words alone, no model: words and pairs of words, ranked by BM25 (Robertson and Zaragoza, 2009) in
an FTS5 table of SQLite, then by the share of terms in common. Numbers are all alike here: what is
sought is the same kind of problem. What is found is context, never an answer (invariant I6).

The index is a file of its own beside the library. It is brought up to date when it is used, made
again when it is damaged or of another library, and never believed: every deposit that it proposes
is read from the library, which alone says whether it is there, whole and active.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvgraft.errors import RecordNotFound, StoreError, StoreFull, StoreReadOnly
from kvgraft.library import schema
from kvgraft.library.deposit import ACTIVE, REVOKED, SUPERSEDED, Deposit
from kvgraft.library.records import Library
from kvgraft.library.verify.base import GRADES
from kvgraft.limits import (
    LIBRARY_BUSY_SECONDS,
    MAX_RELATED_CANDIDATES,
    MAX_RELATED_CHARS,
    MAX_RELATED_ROWS,
)
from kvgraft.sqlite import naming_errors, open_database, transaction

INDEX_NAME = "related.sqlite3"
MIN_SIMILARITY = 0.3  # what two problems share below this, most questions share

_PAGE_ROWS = 5_000
_TENANT_ROWS = 1 << 40  # the rows of a tenant are a range of their own
_COMMON_TERMS, _ROWS_OF_COMMON = 8, 16
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[^\w\s]|_")
_IS_THERE = "SELECT 1 FROM deposits WHERE id = ?"
_NEWER = """
    SELECT id, tenant, problem FROM deposits
    WHERE id > ? AND parent IS NULL ORDER BY id LIMIT ?
"""
_FIND = """
    SELECT d.number, d.id FROM problems JOIN deposits AS d ON d.number = problems.rowid
    WHERE problems MATCH ? AND problems.rowid BETWEEN ? AND ? AND NOT d.gone
    ORDER BY {order} LIMIT ?
"""
_Read = Callable[..., list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Related:
    """A deposit, and how like the problem its own is: Dice's coefficient of their terms, 0 to 1."""

    deposit: Deposit
    similarity: float


def related(
    library: Library,
    tenant: str,
    problem: str,
    *,
    count: int = 3,
    minimum: float = MIN_SIMILARITY,
) -> tuple[Related, ...]:
    """The `count` active deposits of `tenant` whose problems read most like `problem`, the most
    alike first; then the better grade, then the newer one. Follow-ups are not among them: their
    problems say nothing alone.

    Raises:
        StoreError: library or index cannot be used: the folder cannot be written, or this SQLite
            has no FTS5.
    """
    path = library.path.with_name(INDEX_NAME)
    terms = _terms(problem)
    found, gone = [], []
    with naming_errors(str(path)), _up_to_date(path, library) as index:
        for row, id in index.candidates(tenant, list(dict.fromkeys(terms))):
            try:
                deposit = library.get(id)
            except RecordNotFound:
                gone.append(row)
                continue
            except StoreError:  # damaged, or busy: not context now
                continue
            similarity = _dice(terms, _terms(deposit.problem))
            if deposit.status in (REVOKED, SUPERSEDED):
                gone.append(row)
            elif deposit.status == ACTIVE and deposit.tenant == tenant and similarity >= minimum:
                found.append(Related(deposit, similarity))
        index.forget(gone)
    found.sort(key=lambda one: one.deposit.id, reverse=True)
    found.sort(key=lambda one: (-one.similarity, -GRADES.index(one.deposit.verdict.grade)))
    solutions: dict[str, Related] = {}  # one for each, however many engines it has states for
    for one in found:
        solutions.setdefault(one.deposit.origin or one.deposit.id, one)
    return tuple(solutions.values())[:count]


def _terms(text: str) -> list[str]:
    """Words, signs and numbers, and pairs of neighbours, each as a short digest, so that every
    script fits one index. Scripts without letter case often have no spaces either: of their words,
    pairs of characters are taken."""
    words: list[str] = []
    for token in _TOKEN.findall(text[:MAX_RELATED_CHARS].lower()):
        if token[0].isdigit():
            words.append("0")
        elif len(token) > 2 and token.upper() == token:
            words += [token[at : at + 2] for at in range(len(token) - 1)]
        else:
            words.append(token)
    pairs = [f"{one} {other}" for one, other in pairwise(words)]
    digests = (blake2b(t.encode("utf-8", "replace"), digest_size=7) for t in [*words, *pairs])
    return [digest.hexdigest() for digest in digests]


def _dice(one: Iterable[str], other: Iterable[str]) -> float:
    ours, theirs = set(one), set(other)
    both = len(ours) + len(theirs)
    return 2 * len(ours & theirs) / both if both else 0.0


# --- the file -------------------------------------------------------------------------------------


def _make_tables(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE progress (last TEXT)")  # the newest deposit that was taken in
    db.execute("INSERT INTO progress VALUES (NULL)")
    db.execute("CREATE TABLE tenants (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
    db.execute(
        "CREATE TABLE deposits"
        " (number INTEGER PRIMARY KEY, id TEXT NOT NULL, gone INTEGER NOT NULL DEFAULT 0)"
    )
    # Without content: the texts are in the library. Nothing is taken out, but marked as gone.
    db.execute("CREATE VIRTUAL TABLE problems USING fts5(terms, content='', tokenize='ascii')")
    db.execute("CREATE VIRTUAL TABLE counts USING fts5vocab(problems, row)")


@contextmanager
def _up_to_date(path: Path, library: Library) -> Iterator[_Index]:
    """The library's index, with all that is in the library; made anew where it is of no use."""
    try:
        index = _caught_up(path, library)
    except (StoreFull, StoreReadOnly):
        raise
    except (StoreError, sqlite3.DatabaseError) as error:
        if "locked" in str(error):
            raise
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        index = _caught_up(path, library)
    try:
        yield index
    finally:
        index.close()


def _caught_up(path: Path, library: Library) -> _Index:
    index = _Index(path)
    try:
        index.catch_up(library)
    except BaseException:
        index.close()
        raise
    return index


@contextmanager
def _reading(library: Library) -> Iterator[_Read]:
    """Questions to the library's file. Whole records would be far more than an index needs."""
    db = schema.open_database(library.path, read_only=True, busy_seconds=LIBRARY_BUSY_SECONDS)
    try:
        yield lambda sql, *values: db.execute(sql, values).fetchall()
    finally:
        db.close()


class _Index:
    """The open file."""

    def __init__(self, path: Path) -> None:
        self._db = open_database(path, (_make_tables,))
        self._execute = self._db.execute

    def close(self) -> None:
        self._db.close()

    def catch_up(self, library: Library) -> None:
        """Take in what was deposited since. Several processes may do so at once."""
        with _reading(library) as read:
            while True:
                last = self._last()
                if last is not None and not read(_IS_THERE, last):
                    raise StoreError("the index is of another library", where=str(library.path))
                if not (page := read(_NEWER, last or "", _PAGE_ROWS)):
                    return
                with transaction(self._db):
                    if self._last() == last:  # else another process took this page in
                        for id, tenant, problem in page:
                            self._add(id, tenant, problem)
                        self._execute("UPDATE progress SET last = ?", (page[-1][0],))

    def _last(self) -> str | None:
        last: str | None = self._execute("SELECT last FROM progress").fetchone()[0]
        return last

    def _add(self, id: str, tenant: str, problem: str) -> None:
        tenant = tenant.encode("utf-8", "replace").decode()  # a damaged one is nobody's
        self._execute("INSERT OR IGNORE INTO tenants (name) VALUES (?)", (tenant,))
        first, end = self._rows_of(tenant)
        sql = "SELECT max(number) FROM deposits WHERE number BETWEEN ? AND ?"
        newest = self._execute(sql, (first, end)).fetchone()[0]
        number = first if newest is None else newest + 1
        self._execute("INSERT INTO deposits (number, id) VALUES (?, ?)", (number, id))
        terms = " ".join(_terms(problem))
        self._execute("INSERT INTO problems (rowid, terms) VALUES (?, ?)", (number, terms))

    def _rows_of(self, tenant: str) -> tuple[int, int]:
        """The first and the last number that its rows may have; an empty range if it has none."""
        sql = "SELECT number FROM tenants WHERE name = ?"
        row = self._execute(sql, (tenant,)).fetchone()
        return (row[0] * _TENANT_ROWS, (row[0] + 1) * _TENANT_ROWS - 1) if row else (0, -1)

    def candidates(self, tenant: str, terms: Sequence[str]) -> list[tuple[int, str]]:
        """Number and id of rows that share rare terms with the problem, best first; behind them
        the newest that share its less rare ones. Terms of more than `limits.MAX_RELATED_ROWS`
        rows are not ranked by, so that a large library of similar problems stays usable."""
        counted = []
        for term in terms:
            row = self._execute("SELECT doc FROM counts WHERE term = ?", (term,)).fetchone()
            counted += [(int(row[0]), term)] if row else []
        counted.sort()
        rare, rows = [], 0
        for count, term in counted:
            rows += count
            if rows > MAX_RELATED_ROWS:
                break
            rare.append(f'"{term}"')
        found = []
        if rare:
            found += self._find(tenant, " OR ".join(rare), "rank", MAX_RELATED_CANDIDATES)
        for _, term in counted[len(rare) :][:_COMMON_TERMS]:
            found += self._find(tenant, f'"{term}"', "problems.rowid DESC", _ROWS_OF_COMMON)
        return list(dict.fromkeys(found))[:MAX_RELATED_CANDIDATES]

    def _find(self, tenant: str, match: str, order: str, count: int) -> list[tuple[int, str]]:
        values = (match, *self._rows_of(tenant), count)
        return list(self._execute(_FIND.format(order=order), values))

    def forget(self, rows: Iterable[int]) -> None:
        """Do not propose these again: what left the library does not come back."""
        if rows := list(rows):
            with transaction(self._db):
                self._db.executemany(
                    "UPDATE deposits SET gone = 1 WHERE number = ?", [(row,) for row in rows]
                )
