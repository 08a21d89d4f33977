"""Which files are meant, and reading one that does not change meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kvgraft.context import files
from kvgraft.context.files import Found, find_files, read_file
from kvgraft.errors import InputError, LimitExceeded


def tree(root: Path) -> Path:
    for name in ("b.txt", "a/c.md", "a/.hidden", ".git/config", "a/d/e.html"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def names(root: Path, found: list[Found]) -> list[str]:
    return [os.path.relpath(one.path, root) for one in found]


def test_folders_are_walked_without_what_is_hidden(tmp_path: Path) -> None:
    root = tree(tmp_path)
    assert names(root, find_files([root])) == ["a/c.md", "a/d/e.html", "b.txt"]
    assert names(root, find_files([root / "a", root / "b.txt", root])) == [
        "a/c.md",
        "a/d/e.html",
        "b.txt",
    ]
    assert names(root, find_files([root / "a/.hidden"])) == ["a/.hidden"]  # it was named


def test_links_are_followed_where_they_are_named_alone(tmp_path: Path) -> None:
    root = tree(tmp_path / "root")
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    (root / "link.txt").symlink_to(outside)
    (root / "loop").symlink_to(root)
    (root / "broken").symlink_to(tmp_path / "absent")
    assert "link.txt" not in names(root, find_files([root]))
    assert [one.path for one in find_files([root / "link.txt"])] == [os.path.realpath(outside)]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        find_files([tmp_path / "absent"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        find_files([tmp_path / "pipe"])
    assert find_files([tmp_path]) == []  # a pipe would never end


def test_a_file_is_read_with_what_is_true_of_it(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc")
    (found,) = find_files([path])
    path.write_bytes(b"abcdef")  # after it was listed
    read = read_file(found)
    assert (read.data, read.found.size_bytes) == (b"abcdef", 6)
    assert read.found.mtime_ns == path.stat().st_mtime_ns


def test_a_file_that_changes_is_read_again_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a")
    (found,) = find_files([path])
    fstat, calls = os.fstat, 0

    def changing(times: int) -> Any:
        def wrapped(fd: int) -> os.stat_result:
            nonlocal calls
            calls += 1
            if calls <= times:
                with path.open("ab") as file:
                    file.write(b"b")
            return fstat(fd)

        return wrapped

    monkeypatch.setattr(files.os, "fstat", changing(2))
    assert read_file(found).data == b"abb"
    calls = 0
    monkeypatch.setattr(files.os, "fstat", changing(100))
    with pytest.raises(InputError, match="changes while it is read"):
        read_file(found)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Found(str(tmp_path / "gone"), 1, 1)
    with pytest.raises(InputError, match="No such file"):
        read_file(gone)
    path = tmp_path / "long"
    path.write_bytes(b"x" * 11)
    monkeypatch.setattr(files, "MAX_DOCUMENT_BYTES", 10)
    with pytest.raises(LimitExceeded, match="over 10 bytes"):
        read_file(find_files([path])[0])


def test_a_file_that_was_written_over_in_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a")
    (found,) = find_files([path])
    fstat, times = os.fstat, iter(range(1, 100))

    def later(fd: int) -> os.stat_result:
        os.utime(path, ns=(0, next(times)))  # its size stays
        return fstat(fd)

    monkeypatch.setattr(files.os, "fstat", later)
    with pytest.raises(InputError, match="changes while it is read"):
        read_file(found)
