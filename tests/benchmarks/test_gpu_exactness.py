"""The GPU benchmark runs end to end on the CPU in its tiny form, and tells what it did not do."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_exactness  # noqa: E402
import gpu_run  # noqa: E402
from device_meter import Meter  # noqa: E402
from kvgraft.engines.transformers.engine import PLAN  # noqa: E402
from step_record import Record, Room  # noqa: E402
from subjects import gemma4_config, spec_of  # noqa: E402

SAMPLES = 5
STEPS = (*gpu_exactness.MAKER, *gpu_exactness.MEASURER)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads gain nothing on models this small; conftest sets them back."""
    torch.set_num_threads(1)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Run the benchmark; the report it wrote."""

    def _run(*arguments: str, one_process: bool = True, subject: str = "12b") -> dict[str, Any]:
        fixed = ["--device", "cpu", "--tiny", "--samples", str(SAMPLES), "--subject", subject]
        files = ["--folder", str(tmp_path / "stores"), "--json", str(tmp_path / "out.json")]
        more = ["--one-process"] if one_process else []
        small = ["--reserve-mib", "1"] if "--reserve-mib" not in arguments else []
        assert gpu_exactness.main([*fixed, *files, *more, *small, *arguments]) == 0
        report: dict[str, Any] = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
        return report

    return _run


def expect_exact(report: dict[str, Any], subject: str) -> None:
    figures = report["figures"]
    prefix = f"tiny_gemma4_{subject}_"
    for name in ("sha_equal", "reused_as_expected", "argmax_equal"):
        assert figures[prefix + name] == SAMPLES, name
    assert (figures[prefix + "kl_max"], figures[prefix + "controls_detected"]) == (0.0, 3.0)


def test_two_processes_and_the_path_of_other_devices(run: Any, tmp_path: Path) -> None:
    report = run("--mirrored", one_process=False)
    expect_exact(report, "12b")
    steps = report["details"]["steps"]
    assert {name: step["status"] for name, step in steps.items() if step["status"] != "done"} == {}
    for label in gpu_run.LENGTHS:
        assert steps[f"12b/restore_{label}"]["result"]["bits_equal"] is True
        assert report["figures"][f"tiny_gemma4_12b_restore_vs_recompute_{label}"] > 0
    assert report["details"]["grafted_in_a_process_of_its_own"] is True
    assert not (tmp_path / "stores" / "12b").exists()
    sizes = steps["12b/sizes"]["result"]
    assert 0.9 < sizes["loaded_per_token"] / sizes["expected_per_token"] <= 1.0  # object headers


def test_what_is_not_measured_is_null_with_a_reason(run: Any) -> None:
    report = run("--only", "energy,restore_2k", subject="31b")
    reasons = report["details"]["unmeasured"]
    assert reasons["31b/energy"] == "NVML counts NVIDIA devices only, this run is on cpu"
    assert reasons["31b/exactness"] == "it was not asked for"
    figures = report["figures"]
    assert figures.pop("tiny_gemma4_31b_restore_vs_recompute_2k") > 0
    assert set(figures.values()) == set(report["details"]["without_target"].values()) == {None}


def test_no_reading_is_made_up() -> None:
    meter = Meter("cpu")
    assert meter.joules(lambda: None) == {"joules": None, "reason": meter.no_energy}
    assert meter.idle_watts() is None
    assert set(meter.memory().values()) == {None}
    assert meter.transfer_gb_per_second(8)["upload_pinned"] is None


def test_a_wrong_state_is_seen(run: Any) -> None:
    report = run("--only", "exactness", "--alter", "4", subject="31b")
    figures = report["figures"]
    assert figures["tiny_gemma4_31b_sha_equal"] == SAMPLES - 1
    assert figures["tiny_gemma4_31b_reused_as_expected"] == SAMPLES  # it was served all the same
    assert figures["tiny_gemma4_31b_kl_max"] > 0
    assert report["details"]["grafted_in_a_process_of_its_own"] is False


def test_a_resumed_run_does_what_is_missing(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only = ("--only", "exactness,restore_2k")
    first = run(*only)["details"]["steps"]
    opened = []
    work = gpu_exactness.work

    def watched(job: dict[str, Any], process: str, subject: str) -> None:
        opened.append(process)
        work(job, process, subject)

    monkeypatch.setattr(gpu_exactness, "work", watched)
    forget(tmp_path, "12b/restore_2k")
    again = run(*only, "--resume")["details"]["steps"]
    assert opened == ["measurer"]
    assert again["12b/exactness"] == first["12b/exactness"]
    assert again["12b/restore_2k"]["status"] == "done"
    assert again["12b/restore_2k"] != first["12b/restore_2k"]
    # What the cold runs had stored is gone by now, so they are made again.
    forget(tmp_path, "12b/exactness")
    expect_exact(run(*only, "--resume"), "12b")
    assert opened == ["measurer", "maker", "measurer"]
    with pytest.raises(ValueError, match="other options"):
        run(*only, "--resume", "--seed", "1")


def forget(folder: Path, step: str) -> None:
    path = folder / "out.json.steps.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    del saved["steps"][step]
    path.write_text(json.dumps(saved), encoding="utf-8")


def test_without_time_no_process_is_begun(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_exactness, "work", lambda *arguments: pytest.fail("it was begun"))
    report = run("--budget-seconds", "0.5")
    assert set(report["figures"].values()) == {None}
    reasons = report["details"]["unmeasured"]
    assert reasons.keys() == {f"12b/{step}" for step in STEPS}
    assert all(reason.startswith("budget: ") for reason in reasons.values())


def test_a_step_that_would_end_too_late_is_skipped_by_name(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = gpu_exactness.MEASURER["restore_32k"]

    def estimate(subject: str, seconds: float, *, tiny: bool) -> float:
        return 1e6 if seconds == long else 0.0

    monkeypatch.setattr(gpu_exactness, "estimate", estimate)
    report = run("--only", "restore_2k,restore_32k", "--budget-seconds", "600")
    reason = report["details"]["unmeasured"]["12b/restore_32k"]
    assert reason.startswith("budget: ")
    assert reason.endswith(" s left, the step is estimated at 1000000 s")
    assert report["figures"]["tiny_gemma4_12b_restore_vs_recompute_32k"] is None
    assert report["figures"]["tiny_gemma4_12b_restore_vs_recompute_2k"] > 0


def test_without_disk_nothing_is_written(run: Any, tmp_path: Path) -> None:
    report = run("--reserve-mib", str(2**40))
    reasons = report["details"]["unmeasured"]
    for step in ("cold", "restore_16k", "restore_32k", "sizes", "memory", "compressed"):
        assert reasons[f"12b/{step}"].startswith("disk: "), step
    assert reasons["12b/exactness"].startswith("cold: disk: ")
    assert list((tmp_path / "stores").rglob("*.pack")) == []


def test_room_names_what_is_short(tmp_path: Path) -> None:
    assert Room(None, tmp_path, 0).refusal(1e9, 1) == ""
    assert "the step writes 1 MiB" in Room(None, tmp_path, 2**60).refusal(1, 2**20)
    assert "0 s left" in Room(0.0, tmp_path, 0).refusal(1, 0)


def test_a_failed_step_is_told_and_the_next_one_runs(tmp_path: Path) -> None:
    record, room = Record(tmp_path / "r", {}, resume=False), Room(None, tmp_path, 0)
    record.run("bad", lambda: {"x": 1 // 0}, room, estimate_seconds=1)
    record.run("good", lambda: {"x": 1}, room, estimate_seconds=1)
    assert record.reason("bad") == "ZeroDivisionError: integer division or modulo by zero"
    assert (record.result("bad"), record.result("good")) == ({}, {"x": 1})


def test_what_a_step_writes_at_full_size_is_known_beforehand() -> None:
    """By the layers alone: 32,000 tokens of the 31B are about 3.6 GB."""
    spec = spec_of(gemma4_config("31b"))
    full = SimpleNamespace(spec=spec, form=PLAN, context_tokens=262_144)
    assert 3.4e9 < gpu_run.artifact_bytes(full, gpu_run.LENGTHS["32k"]) < 3.7e9  # type: ignore[arg-type]
