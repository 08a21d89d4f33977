"""The local store against the file system: order of syncs, full disks, kills, things in the way."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import NameRefused, StoreError, StoreFull, StoreReadOnly
from kvgraft.identity import Fingerprint
from kvgraft.reuse import Keep
from kvgraft.state import Role
from kvgraft.store.check import check_store, open_local
from kvgraft.store.chunks import ChunkStore
from kvgraft.store.index import Index
from kvgraft.store.local import LocalStore, write_whole
from kvgraft.testing.stores import NAME, read, write
from toys import cold, memory_chunks, prompt, run

SOURCES = Path(__file__).parents[2] / "src"
FINGERPRINT = Fingerprint.of({"engine": "test"})


def python(script: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A process that runs `script` with this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def temporaries(root: Path) -> list[Path]:
    return sorted((root / "tmp").iterdir())


def blobs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "blobs").rglob("*") if not path.is_dir())


# --- publishing -------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The system calls that make a blob durable and visible, in order, with what they act on."""
    seen: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(fd: int) -> None:
        seen.append(("fsync", str(Path(f"/proc/self/fd/{fd}").readlink())))
        fsync(fd)

    def noted_rename(source: Any, target: Any, **options: Any) -> None:
        seen.append(("rename", f"{source} {target}"))
        rename(source, target, **options)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_rename)
    return seen


