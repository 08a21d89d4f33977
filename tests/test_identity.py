"""Fingerprints name what differs; weight digests are remembered by identity and never trusted
beyond it."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from kvgraft import identity
from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import UnreadableModel, UsageError
from kvgraft.identity import Fingerprint, WeightsDigests, cpu_class, digest_json

FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)
SOUND = Fingerprint.of({"engine": "toy", "dtype": "F32", "device": "cpu"})


# --- fingerprints -----------------------------------------------------------------------------


@given(FIELDS)
def test_order_does_not_matter(fields: dict[str, str]) -> None:
    turned = dict(reversed(list(fields.items())))
    assert Fingerprint.of(fields) == Fingerprint.of(turned)
    assert Fingerprint.of(fields).digest == Fingerprint.of(turned).digest


@given(FIELDS)
def test_json_round_trip(fields: dict[str, str]) -> None:
    fingerprint = Fingerprint.of(fields)
    assert Fingerprint.from_json(fingerprint.to_json()) == fingerprint
    assert json.loads(fingerprint.to_json()) == fields
    assert fingerprint.to_json().isascii()


@given(mine=FIELDS, theirs=FIELDS)
def test_digests_differ_exactly_where_fields_do(
    mine: dict[str, str], theirs: dict[str, str]
) -> None:
    one, two = Fingerprint.of(mine), Fingerprint.of(theirs)
    assert (one.digest == two.digest) is (mine == theirs)
    assert (one.differing(two) == ()) is (mine == theirs)
    assert one.differing(two) == two.differing(one)


def test_the_digest_spelled_out() -> None:
    text = b'{"device":"cpu","dtype":"F32","engine":"toy"}'
    context = "kvgraft 2026-11 v1 fingerprint"
    assert SOUND.digest == blake3(text, derive_key_context=context).digest()
    assert SOUND.hex == SOUND.digest.hex()
    assert len(SOUND.digest) == 32


def test_differing_fields_are_named() -> None:
    other = Fingerprint.of({"engine": "toy", "dtype": "BF16", "threads": "2", "device": "cpu"})
    assert SOUND.differing(other) == ("dtype", "threads")
    assert SOUND.differing(Fingerprint.of({})) == ("device", "dtype", "engine")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"a": 1}', '{"a": null}', '{"a": {}}', "[" * 100_000, "\ud800"]
)
def test_what_is_no_fingerprint(text: str) -> None:
    with pytest.raises(UsageError):
        Fingerprint.from_json(text)


def test_engines_that_compute_otherwise_have_other_fingerprints() -> None:
    plain = ToyEngine().fingerprint
    assert ToyEngine().fingerprint == plain
    assert plain.differing(ToyEngine(seed=1).fingerprint) == ("weights",)
    blocks = ToyShape(block=8, rungs=(4, 8))
    assert plain.differing(ToyEngine(shape=blocks).fingerprint) == ("plan",)
    windows = ToyShape(windows=(0, 24, 0, 8))
    assert plain.differing(ToyEngine(shape=windows).fingerprint) == ("config",)


def test_json_digests_are_of_content() -> None:
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": "1"})
    assert digest_json(["ab"]) != digest_json(["a", "b"])


def test_variables_that_narrow_kernels_are_part_of_the_cpu_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SOME_CORETYPE", raising=False)
    plain = cpu_class()
    assert cpu_class(("SOME_CORETYPE",)) == plain
    monkeypatch.setenv("SOME_CORETYPE", "Haswell")
    assert cpu_class(("SOME_CORETYPE",)) == f"{plain}/SOME_CORETYPE=Haswell"
    assert cpu_class() == plain
    monkeypatch.setenv("SOME_CORETYPE", "")
    assert cpu_class(("SOME_CORETYPE",)) == f"{plain}/SOME_CORETYPE="


X86 = """processor\t: 0
vendor_id\t: GenuineSomething
model name\t: Some CPU @ 2.00GHz
flags\t\t: fpu sse4_2 avx512_bf16 avx2 avx fma amx_tile f16c rdrand

processor\t: 1
vendor_id\t: GenuineSomething
flags\t\t: fpu
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp sve asimd bf16 i8mm crc32
"""


@pytest.mark.parametrize(
    ("machine", "text", "expected"),
    [
        (
            "x86_64",
            X86,
            "x86_64/GenuineSomething/amx_tile/avx/avx2/avx512_bf16/f16c/fma/sse4_2",
        ),
        ("aarch64", ARM, "aarch64/asimd/bf16/i8mm/sve"),
        ("riscv64", "", "riscv64"),
        ("riscv64", None, "riscv64"),  # no such file
    ],
)
def test_the_cpu_class_spelled_out(
    machine: str, text: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(identity, "Path", lambda _: file)
    monkeypatch.setattr(identity.platform, "machine", lambda: machine)
    assert cpu_class() == expected


# --- weight digests ---------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "memory" / "weights.sqlite3"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "model"
    folder.mkdir()
    paths = [folder / "model-1.safetensors", folder / "model-2.safetensors"]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return paths


class Reading:
    """Follows the progress of one digest; `total` is what was read, in bytes."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.steps.append((done, total))

    @property
    def happened(self) -> bool:
        return bool(self.steps)


