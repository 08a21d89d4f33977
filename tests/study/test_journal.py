"""Rows are durable as they come, survive a kill at any byte, and belong to one registration."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from kvgraft.errors import CheckFailed, InputError, StoreError
from kvgraft.study.journal import Journal

PACKED = gzip.compress(bytes(range(250)), mtime=0)
ROWS = [{"id": "a", "text": "ä\n2"}, {"id": "b", "cost": {"seconds": 0.5, "joules": None}}]


def test_rows_stay_where_they_were_put(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "step", "hash")
    assert journal.rows == []
    for row in ROWS:
        journal.append(row)
        assert Journal(tmp_path, "step", "hash").rows == journal.rows
    assert journal.rows == ROWS
    assert not journal.finished
    journal.finish()
    again = Journal(tmp_path, "step", "hash")
    assert again.finished
    assert again.rows == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["step.jsonl.gz"]
    lines = gzip.decompress((tmp_path / "step.jsonl.gz").read_bytes()).decode().splitlines()
    assert json.loads(lines[0])["registration"] == "hash"
    assert [json.loads(line) for line in lines[1:]] == ROWS
    again.finish()  # twice is harmless


def test_a_step_without_rows_can_be_finished(tmp_path: Path) -> None:
    Journal(tmp_path, "step", "hash").finish()
    again = Journal(tmp_path, "step", "hash")
    assert again.finished
    assert again.rows == []


def test_a_kill_at_any_byte_loses_at_most_the_row_it_was_in(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "step", "hash")
    for row in ROWS:
        journal.append(row)
    data = (tmp_path / "step.jsonl").read_bytes()
    ends = [n + 1 for n, byte in enumerate(data) if byte == ord("\n")]
    for length in range(len(data) + 1):
        folder = tmp_path / "torn"
        folder.mkdir()
        (folder / "step.jsonl").write_bytes(data[:length])
        torn = Journal(folder, "step", "hash")
        whole = max(0, sum(end <= length for end in ends) - 1)
        assert torn.rows == ROWS[:whole]
        torn.append({"id": "c"})
        assert Journal(folder, "step", "hash").rows == [*ROWS[:whole], {"id": "c"}]
        shutil.rmtree(folder)


def test_a_kill_between_packing_and_dropping_leaves_the_packed_rows(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "step", "hash")
    journal.append(ROWS[0])
    plain = (tmp_path / "step.jsonl").read_bytes()
    journal.finish()
    (tmp_path / "step.jsonl").write_bytes(plain)
    assert Journal(tmp_path, "step", "hash").rows == ROWS[:1]
    assert not (tmp_path / "step.jsonl").exists()


@pytest.mark.parametrize("finished", [False, True])
def test_rows_of_another_study_are_refused(tmp_path: Path, finished: bool) -> None:
    journal = Journal(tmp_path, "step", "hash")
    journal.append(ROWS[0])
    if finished:
        journal.finish()
    with pytest.raises(CheckFailed, match="another study"):
        Journal(tmp_path, "step", "other hash")
    for path in tmp_path.iterdir():
        path.rename(path.with_name(path.name.replace("step", "renamed")))
    with pytest.raises(CheckFailed):
        Journal(tmp_path, "renamed", "hash")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("step.jsonl", b"[1]\n"),
        ("step.jsonl", b"{\n"),
        ("step.jsonl", b"\xff\n"),
        ("step.jsonl.gz", b"no gzip"),
        ("step.jsonl.gz", PACKED[:-9]),
        ("step.jsonl.gz", PACKED[:20] + bytes([PACKED[20] ^ 255]) + PACKED[21:]),
    ],
)
def test_damaged_rows_are_refused(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        Journal(tmp_path, "step", "hash")


def test_what_is_no_json_is_not_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "step", "hash")
    with pytest.raises(InputError):
        journal.append({"seconds": float("nan")})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError):
        Journal(tmp_path / "absent", "step", "hash").append({})