def test_sync_rename_sync_in_that_order(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    root = tmp_path / "store"
    store = LocalStore(root)
    assert calls == [("fsync", str(root))]
    for number in range(2):
        calls.clear()
        writer = store.writer()
        writer.write(b"data")
        (temporary,) = temporaries(root)
        assert calls == []
        writer.publish(NAME)
        (path,) = blobs(root)
        new_folder = [("fsync", str(root / "blobs"))] if number == 0 else []
        assert calls == [
            ("fsync", str(temporary)),
            *new_folder,
            ("rename", f"{temporary} {path}"),
            ("fsync", str(path.parent)),
        ]
        assert path.parent.parent == root / "blobs"


def test_another_process_folder_is_synced_again(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    # It may have been killed between making the folder and syncing it.
    write(LocalStore(tmp_path), NAME, b"data")
    other = LocalStore(tmp_path)
    calls.clear()
    write(other, NAME, b"data")
    assert ("fsync", str(tmp_path / "blobs")) in calls


def test_a_deletion_is_durable(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    store = LocalStore(tmp_path)
    write(store, NAME, b"data")
    (path,) = blobs(tmp_path)
    calls.clear()
    store.delete(NAME)
    assert calls == [("fsync", str(path.parent))]


def test_whole_files_are_published_alike(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    path = tmp_path / "file"
    for data in (b"one", b"two"):
        calls.clear()
        write_whole(path, data, mode=0o600)
        assert [name for name, _ in calls] == ["fsync", "rename", "fsync"]
        assert calls[2] == ("fsync", str(tmp_path))
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


EIGHT = """
import sys
from pathlib import Path
from kvgraft.identity import Fingerprint
from kvgraft.state import Role
from kvgraft.store.check import open_local

print("ready", flush=True)
sys.stdin.readline()
store = open_local(Path(sys.argv[1]))
capture = store.capture(Fingerprint.of({"engine": "test"}))
capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [b"payload" * 10_000])
result = capture.commit()
print(result.objects_written + result.objects_known, len(result.drifted))
"""


def test_eight_processes_write_one_key(tmp_path: Path) -> None:
    root = tmp_path / "store"
    processes = [python(EIGHT, str(root)) for _ in range(8)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, output, errors) == (0, "1 0\n", "")
    store = open_local(root)
    report = check_store(store)
    assert (report.ok, report.packs, report.objects, report.unlisted_objects) == (True, 1, 1, 0)
    assert store.find(b"k" * 32).keys() == {Role.KEEP}
    assert temporaries(root) == []
    store.close()


@pytest.mark.parametrize("folder", ["elsewhere", "not-there"])
def test_tmpdir_does_not_matter(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    store = LocalStore(tmp_path / "store")
    writer = store.writer()
    writer.write(b"data")
    assert len(temporaries(tmp_path / "store")) == 1  # on the store's own file system
    writer.publish(NAME)
    assert read(store, NAME) == b"data"
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- things that stand in a blob's place ------------------------------------------------------


def test_a_symlink_is_not_a_blob(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    write(store, NAME, b"data")
    (path,) = blobs(tmp_path / "store")
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    path.unlink()
    path.symlink_to(outside)
    with pytest.raises(NameRefused, match="symlink"):
        store.open(NAME)
    write(store, NAME, b"data")  # replaces the link, does not follow it
    assert outside.read_bytes() == b"outside"
    assert read(store, NAME) == b"data"
    path.unlink()
    path.symlink_to(outside)
    assert store.delete(NAME)
    assert outside.read_bytes() == b"outside"


@pytest.mark.parametrize("kind", ["folder", "pipe", "socket"])
def test_nor_is_anything_else_but_a_file(kind: str, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    write(store, NAME, b"data")
    (path,) = blobs(tmp_path)
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # opening one waits for a writer, for ever
    else:
        # A socket's path is short; the name in the folder is what counts.
        with socket.socket(socket.AF_UNIX) as bound:
            (tmp_path / "s").symlink_to(path.parent)
            bound.bind(os.path.relpath(tmp_path / "s" / path.name))
    with pytest.raises((NameRefused, StoreError)):
        store.open(NAME)


def test_a_symlinked_pack_is_a_miss(tmp_path: Path) -> None:
    engine = ToyEngine()
    ids = prompt(37)
    store = open_local(tmp_path / "store")
    run(engine, store, ids)
    for path in blobs(tmp_path / "store"):
        moved = tmp_path / path.name
        path.rename(moved)
        path.symlink_to(moved)
    bits, report = run(engine, store, ids, keep=Keep.NOTHING)
    assert (bits, report.reused_tokens) == (cold(engine, ids), 0)
    assert any(miss.startswith("blob_name_refused: a symlink") for miss in report.misses)
    assert "blob_name_refused" in {problem.code for problem in check_store(store).problems}
    store.close()


# --- full disks and folders that cannot be written --------------------------------------------


class FullAfter:
    """`os.write` until a number of bytes; then the disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self._write, self.room = os.write, room
        monkeypatch.setattr(os, "write", self)

    def __call__(self, fd: int, data: Any) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._write(fd, data[: self.room])  # a nearly full disk takes a part first
        self.room -= taken
        return taken


def nothing_is_left(root: Path, store: ChunkStore) -> None:
    assert store.index.all_entries() == []
    assert store.index.packs() == {}
    assert temporaries(root) == []
    assert blobs(root) == []


def test_the_disk_fills_on_the_second_of_three_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_local(tmp_path)
    disk = FullAfter(monkeypatch, 15_000)
    capture = store.capture(FINGERPRINT)
    capture.add(Role.KEEP, b"1" * 32, (0, 16, 16), [bytes(10_000)])
    with pytest.raises(StoreFull, match="no space left") as caught:
        capture.add(Role.KEEP, b"2" * 32, (16, 16, 16), [bytes(10_000)])
    assert caught.value.where
    assert caught.value.hint
    with pytest.raises(StoreError):
        capture.add(Role.KEEP, b"3" * 32, (32, 16, 16), [bytes(10_000)])
    with pytest.raises(StoreError):
        capture.commit()
    nothing_is_left(tmp_path, store)
    assert store.find(b"1" * 32) == {}
    disk.room = 1_000_000  # space again
    again = store.capture(FINGERPRINT)
    again.add(Role.KEEP, b"1" * 32, (0, 16, 16), [bytes(10_000)])
    assert again.commit().objects_written == 1
    assert check_store(store).ok
    store.close()


@pytest.mark.parametrize("room", [0, 15_000, 53_000])
def test_a_prompt_survives_a_full_disk(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, ids = ToyEngine(), prompt(48)  # three chunks of 16 tokens
    store = open_local(tmp_path)
    expected = cold(engine, ids)
    FullAfter(monkeypatch, room)
    bits, report = run(engine, store, ids)
    assert bits == expected
    assert report.capture_error is not None
    assert "no space left" in report.capture_error
    assert report.captured_bytes == 0
    nothing_is_left(tmp_path, store)
    monkeypatch.undo()
    bits, report = run(engine, store, ids)
    assert (bits, report.reused_tokens, report.capture_error) == (expected, 0, None)
    bits, report = run(engine, store, ids)
    assert (bits, report.reused_tokens) == (expected, 48)
    store.close()


FILE_SIZE_LIMIT = """
import json, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from toys import prompt, run
from kvgraft.engines.toy import ToyEngine
from kvgraft.store.check import open_local

store = open_local(Path(sys.argv[1]))
if int(sys.argv[3]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
bits, report = run(ToyEngine(), store, prompt(int(sys.argv[4])))
print(json.dumps([bits.hex(), report.capture_error, report.reused_tokens]))
"""
TESTS = Path(__file__).parents[1]


def run_under_limit(root: Path, limit: int) -> tuple[str, str | None, int]:
    process = python(FILE_SIZE_LIMIT, str(root), str(TESTS), str(limit), "48")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    bits, error, reused = json.loads(output)
    return bits, error, reused


def test_a_refusal_by_the_kernel_itself(tmp_path: Path) -> None:
    # Files may grow to 40,000 bytes: the second of three chunks does not fit any more.
    bits, error, _ = run_under_limit(tmp_path, 40_000)
    assert error is not None
    assert "no space left" in error
    assert blobs(tmp_path) == temporaries(tmp_path) == []
    again, error, reused = run_under_limit(tmp_path, 0)
    assert (again, error, reused) == (bits, None, 0)
    assert run_under_limit(tmp_path, 0) == (bits, None, 48)


def test_a_small_file_system(tmp_path: Path) -> None:
    """A real full disk, in a mount namespace of its own; where mounting is not allowed, the limit
    on file sizes stands in for it."""
    root = tmp_path / "disk"
    root.mkdir()
    mount = f"mount -t tmpfs -o size=400k none '{root}'"
    allowed = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount], capture_output=True, check=False
    )
    if allowed.returncode != 0:
        assert run_under_limit(root, 30_000)[1] is not None
        return
    script = f"import subprocess; subprocess.run(['sh', '-c', {mount!r}], check=True)\n"
    script += FILE_SIZE_LIMIT + (
        "import os\n"
        "print(sum(len(files) for _, _, files in os.walk(sys.argv[1] + '/blobs')),"
        " len(os.listdir(sys.argv[1] + '/tmp')), len(store.index.all_entries()))\n"
    )
    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", script, str(root), str(TESTS), "0", "640"],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    bits, error, _ = json.loads(first)
    assert bits == cold(ToyEngine(), prompt(640)).hex()
    assert "no space left while writing a blob" in error
    assert second == "0 0 0"


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_folder(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChunkStore(LocalStore(tmp_path), memory_chunks().index)
    original = os.open

    def refusing(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return original(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(StoreReadOnly) as caught:
        store.blobs.writer()
    assert str(tmp_path) in caught.value.where
    assert caught.value.hint
    engine, ids = ToyEngine(), prompt(20)
    bits, report = run(engine, store, ids)
    assert bits == cold(engine, ids)
    assert report.capture_error is not None
    assert "not allowed" in report.capture_error
    with pytest.raises(StoreReadOnly):
        write_whole(tmp_path / "file", b"data")


@pytest.mark.parametrize("name", ["blobs", "tmp"])
def test_a_file_where_a_folder_should_be(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(StoreError, match="opening the store"):
        LocalStore(tmp_path)


def test_a_store_inside_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        open_local(tmp_path / "file" / "store")


@pytest.mark.parametrize("call", ["fsync", "replace", "close"])
def test_a_failing_publish_keeps_nothing(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    writer = store.writer()
    writer.write(b"data")
    original = getattr(os, call)

    def fails(*arguments: Any, **options: Any) -> None:
        if call == "close":
            original(*arguments)  # Linux closes, and reports a late write error
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(StoreError, match="publishing"):
            writer.publish(NAME)
    writer.abort()
    assert list(store.names()) == []
    assert temporaries(tmp_path) == []


def test_reading_errors_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    write(store, NAME, b"data")
    reader = store.open(NAME)

    def fails(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(StoreError, match="Input/output error while reading a blob"):
        reader.read_into(0, [memoryview(bytearray(4))])


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Linux stops a read at 2 GiB; here at 7 bytes.
    store = LocalStore(tmp_path)
    write(store, NAME, bytes(range(100)))
    original = os.preadv

    def short(fd: int, buffers: Any, offset: int) -> int:
        piece = bytearray(7)
        got = original(fd, [piece], offset)
        done = 0
        for buffer in buffers:
            part = piece[done : min(got, done + len(buffer))]
            buffer[: len(part)] = part
            done += len(part)
        return done

    monkeypatch.setattr(os, "preadv", short)
    buffers = [bytearray(size) for size in (3, 0, 20, 1, 30)]
    store.open(NAME).read_into(11, [memoryview(buffer) for buffer in buffers])
    assert b"".join(buffers) == bytes(range(11, 65))


# --- killed -----------------------------------------------------------------------------------

KILLED = """
import sys, time
from pathlib import Path
from kvgraft.identity import Fingerprint
from kvgraft.state import Role
from kvgraft.store.check import open_local

capture = open_local(Path(sys.argv[1])).capture(Fingerprint.of({"engine": "test"}))
capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [bytes(100_000)])
print("half way", flush=True)
time.sleep(600)
"""


def test_kill_nine_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    process = python(KILLED, str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "half way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    store = open_local(tmp_path)
    assert isinstance(store.blobs, LocalStore)
    assert list(store.blobs.names()) == []
    assert store.find(b"k" * 32) == {}
    assert check_store(store).ok
    (left,) = temporaries(tmp_path)
    size = left.stat().st_size
    assert size > 100_000
    now = time.time()
    assert store.blobs.sweep_temporary(3600, now) == 0  # may be a capture that is going on
    assert temporaries(tmp_path) == [left]
    assert store.blobs.sweep_temporary(3600, now + 3601) == size
    assert temporaries(tmp_path) == []
    store.close()


def test_an_aborted_capture_leaves_nothing(tmp_path: Path) -> None:
    store = open_local(tmp_path)
    capture = store.capture(FINGERPRINT)
    capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [b"payload"])
    capture.abort()
    capture.abort()
    nothing_is_left(tmp_path, store)
    assert store.capture(FINGERPRINT).commit().pack is None  # nothing captured: nothing published
    nothing_is_left(tmp_path, store)
    store.close()


def test_a_fingerprint_that_could_not_be_kept_is_kept_by_the_next_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ChunkStore(LocalStore(tmp_path), Index(None))
    place = LocalStore.place

    def full(self: LocalStore, temporary: Path, name: str) -> None:
        if name.endswith(".fingerprint"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place(self, temporary, name)

    def capture() -> None:
        capture = store.capture(FINGERPRINT)
        capture.add(Role.KEEP, b"k" * 32, (0, 16, 16), [b"payload"])
        capture.commit()

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "place", full)
        with pytest.raises(StoreFull):
            capture()
    nothing_is_left(tmp_path, store)
    capture()
    assert check_store(store).fingerprints == 1
    store.close()
