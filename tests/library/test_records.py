"""The library file: what it keeps, refuses, survives and shares between processes."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft import limits
from kvgraft.errors import (
    InputError,
    KvgraftError,
    LimitExceeded,
    RecordNotFound,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from kvgraft.library import records, schema
from kvgraft.library.address import AddressSpace, RequestIdentity, address
from kvgraft.library.records import Library, NewDeposit
from kvgraft.library.rows import encode, seal
from kvgraft.library.verify.base import Verdict
from kvgraft.sqlite import statements

SPACE = AddressSpace(
    RequestIdentity(problem="", tenant="default", template_digest="t", tokenizer_digest="k")
)
GONE = "no longer trusted"


def new(problem: str = "What is 2 + 2?", answer: str = "4", **changes: Any) -> NewDeposit:
    """A deposit that nothing speaks against, but for `changes`."""
    fields: dict[str, Any] = {
        "identity": SPACE.identity(problem),
        "model": "demo:toy",
        "fingerprint": "f" * 64,
        "prompt": f"user: {problem}\n",
        "trace": "2 + 2 is é\0 4.",
        "cue": "\nFinal Answer: ",
        "token_ids": (0, 1, 2**32 - 1),
        "answer": answer,
        "answer_ids": (19,),
        "verdict": verdict(answer),
        "cost": {"attempts": 3, "decode_tokens": 120, "seconds": 1.5, "energy_joules": None},
        "artifact": "a" * 64,
        "finished": True,
    }
    return NewDeposit(**{**fields, **changes})


def verdict(answer: str, **changes: Any) -> Verdict:
    fields = {
        "passed": True,
        "grade": "proved",
        "answer": answer,
        "verifier": "exact",
        "version": "1",
        "evidence": {"expected": answer, "é": [1, None]},
    }
    return Verdict(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "library #1?.sqlite"


@pytest.fixture
def library(path: Path) -> Iterator[Library]:
    with Library.open(path) as opened:
        yield opened


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process running `script` with this module's names in reach."""
    prelude = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", f"{prelude}from test_records import *\n{script}"]
        + [str(argument) for argument in arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def raw(path: Path, *statements: str) -> None:
    """Change the file behind the library's back."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


# --- keeping and finding ------------------------------------------------------------------------


def test_a_deposit_comes_back_as_it_was_given(library: Library) -> None:
    given = new()
    kept = library.deposit(given)
    for name in ("identity", "model", "fingerprint", "prompt", "trace", "cue", "token_ids"):
        assert getattr(kept, name) == getattr(given, name)
    for name in ("answer", "answer_ids", "verdict", "cost", "artifact", "source"):
        assert getattr(kept, name) == getattr(given, name)
    assert (kept.problem, kept.system, kept.tenant, kept.parent) == (
        "What is 2 + 2?",
        None,
        "default",
        None,
    )
    assert kept.address == address(given.identity) == SPACE.address("What is 2 + 2?")
    assert (kept.status, kept.revoked_at, kept.revoke_reason) == ("active", None, None)
    assert (kept.replay, kept.replay_reason) == ("text_only", "not replayed yet")
    assert kept.created_at.endswith("+00:00")
    assert len(kept.created_at) == len("2026-01-01T00:00:00.000000+00:00")
    assert library.lookup(kept.address, "default") == kept.id
    assert library.find(kept.address, "default") == library.get(kept.id) == kept
    assert library.check() == []


def test_every_part_of_an_identity_survives(library: Library) -> None:
    parent = library.deposit(new("before"))
    identity = RequestIdentity(
        problem="caf\u00e9 \ud7ff",
        tenant="other",
        template_digest="t",
        tokenizer_digest="k",
        system="",
        tools_digest="o",
        tool_choice="",
        stop=("\r\n", ""),
        max_tokens=2**63 - 1,
        images_digest="i",
        parent=parent.id,
        extra=(("a", ""), ("b", "\u2028")),
    )
    assert library.get(library.deposit(new(identity=identity)).id).identity == identity
    assert library.check() == []


def test_it_is_still_there_after_reopening(path: Path) -> None:
    with Library.open(path) as library:
        kept = library.deposit(new())
    with Library.open(path) as library, Library.open(path, read_only=True) as reader:
        assert library.find(kept.address, "default") == kept
        assert reader.find(kept.address, "default") == kept
        assert library.count() == 1


NEAR = ["turn on", "turn off", "at least 3", "at most 3", "x^2", "x2", "-3", "\u22123", "3", "a b"]
NEAR += ["a  b", " a b", "A b", "a\nb", "x\u00b2"]


@pytest.mark.parametrize("asked", NEAR)
def test_a_near_miss_finds_nothing(library: Library, asked: str) -> None:
    with library.batch():
        for problem in NEAR:
            if problem != asked:
                library.deposit(new(problem))
    assert library.count() == len(NEAR) - 1
    assert library.lookup(SPACE.address(asked), "default") is None
    assert library.find(SPACE.address(asked), "default") is None
    # The same request in another dress is found.
    kept = library.deposit(new(asked))
    assert library.lookup(SPACE.address(asked + " \r\n"), "default") == kept.id


def test_another_tenant_finds_nothing_even_with_the_address(library: Library) -> None:
    kept = library.deposit(new())
    assert library.lookup(kept.address, "other") is None
    assert library.find(kept.address, "other") is None
    other = AddressSpace(replace(SPACE.identity(""), tenant="other"))
    assert library.lookup(other.address("What is 2 + 2?"), "other") is None
    assert library.lookup(other.address("What is 2 + 2?"), "default") is None


def test_one_address_holds_a_deposit_for_each_fingerprint(library: Library) -> None:
    first = library.deposit(new(fingerprint="1" * 64))
    second = library.deposit(new(fingerprint="2" * 64))
    assert first.address == second.address
    for fingerprint, expected in (("1" * 64, first), ("2" * 64, second), (None, second)):
        assert library.lookup(first.address, "default", fingerprint) == expected.id
        assert library.find(first.address, "default", fingerprint) == expected
    assert library.find(first.address, "default", "3" * 64) == second  # the newest
    library.revoke(second.id, GONE)
    assert library.find(first.address, "default", "2" * 64) == first


def test_depositing_again_returns_what_is_there(library: Library) -> None:
    first = library.deposit(new())
    assert library.deposit(new(answer="four", verdict=verdict("four"))) == first
    assert library.count(status=None) == 1
    assert [event.event for event in library.audit()] == ["deposit"]


def test_superseding_replaces_in_one_step(library: Library) -> None:
    first = library.deposit(new())
    second = library.deposit(new(trace="shorter"), supersede=True)
    assert second.id > first.id
    assert library.get(first.id).status == "superseded"
    assert library.lookup(first.address, "default") == second.id
    assert [(e.event, e.deposit) for e in library.audit()] == [
        ("deposit", first.id),
        ("supersede", first.id),
        ("deposit", second.id),
    ]
    assert library.audit(first.id)[-1].detail == {"by": second.id}
    library.revoke(second.id, GONE)
    assert library.lookup(first.address, "default") is None  # the old one does not come back
    assert library.check() == []


def test_ids_sort_by_time_even_when_the_clock_goes_back(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [library.deposit(new("1")).id]
    monkeypatch.setattr(time, "time_ns", lambda: 1_000)
    ids += [library.deposit(new(str(n))).id for n in range(2, 5)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 4


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": verdict("4", passed=False)},
        {"verdict": verdict("5")},
        {"verdict": verdict("4", verifier="")},
        {"finished": False},
        {"answer": "", "verdict": verdict("")},
        {"answer": " \n", "verdict": verdict(" \n")},
        {"identity": SPACE.identity(" ")},
        {"model": ""},
        {"fingerprint": ""},
        {"token_ids": (-1,)},
        {"token_ids": (2**32,)},
        {"cost": {"seconds": float("nan")}},
        {"cost": {"seconds": object()}},
        {"trace": "\ud800"},
        {"artifact": "\ud800"},
        {"replay": "perhaps"},
        {"replay": "replays"},
        {"replay": "replays", "replay_logits_sha256": "d" * 64, "artifact": None},
        {"replay": "replays", "replay_logits_sha256": "d" * 64, "answer_ids": ()},
        {"replay": "text_only", "replay_reason": ""},
        *({"provenance": {"cuts": cuts}} for cuts in (5, None, "ab", ["3"], [True], [2.0], [0])),
        {"provenance": {"cuts": [10_000]}},
    ],
    ids=str,
)
def test_what_was_not_shown_is_not_deposited(library: Library, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        library.deposit(new(**changes))
    assert library.count(status=None) == 0
    assert library.audit() == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"trace": "x" * (limits.MAX_TRACE_CHARS + 1)},
        {"model": "x" * (limits.MAX_LIBRARY_NAME_CHARS + 1)},
        {"cost": {"notes": "x" * limits.MAX_LIBRARY_JSON_CHARS}},
    ],
)
def test_caps_are_held(library: Library, changes: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded):
        library.deposit(new(**changes))
    assert library.count(status=None) == 0


def test_a_parent_must_be_there_and_trusted(library: Library) -> None:
    follow_up = replace(SPACE.identity("why?"), parent="nobody")
    with pytest.raises(RecordNotFound):
        library.deposit(new(identity=follow_up))
    parent = library.deposit(new())
    library.revoke(parent.id, GONE)
    with pytest.raises(InputError, match="revoked"):
        library.deposit(new(identity=replace(follow_up, parent=parent.id)))
    assert library.count() == 0


# --- replay, revocation, history ------------------------------------------------------------------


def test_a_replay_is_written_down(library: Library) -> None:
    id = library.deposit(new()).id
    shown = library.record_replay(id, replays=True, logits_sha256="d" * 64)
    assert (shown.replay, shown.replay_reason) == ("replays", "")
    assert shown.replay_logits_sha256 == "d" * 64
    failed = library.record_replay(id, replays=False, reason="decoded '5', the record has '4'")
    assert (failed.replay, failed.replay_logits_sha256) == ("text_only", None)
    assert library.lookup(failed.address, "default") == id  # as text it stays
    assert [event.event for event in library.audit(id)] == ["deposit", "replay", "replay"]
    with pytest.raises(InputError):
        library.record_replay(id, replays=True)
    with pytest.raises(InputError):
        library.record_replay(id, replays=False)
    with pytest.raises(RecordNotFound):
        library.record_replay("nobody", replays=False, reason="x")
    assert len(library.audit(id)) == 3
    assert library.check() == []


def test_a_revoked_deposit_is_gone_for_good(library: Library) -> None:
    kept, other = library.deposit(new()), library.deposit(new("other"))
    assert library.revoke(kept.id, GONE) == (kept.id,)
    revoked = library.get(kept.id)
    assert (revoked.status, revoked.revoke_reason) == ("revoked", GONE)
    assert revoked.revoked_at is not None
    assert revoked.revoked_at >= revoked.created_at
    assert library.lookup(kept.address, "default") is None
    assert library.find(kept.address, "default") is None
    assert library.revoke(kept.id, "another reason") == ()
    assert library.get(kept.id) == revoked
    assert library.count() == 1
    assert library.count(status="revoked") == 1
    assert library.find(other.address, "default") == other
    # The place is free for a better one.
    again = library.deposit(new())
    assert library.lookup(kept.address, "default") == again.id != kept.id
    for wrong, error in (("nobody", RecordNotFound), ("\ud800", InputError)):
        with pytest.raises(error):
            library.revoke(wrong, GONE)
    with pytest.raises(InputError):
        library.revoke(again.id, " ")
    assert library.check() == []


def test_what_rests_on_a_revoked_deposit_goes_with_it(library: Library) -> None:
    ids = [library.deposit(new()).id]
    for step in range(3):
        follow_up = replace(SPACE.identity(f"why {step}?"), parent=ids[-1])
        ids.append(library.deposit(new(identity=follow_up)).id)
    assert library.list(parent=ids[1])[0].id == ids[2]
    library.revoke(ids[2], "first")
    assert [library.get(id).status for id in ids] == ["active", "active", "revoked", "revoked"]
    assert library.revoke(ids[0], GONE) == (ids[0], ids[1])
    assert library.get(ids[3]).revoke_reason == f"follows up {ids[2]}, which was revoked: first"
    assert library.count() == 0


def test_history_can_only_be_added_to(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    library.revoke(kept.id, GONE)
    for statement in (
        "DELETE FROM audit",
        "UPDATE audit SET detail = '{}'",
        "UPDATE deposits SET status = 'active'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            raw(path, statement)
    assert [(e.seq, e.event, e.deposit) for e in library.audit()] == [
        (1, "deposit", kept.id),
        (2, "revoke", kept.id),
    ]
    assert library.audit()[1].detail == {"reason": GONE}
    assert library.audit(limit=1)[0].event == "revoke"


def test_lists_and_counts(library: Library) -> None:
    ids = [library.deposit(new(str(n), model=f"m{n % 2}")).id for n in range(6)]
    library.revoke(ids[0], GONE)
    assert [d.id for d in library.list()] == ids[::-1]
    assert [d.id for d in library.list(limit=2)] == [ids[5], ids[4]]
    assert [d.id for d in library.list(limit=2, before=ids[4])] == [ids[3], ids[2]]
    assert [d.id for d in library.list(model="m0", status="active")] == [ids[4], ids[2]]
    assert library.list(verifier="math") == library.list(source="x") == ()
    assert library.list(tenant="other") == library.list(fingerprint="e") == ()
    assert library.count() == 5
    assert library.count(status=None, tenant="default") == 6
    assert library.count(tenant="other") == 0
    with pytest.raises(LimitExceeded):
        library.list(limit=limits.MAX_LISTED_DEPOSITS + 1)


def test_runs_remember_how_far_they_got(library: Library) -> None:
    assert library.run_get("r", "p") is None
    library.run_put("r", "p", state="running", attempts_done=1)
    put = library.run_put("r", "p", state="solved", attempts_done=4, detail={"deposit": "x"})
    library.run_put("r", "a", state="running", attempts_done=0)
    library.run_put("s", "p", state="failed", attempts_done=9)
    assert library.run_get("r", "p") == put
    assert (put.state, put.attempts_done, put.detail) == ("solved", 4, {"deposit": "x"})
    assert [run.problem_key for run in library.run_list("r")] == ["a", "p"]
    with pytest.raises(InputError):
        library.run_put("", "p", state="x", attempts_done=0)
    with pytest.raises(InputError):
        library.run_put("r", "p", state="x", attempts_done=-1)
    with pytest.raises(LimitExceeded):
        library.run_put("r", "p" * 1000, state="x", attempts_done=0)
    assert library.run_get("r", "p") == put


def test_a_batch_is_one_step(library: Library) -> None:
    def failing() -> None:
        with library.batch():
            library.deposit(new("1"))
            with pytest.raises(RecordNotFound):  # undone alone, the batch goes on
                library.deposit(new(identity=replace(SPACE.identity("2"), parent="nobody")))
            library.deposit(new("3"))
            assert library.count() == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert library.count() == 0
    with library.batch():
        library.deposit(new("1"))
    assert library.count() == 1


def test_a_step_that_fails_in_a_batch_is_undone_alone(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFull("no space left")

    first = library.deposit(new())
    with library.batch():
        second = library.deposit(new("second"))
        with monkeypatch.context() as patch:
            patch.setattr(records, "seal", full)  # called after the old one was superseded
            with pytest.raises(StoreFull):
                library.deposit(new(trace="shorter"), supersede=True)
        third = library.deposit(new("third"))
    assert [d.id for d in library.list(status="active")] == [third.id, second.id, first.id]
    assert library.lookup(first.address, "default") == first.id
    assert [event.event for event in library.audit()] == ["deposit"] * 3


# --- faults of the disk and the file --------------------------------------------------------------


def test_a_full_disk_leaves_the_library_as_it_was(library: Library) -> None:
    kept = library.deposit(new())
    pages = library._connection.execute("PRAGMA page_count").fetchone()[0]
    library._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreFull):
        library.deposit(new("long", trace="x" * 1_000_000))
    with pytest.raises(StoreFull):
        library.run_put("r", "p", state="x" * 9, attempts_done=0, detail={"x": "x" * 60_000})
    assert (library.count(status=None), len(library.audit())) == (1, 1)
    assert library.find(kept.address, "default") == kept
    assert library.check() == []
    library._connection.execute("PRAGMA max_page_count = 1000000")
    library.deposit(new("long", trace="x" * 1_000_000))
    assert library.count() == 2


def test_a_library_opened_for_reading_is_not_written(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    with Library.open(path, read_only=True) as reader:
        writes: list[Callable[[], object]] = [
            lambda: reader.deposit(new("other")),
            lambda: reader.revoke(kept.id, GONE),
            lambda: reader.record_replay(kept.id, replays=False, reason="x"),
            lambda: reader.run_put("r", "p", state="x", attempts_done=0),
        ]
        for write in writes:
            with pytest.raises(StoreReadOnly):
                write()
        with pytest.raises(sqlite3.OperationalError):
            reader._connection.execute("DELETE FROM runs")
    assert library.count(status=None) == 1


def test_a_read_only_folder_is_named() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with Library.open(folder / "library") as library:
            library.deposit(new())
        (folder / "library").chmod(0o444)
        folder.chmod(0o555)
        if os.geteuid() == 0:  # root may write anywhere
            os.seteuid(65534)
        for place in (folder / "library", folder / "new", folder / "sub" / "new"):
            with pytest.raises(StoreReadOnly), Library.open(place) as library:
                library.deposit(new("other"))
        assert [file.name for file in folder.iterdir()] == ["library"]
    finally:
        os.seteuid(os.getuid())
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_file_or_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "file" / "library", tmp_path / "folder"):
        with pytest.raises(StoreError) as caught:
            Library.open(place)
        assert "file" in caught.value.where or "folder" in caught.value.where
    with pytest.raises(StoreError, match="no library"):
        Library.open(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_that_is_no_library_is_left_alone(tmp_path: Path) -> None:
    noise, foreign = tmp_path / "noise", tmp_path / "foreign"
    noise.write_bytes(b"not a database at all" * 200)
    raw(foreign, "CREATE TABLE deposits (id)")
    for place in (noise, foreign):
        before = place.read_bytes()
        for read_only in (False, True):
            with pytest.raises(StoreError, match=r"damaged|made by another program"):
                Library.open(place, read_only=read_only)
        assert place.read_bytes() == before


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    Library.open(path).close()
    raw(path, f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreError, match="schema 3 is newer than this release reads"):
            Library.open(path, read_only=read_only)
    assert path.read_bytes() == before


def test_an_older_schema_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Library.open(path) as library:
        kept = library.deposit(new())
    step, bad = "ALTER TABLE runs ADD COLUMN extra TEXT", "ALTER TABLE runs ADD COLUMN more TEXT"
    newer = (*schema.MIGRATIONS, statements(step))
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    with pytest.raises(StoreReadOnly, match="older"):
        Library.open(path, read_only=True)
    for _ in range(2):
        with Library.open(path) as library:
            assert library.get(kept.id) == kept
            assert library._connection.execute("PRAGMA user_version").fetchone()[0] == len(newer)
    # A step that fails leaves the schema before it.
    monkeypatch.setattr(schema, "MIGRATIONS", (*newer, statements(bad, "NONSENSE")))
    with pytest.raises(StoreError, match="NONSENSE"):
        Library.open(path)
    monkeypatch.setattr(schema, "MIGRATIONS", newer)
    with Library.open(path) as library:
        columns = library._connection.execute("PRAGMA table_info(runs)").fetchall()
        assert [column[1] for column in columns][-1] == "extra"


@pytest.mark.parametrize(
    "change",
    [
        "answer = '5'",
        "problem = 'What is 2 + 3?'",
        "address = zeroblob(32)",
        "token_ids = x'00'",
        "evidence = '{}'",
        "cost = 'not JSON'",
        "request = replace(request, '\"t\"', '\"u\"')",
        "tenant = 'other'",
        "trace = CAST(x'ff' AS TEXT)",
        "fingerprint = replace(fingerprint, 'f', '0')",
        "grade = 'agreed'",
        "content_digest = ''",
    ],
)
def test_a_changed_record_is_refused(library: Library, path: Path, change: str) -> None:
    kept, other = library.deposit(new()), library.deposit(new("other"))
    raw(path, f"UPDATE deposits SET {change} WHERE id = '{kept.id}'")
    with pytest.raises(StoreError, match="damaged"):
        library.get(kept.id)
    with pytest.raises(StoreError, match="damaged"):
        library.find(kept.address, "default")
    assert any(kept.id in line for line in library.check())
    assert library.list() == (other,)  # one bad record does not hide the others
    assert kept.id in library.revoke(kept.id, "damaged")
    assert library.find(other.address, "default") == other


def test_a_record_under_another_address_is_refused(library: Library) -> None:
    row = encode(new()) | {"address": SPACE.address("What is 2 + 3?")}
    library._connection.execute(records._INSERT, seal(row, id="x", created_at="now"))
    with pytest.raises(StoreError, match="address"):
        library.find(SPACE.address("What is 2 + 3?"), "default")
    assert library.check() == [
        "deposit x: a record of the library is damaged: its address is not that of its request"
    ]


def test_a_look_up_table_that_disagrees_is_found(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    raw(path, "DELETE FROM active")
    assert library.lookup(kept.address, "default") is None
    assert library.check() == [f"deposit {kept.id}: the record and the look-up table disagree"]


def test_a_torn_file_is_named(path: Path) -> None:
    with Library.open(path) as library:
        for n in range(20):
            library.deposit(new(str(n), trace="x" * 5_000))
    content = bytearray(path.read_bytes())
    content[8192:] = os.urandom(len(content) - 8192)
    path.write_bytes(content)

    def use() -> None:
        with Library.open(path) as library:
            library.list()
            library.lookup(SPACE.address("1"), "default")
            library.deposit(new("fresh"))

    with pytest.raises(StoreError):
        use()


def test_a_closed_library_says_so(path: Path) -> None:
    library = Library.open(path)
    library.close()
    library.close()
    for use in (lambda: library.lookup(bytes(32), "t"), library.count, lambda: library.get("x")):
        with pytest.raises(StoreError, match="closed"):
            use()


# --- several processes and threads ----------------------------------------------------------------


def test_a_library_held_by_another_process_is_named(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    with Library.open(path, busy_seconds=0.05) as second:
        with library.batch():
            library.deposit(new("other"))
            with pytest.raises(StoreError, match="another process"):
                second.deposit(new("third"))
            # Readers are not held up, and see what is durable.
            assert second.find(kept.address, "default") == kept
            assert second.count() == 1
        assert second.count() == 2
        second.deposit(new("third"))


def test_opening_waits_for_whoever_makes_the_file(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")  # SQLite itself does not wait here to change its journal
    with pytest.raises(StoreError, match="another process"):
        Library.open(path, busy_seconds=0.05)
    timer = threading.Timer(0.2, other.rollback)
    timer.start()
    with Library.open(path) as library:
        library.deposit(new())
    timer.join()
    other.close()


def test_processes_that_deposit_the_same_at_once_agree(path: Path) -> None:
    script = (
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "with Library.open(sys.argv[1]) as library:\n"
        "    for n in range(20):\n"
        "        print(library.deposit(new(str(n), trace=sys.argv[2])).id)\n"
    )
    processes = [started(script, path, n) for n in range(4)]
    for process in processes:  # all begin together, at a file that is not there yet
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        answers.append(process.communicate(timeout=60)[0].split())
        assert process.returncode == 0
    assert all(ids == answers[0] for ids in answers)
    with Library.open(path) as library:
        assert library.count(status=None) == 20
        assert len(library.audit()) == 20
        assert library.check() == []


def test_a_revocation_elsewhere_is_seen_by_the_next_look_up(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    for _ in range(100):
        assert library.lookup(kept.address, "default") == kept.id
    script = "with Library.open(sys.argv[1]) as library: library.revoke(sys.argv[2], GONE)"
    process = started(script, path, kept.id)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert library.lookup(kept.address, "default") is None
    assert library.find(kept.address, "default") is None
    assert library.get(kept.id).revoke_reason == GONE


def test_look_ups_hold_no_old_snapshot(library: Library, path: Path) -> None:
    kept = library.deposit(new())
    assert library.lookup(kept.address, "default") == kept.id
    with Library.open(path) as other:
        other.deposit(new("other"))
        # A reader that kept its snapshot would make this checkpoint report "busy".
        busy = other._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    assert busy == 0


@pytest.mark.parametrize("after", [1, 7, 40])
def test_a_killed_process_leaves_a_readable_library(path: Path, after: int) -> None:
    script = (
        "with Library.open(sys.argv[1]) as library:\n"
        "    for n in range(100_000):\n"
        "        print(library.deposit(new(str(n), trace='x' * 20_000)).id, flush=True)\n"
    )
    process = started(script, path)
    assert process.stdout is not None
    told = [process.stdout.readline().strip() for _ in range(after)]
    process.send_signal(signal.SIGKILL)
    # Not `communicate`, which reads past what `readline` has in its buffer.
    told += process.stdout.read().split()
    process.wait(timeout=60)
    told = [id for id in told if len(id) == 24]  # the last line may be cut
    with Library.open(path) as library:
        assert library.check() == []
        # All that was reported is there; at most one more was durable before it was reported.
        assert library.count(status=None) - len(told) in (0, 1)
        for n, id in enumerate(told):
            assert library.lookup(SPACE.address(str(n)), "default") == id
            assert library.get(id).problem == str(n)
        assert len(library.audit(limit=10**6)) == library.count()
        library.deposit(new("and on it goes"))


def test_threads_share_a_library(library: Library) -> None:
    failures: list[KvgraftError] = []

    def work(first: int) -> None:
        try:
            for n in range(first, first + 25):
                kept = library.deposit(new(str(n)))
                assert library.lookup(kept.address, "default") == kept.id
        except KvgraftError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(25 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert library.count() == 100


def test_look_up_reads_the_small_tree_alone(library: Library) -> None:
    sql = f"EXPLAIN QUERY PLAN {records._LOOKUP}"
    plan = library._connection.execute(sql, (None, b"", "")).fetchall()
    assert [row[3] for row in plan] == ["SEARCH active USING PRIMARY KEY (address=? AND tenant=?)"]
