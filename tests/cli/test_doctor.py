"""`doctor`: every line says what is there, what is missing, and what to do."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from kvgraft import energy
from kvgraft.cli import docs, doctor
from kvgraft.library.verify import specs
from powercap import Powercap, hide_zeus


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the process that asks torch."""
    monkeypatch.setattr(doctor, "_cuda", lambda: doctor.Check("cuda", doctor.OK, "not asked"))


def test_a_sound_machine(spawn) -> None:
    seen = spawn("doctor", "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["doctor"])
    states = {check["name"]: check["state"] for check in document["checks"]}
    expected = (
        *("python", "kvgraft", "numpy", "torch", "transformers", "cpu class", "threads", "memory"),
        *("store folder", "store folder: disk", "store", "model cache", "model cache: disk"),
        *(f"verifier {name}" for name in doctor.VERIFIERS),
        *("cuda", "energy"),
    )
    assert tuple(states) == expected
    assert set(states.values()) <= {"ok", "warn"}


def test_the_table(run, quick, solved) -> None:
    seen = run("doctor")
    assert seen.status == 0
    assert "none failed" in seen.stdout
    assert "active deposits" in seen.stdout
    assert "format 1" in seen.stdout


def test_what_is_not_installed_is_a_warning_with_the_extra(run, quick, no_torch, monkeypatch):
    version = doctor.version

    def without_torch(package: str) -> str:
        if package in ("torch", "transformers"):
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(doctor, "version", without_torch)
    seen = run("doctor", "--json")
    assert seen.status == 0
    checks = {check["name"]: check for check in seen.document["checks"]}
    assert checks["torch"]["state"] == "warn"
    assert checks["torch"]["detail"] == "not installed"
    assert "kvgraft[transformers]" in checks["torch"]["hint"]
    assert "kvgraft[math]" in checks["verifier math"]["hint"]


def test_a_store_that_cannot_be_used_fails(run, quick, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    seen = run("doctor", "--store", tmp_path / "file", "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["ok"] is False
    human = run("doctor", "--store", tmp_path / "file")
    assert human.status == 1
    assert "fail" in human.stdout
    assert "--store or KVGRAFT_STORE" in human.stderr


def test_a_store_of_another_format_fails(run, quick, solved) -> None:
    (solved / "store.json").write_text('{"format": 99}')
    seen = run("doctor", "--json")
    assert seen.status == 1
    failed = [check for check in seen.document["checks"] if check["state"] == "fail"]
    assert [check["name"] for check in failed] == ["store"]
    assert "99" in failed[0]["detail"]


def test_it_makes_nothing(run, quick, tmp_path) -> None:
    assert run("doctor").status == 0
    assert list(tmp_path.iterdir()) == []


def test_energy_meters_are_named_or_why_there_are_none(tmp_path, monkeypatch) -> None:
    hide_zeus(monkeypatch)
    powercap = Powercap(tmp_path / "powercap")
    for root, state in ((powercap.root, "ok"), (tmp_path / "absent", "warn")):
        meter = energy.EnergyMeter(root=root)
        with monkeypatch.context() as patched:
            patched.setattr(energy, "EnergyMeter", lambda meter=meter: meter)
            check = doctor._energy()
        assert (check.name, check.state, check.detail) == ("energy", state, meter.describe())
        assert ("--watts" in check.hint) == (state == "warn")


def test_every_verifier_is_looked_at() -> None:
    assert set(doctor.VERIFIERS) == set(specs._MAKERS)


def test_free_memory_is_known_on_linux() -> None:
    free = doctor.free_memory_bytes()
    assert free is not None
    assert free > 1_000_000