def digest(database: Path, files: list[Path], *, paranoid: bool = False) -> tuple[str, Reading]:
    reading = Reading()
    return WeightsDigests(database, paranoid=paranoid).of_files(files, reading), reading


def test_the_digest_is_of_contents_in_the_order_of_names(database: Path, files: list[Path]) -> None:
    found, reading = digest(database, files)
    assert reading.steps == [(1000, 2000), (2000, 2000)]
    each = [blake3(path.read_bytes()).hexdigest() for path in files]
    assert found == blake3("".join(each).encode()).hexdigest()
    assert digest(database, files[::-1])[0] == found
    assert digest(database, files[:1])[0] != found


def test_names_and_folders_do_not_enter(database: Path, files: list[Path], tmp_path: Path) -> None:
    found, _ = digest(database, files)
    moved = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for old, new in zip(files, moved, strict=True):
        new.write_bytes(old.read_bytes())
    assert digest(database, moved)[0] == found
    swapped = tmp_path / "swapped"
    swapped.mkdir()
    for old, name in zip(files, ("2", "1"), strict=True):
        (swapped / name).write_bytes(old.read_bytes())
    assert digest(database, list(swapped.iterdir()))[0] != found


def test_a_known_file_is_not_read_again(database: Path, files: list[Path]) -> None:
    found, first = digest(database, files)
    again, second = digest(database, files)
    assert (again, first.happened, second.happened) == (found, True, False)
    paranoid, third = digest(database, files, paranoid=True)
    assert (paranoid, third.happened) == (found, True)


def test_a_known_file_is_known_by_every_way_to_it(
    database: Path, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = digest(database, files)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(files[0].parent)
    for folder in (Path("model"), tmp_path / "link"):
        again, reading = digest(database, [folder / path.name for path in files])
        assert (again, reading.happened) == (found, False)


def keep_times(path: Path, change: object) -> None:
    """Do `change()` and set the file's times back."""
    before = path.stat()
    change()  # type: ignore[operator]
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_another_size_is_another_file(database: Path, files: list[Path]) -> None:
    found, _ = digest(database, files)
    keep_times(files[0], lambda: files[0].write_bytes(bytes(1001)))
    assert digest(database, files)[0] != found


def test_another_mtime_is_another_file(database: Path, files: list[Path]) -> None:
    found, _ = digest(database, files)
    before = files[0].stat()
    files[0].write_bytes(b"\xff" * 1000)
    os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # a nanosecond is enough
    assert digest(database, files)[0] != found


def test_another_inode_is_another_file(database: Path, files: list[Path]) -> None:
    found, _ = digest(database, files)

    def replace() -> None:
        other = files[0].with_name("other")
        other.write_bytes(b"\xff" * 1000)
        other.replace(files[0])

    keep_times(files[0], replace)
    assert digest(database, files)[0] != found


def test_paranoia_sees_what_identity_hides(database: Path, files: list[Path]) -> None:
    found, _ = digest(database, files)

    def change() -> None:
        with files[0].open("r+b") as file:
            file.write(b"\xff")

    keep_times(files[0], change)
    assert digest(database, files)[0] == found  # same path, size, mtime and inode
    assert digest(database, files, paranoid=True)[0] != found
    assert digest(database, files)[0] != found  # and what it saw is remembered


def test_a_changed_file_and_back_again(database: Path, files: list[Path]) -> None:
    found, _ = digest(database, files)
    content = files[0].read_bytes()
    files[0].write_bytes(b"\xff" * 1000)
    os.utime(files[0], ns=(1, 1))
    changed, _ = digest(database, files)
    files[0].write_bytes(content)
    os.utime(files[0], ns=(2, 2))
    assert digest(database, files)[0] == found != changed


@pytest.mark.parametrize("damage", ["noise", "a folder", "another table", "no folder"])
def test_a_damaged_memory_costs_one_more_reading(
    damage: str, database: Path, files: list[Path]
) -> None:
    found, _ = digest(database, files)
    database.unlink()
    if damage == "noise":
        database.write_bytes(b"this is not a database" * 100)
    elif damage == "a folder":
        database.mkdir()
    elif damage == "no folder":
        database.parent.rmdir()
        database.parent.write_bytes(b"")
    else:
        with sqlite3.connect(database) as db:
            db.execute("CREATE TABLE weights (something TEXT)")
        db.close()
    again, reading = digest(database, files)
    assert (again, reading.happened) == (found, True)


def test_weights_that_cannot_be_read(database: Path, files: list[Path]) -> None:
    with pytest.raises(UnreadableModel, match="no weight files"):
        digest(database, [])
    with pytest.raises(UnreadableModel) as caught:
        digest(database, [*files, files[0].with_name("gone.safetensors")])
    assert "gone.safetensors" in caught.value.where
