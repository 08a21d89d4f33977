"""Related deposits: found by words, never believed, of one's own library and tenant alone."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.errors import StoreReadOnly
from kvgraft.library import related as module
from kvgraft.library.address import AddressSpace, RequestIdentity
from kvgraft.library.deposit import Deposit, NewDeposit
from kvgraft.library.records import Library
from kvgraft.library.related import INDEX_NAME, related
from kvgraft.library.verify.base import Verdict

TENANT = "tenant"
SHOP = "A shop sells {} apples in the morning and {} in the afternoon. How many in total?"
TRAIN = "A train leaves at {} and arrives {} minutes later. When does it arrive?"
MINUTES = "How many minutes are {} hours?"


def new(problem: str, tenant: str = TENANT, grade: str = "proved", **changes: Any) -> NewDeposit:
    space = AddressSpace(
        RequestIdentity(problem="", tenant=tenant, template_digest="t", tokenizer_digest="k")
    )
    fields: dict[str, Any] = {
        "identity": space.identity(problem),
        "model": "model",
        "fingerprint": "f" * 64,
        "prompt": problem,
        "trace": "Answer: 4",
        "cue": "",
        "token_ids": (1, 2),
        "answer": "4",
        "answer_ids": (),
        "verdict": Verdict(True, grade, "4", "exact", "1", {}),
        "cost": {},
        "finished": True,
    }
    return NewDeposit(**{**fields, **changes})


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    with Library.open(tmp_path / "library.sqlite3") as opened:
        yield opened


def put(library: Library, *problems: str, **changes: Any) -> list[Deposit]:
    return [library.deposit(new(problem, **changes)) for problem in problems]


def texts(library: Library, problem: str, tenant: str = TENANT, **options: Any) -> list[str]:
    return [one.deposit.problem for one in related(library, tenant, problem, **options)]


def test_problems_of_the_same_kind_come_first_whatever_their_numbers(library: Library) -> None:
    shops = [SHOP.format(n, n + 1) for n in (11, 25)]
    put(library, *shops, TRAIN.format("7:45", 90), MINUTES.format(3))
    # It shares its numbers with the train, and its words with the shops.
    found = related(library, TENANT, SHOP.format("7:45", 90))
    assert [one.deposit.problem for one in found] == [shops[1], shops[0]]  # the newer one first
    assert texts(library, MINUTES.format(77)) == [MINUTES.format(3)]
    assert found[0].similarity > 0.8
    assert [one.similarity for one in related(library, TENANT, shops[0])] == [1.0, 1.0]


def test_nothing_related_is_nothing(library: Library) -> None:
    assert texts(library, SHOP) == []  # not even a deposit
    put(library, SHOP.format(1, 2))
    assert texts(library, "Prove that the square root of two is irrational.") == []
    assert texts(library, "") == []
    assert texts(library, '"*:^ -) OR AND NEAR(') == []  # what FTS5 has a grammar for
    assert texts(library, SHOP, minimum=1.1) == []


@pytest.mark.parametrize(
    ("one", "near", "far"),
    [
        ("今天有三个苹果", "今天有五个苹果", "地球有多大"),
        ("Сколько будет 7 + 5?", "Сколько будет 8 + 2?", "Кто ты?"),
        ("12 * 7 = ?", "99 * 3 = ?", "f(x)"),
    ],
)
def test_every_script_and_bare_signs(library: Library, one: str, near: str, far: str) -> None:
    put(library, near, far)
    assert texts(library, one) == [near]


def test_the_better_grade_comes_first_then_the_newer_deposit(library: Library) -> None:
    for grade in ("proved", "agreed", "proved"):
        put(library, SHOP.format(len(library.list()), 1), grade=grade)
    assert texts(library, SHOP.format(9, 9)) == [SHOP.format(n, 1) for n in (2, 0, 1)]
    assert texts(library, SHOP.format(9, 9), count=1) == [SHOP.format(2, 1)]


def test_what_left_the_library_is_not_proposed_and_does_not_crowd_out(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RELATED_CANDIDATES", 3)
    deposits = put(library, *(SHOP.format(n, 1) for n in range(7)))
    assert len(texts(library, SHOP)) == 3
    for deposit in deposits[1:]:
        library.revoke(deposit.id, "wrong")
    seen = [texts(library, SHOP) for _ in range(3)]
    assert seen[-1] == [SHOP.format(0, 1)]
    assert all(text == SHOP.format(0, 1) for found in seen for text in found)
    (old,) = put(library, SHOP.format(8, 1))
    better = replace(old.verdict, answer="5")
    library.deposit(new(SHOP.format(8, 1), answer="5", verdict=better), supersede=True)
    assert [one.deposit.answer for one in related(library, TENANT, SHOP)] == ["5", "4"]


def test_an_expired_deposit_is_not_proposed_until_it_holds_again(library: Library) -> None:
    old, late = put(library, SHOP.format(1, 2), SHOP.format(3, 4))
    library.expire(late.id, "2020-01-01")
    assert texts(library, SHOP) == [SHOP.format(1, 2)]
    library.expire(late.id, None)
    assert texts(library, SHOP) == [SHOP.format(3, 4), SHOP.format(1, 2)]
    assert old.status == "active"


def test_another_tenants_deposits_are_not_proposed(library: Library) -> None:
    put(library, SHOP.format(1, 2), tenant="A")
    put(library, SHOP.format(3, 4), tenant="B")
    assert texts(library, SHOP, "A") == [SHOP.format(1, 2)]
    assert texts(library, SHOP, "B") == [SHOP.format(3, 4)]
    assert texts(library, SHOP, "C") == []


def test_another_tenants_deposits_do_not_crowd_out(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RELATED_CANDIDATES", 3)
    for tenant in ("A", "B", "A"):
        put(library, *(SHOP.format(len(library.list()) + n, 1) for n in range(5)), tenant=tenant)
    assert len(texts(library, SHOP, "A")) == len(texts(library, SHOP, "B")) == 3


def test_a_follow_up_is_not_proposed(library: Library) -> None:
    (parent,) = put(library, SHOP.format(1, 2))
    identity = replace(new(SHOP.format(5, 6)).identity, parent=parent.id)
    library.deposit(new(SHOP.format(5, 6), identity=identity))
    assert texts(library, SHOP) == [SHOP.format(1, 2)]


def test_the_index_has_no_say_in_what_a_deposit_is(library: Library, tmp_path: Path) -> None:
    """An index that lies: rows of another tenant, of ids that are nowhere, of damaged records."""
    ours, damaged = put(library, SHOP.format(1, 2), SHOP.format(3, 4))
    (theirs,) = put(library, SHOP.format(5, 6), tenant="theirs")
    assert len(texts(library, SHOP)) == 2
    _change(tmp_path / INDEX_NAME, "UPDATE deposits SET id = ? WHERE id = ?", theirs.id, ours.id)
    _change(library.path, "UPDATE deposits SET answer = '5' WHERE id = ?", damaged.id)
    assert texts(library, SHOP) == []
    _change(tmp_path / INDEX_NAME, "UPDATE deposits SET id = 'nowhere' WHERE id = ?", theirs.id)
    assert texts(library, SHOP) == []
    assert texts(library, SHOP, "theirs") == []


def _change(path: Path, sql: str, *values: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        assert connection.execute(sql, values).rowcount
    connection.close()


@pytest.mark.parametrize("content", [b"", b"not SQLite at all" * 100, None], ids=repr)
def test_an_index_that_is_gone_or_damaged_is_made_again(
    library: Library, tmp_path: Path, content: bytes | None
) -> None:
    put(library, SHOP.format(1, 2))
    before = texts(library, SHOP)
    index = tmp_path / INDEX_NAME
    for end in ("-wal", "-shm"):
        index.with_name(INDEX_NAME + end).unlink(missing_ok=True)
    if content is None:
        data = bytearray(index.read_bytes())
        data[100:] = bytes(len(data) - 100)
        content = bytes(data)
    index.write_bytes(content)
    assert texts(library, SHOP) == before == [SHOP.format(1, 2)]
    index.unlink()
    assert texts(library, SHOP) == before


def test_an_index_of_another_library_is_made_again(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, number in ((old, 1), (new, 2)):  # the newer one has the higher ids
        with Library.open(folder / "library.sqlite3") as library:
            put(library, SHOP.format(number, 0))
            assert texts(library, SHOP) == [SHOP.format(number, 0)]
    for source, target, number in ((new, old, 1), (old, new, 2)):
        for file in target.glob(f"{INDEX_NAME}*"):
            file.unlink()
        shutil.copy(source / INDEX_NAME, target)
        with Library.open(target / "library.sqlite3") as library:
            assert texts(library, SHOP) == [SHOP.format(number, 0)]


def test_many_deposits_are_taken_in_page_by_page(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE_ROWS", 3)
    put(library, *(MINUTES.format(n) for n in range(10)))
    assert len(texts(library, MINUTES, count=99)) == 10
    put(library, MINUTES.format(10))
    assert texts(library, MINUTES, count=99)[0] == MINUTES.format(10)


def test_where_every_term_is_common_the_newest_are_found(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_RELATED_ROWS", 4)
    put(library, *(MINUTES.format(n) for n in range(6)), *(SHOP.format(n, 1) for n in range(6)))
    found = texts(library, SHOP, count=2)
    assert found == [SHOP.format(5, 1), SHOP.format(4, 1)]


def test_a_folder_that_cannot_be_written_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(library, SHOP.format(1, 2))

    def refuse(*arguments: object) -> sqlite3.Connection:
        raise StoreReadOnly("the folder cannot be written")

    monkeypatch.setattr(module, "open_database", refuse)
    with pytest.raises(StoreReadOnly):
        related(library, TENANT, SHOP)


def _find(path: Path, results: multiprocessing.queues.Queue[int]) -> None:
    with Library.open(path) as library:
        results.put(len(texts(library, SHOP, count=99)))


def test_several_processes_make_the_index_at_once(library: Library) -> None:
    put(library, *(SHOP.format(n, 1) for n in range(30)))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    running = [context.Process(target=_find, args=(library.path, results)) for _ in range(3)]
    for process in running:
        process.start()
    found = [results.get(timeout=60) for _ in running]
    for process in running:
        process.join()
    assert found == [30, 30, 30]
    assert len(texts(library, SHOP, count=99)) == 30  # and no row stands twice
