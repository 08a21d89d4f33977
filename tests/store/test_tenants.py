"""Tenant salts: secret, made once, kept; damage is an error and never a new salt."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from kvgraft.errors import StoreError, StoreReadOnly, UsageError
from kvgraft.plan import PUBLIC_SALT
from kvgraft.store import tenants
from kvgraft.store.tenants import TenantSalts

SOURCES = Path(__file__).parents[2] / "src"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "tenants.json"


def test_public_is_well_known_and_needs_no_file(path: Path) -> None:
    assert TenantSalts(path).salt("public") == PUBLIC_SALT == bytes(32)
    assert not path.parent.exists()


def test_a_salt_is_made_once_and_kept(path: Path) -> None:
    first = TenantSalts(path).salt("a")
    assert len(first) == 32
    assert TenantSalts(path).salt("a") == first
    others = {TenantSalts(path).salt(name) for name in ("b", "A", "a ", "ä", "a" * 512)}
    assert len(others | {first, PUBLIC_SALT}) == 7
    assert TenantSalts(path).salt("a") == first


def test_salts_differ_between_stores(path: Path, tmp_path: Path) -> None:
    assert TenantSalts(path).salt("a") != TenantSalts(tmp_path / "other.json").salt("a")


def test_the_file_is_its_owners_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        TenantSalts(path).salt("a")
        assert path.stat().st_mode & 0o777 == 0o600
        TenantSalts(path).salt("b")
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(old)


def test_nothing_else_is_left(path: Path) -> None:
    TenantSalts(path).salt("a")
    assert {item.name for item in path.parent.iterdir()} <= {path.name, path.name + ".lock"}


@pytest.mark.parametrize("name", ["", "a" * 513])
def test_names_that_are_none(path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        TenantSalts(path).salt(name)


HEX = "ab" * 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 5000,
        '{"salts": {}}',
        '{"format": 1}',
        '{"format": 1, "salts": []}',
        '{"format": 1, "salts": {"a": 1}}',
        json.dumps({"format": 1, "salts": {"a": HEX[:-2]}}),
        json.dumps({"format": 1, "salts": {"a": HEX + "00"}}),
        json.dumps({"format": 1, "salts": {"a": HEX.upper()}}),
        json.dumps({"format": 1, "salts": {"a": "zz" * 32}}),
        # Two tenants with one salt would share what they store.
        json.dumps({"format": 1, "salts": {"a": HEX, "b": HEX}}),
        json.dumps({"format": 1, "salts": {"a": "00" * 32}}),
    ],
)
@pytest.mark.parametrize("tenant", ["a", "new"])
def test_a_damaged_file_is_an_error_and_stays(path: Path, text: str, tenant: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StoreError, match="damaged") as caught:
        TenantSalts(path).salt(tenant)
    assert caught.value.where == str(path)
    assert caught.value.hint
    assert path.read_text() == text
    assert TenantSalts(path).salt("public") == PUBLIC_SALT


def test_any_lost_byte_is_an_error(path: Path) -> None:
    TenantSalts(path).salt("a")
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(StoreError, match="damaged"):
            TenantSalts(path).salt("a")


def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    path.parent.mkdir()
    text = json.dumps({"format": 2, "salts": {"a": "other things"}})
    path.write_text(text)
    with pytest.raises(StoreError, match="format 2") as caught:
        TenantSalts(path).salt("a")
    assert "upgrade" in caught.value.hint
    assert path.read_text() == text


def test_something_in_the_way_is_a_typed_error(path: Path, tmp_path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError):
        TenantSalts(path).salt("a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        TenantSalts(tmp_path / "file" / "tenants.json").salt("a")


def test_a_file_that_cannot_be_read_is_an_error_and_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TenantSalts(path).salt("a")
    whole = path.read_bytes()

    def fails(_: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        for tenant in ("a", "new"):
            with pytest.raises(StoreError, match="reading tenants' salts"):
                TenantSalts(path).salt(tenant)
    assert path.read_bytes() == whole


def test_a_lock_that_is_held_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = TenantSalts(path).salt("a")
    monkeypatch.setattr(tenants, "_LOCK_SECONDS", 0.0)
    with FileLock(f"{path}.lock"):
        assert TenantSalts(path).salt("a") == kept  # looking takes no lock
        with pytest.raises(StoreError, match="another process has held the lock") as caught:
            TenantSalts(path).salt("b")
    assert caught.value.where == f"{path}.lock"


def test_a_salt_that_another_process_made_meanwhile_is_taken(path: Path) -> None:
    class Late(TenantSalts):
        """Looks once before the other process has made the salt."""

        looks = 0

        def _read(self) -> dict[str, bytes]:
            self.looks += 1
            return {} if self.looks == 1 else super()._read()

    made = TenantSalts(path).salt("a")
    assert Late(path).salt("a") == made
    assert TenantSalts(path).salt("a") == made


def test_a_folder_that_cannot_be_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = TenantSalts(path).salt("a")
    original = os.open

    def refusing(name: str, flags: int, *rest: int, **options: int) -> int:
        if flags & os.O_CREAT and "tenants" in str(name) and not str(name).endswith(".lock"):
            raise PermissionError(13, "Permission denied")
        return original(name, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    assert TenantSalts(path).salt("a") == kept  # known salts need no writing
    with pytest.raises(StoreReadOnly):
        TenantSalts(path).salt("b")


RACE = """
import sys
from pathlib import Path
from kvgraft.store.tenants import TenantSalts
print("ready", flush=True)
sys.stdin.readline()
print(TenantSalts(Path(sys.argv[1])).salt("shared").hex())
print(TenantSalts(Path(sys.argv[1])).salt(sys.argv[2]).hex())
"""


def test_processes_agree(path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(path), f"own-{number}"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate(timeout=60)[0].split())
    shared = {output[0] for output in outputs}
    own = {output[1] for output in outputs}
    assert (len(shared), len(own)) == (1, 4)
    assert TenantSalts(path).salt("shared").hex() in shared
    assert {TenantSalts(path).salt(f"own-{number}").hex() for number in range(4)} == own
