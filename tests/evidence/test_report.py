"""A report's data: collected in full, and judged again when it comes back from a file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvgraft.engines.base import Engine
from kvgraft.engines.toy import ToyEngine
from kvgraft.errors import EngineError, InputError, UnknownModel, UnsupportedModel, UsageError
from kvgraft.evidence import report as module
from kvgraft.evidence.prove import Proof
from kvgraft.evidence.report import NOT_ASKED, Wanted, collect, load, to_json
from report_data import a_failed_report, a_proof, report_data


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Proofs take long: here they are asked for, and handed out ready."""
    asked: list[dict[str, Any]] = []

    def prove(model: str, **options: Any) -> Proof:
        asked.append({"model": model, **options})
        return a_proof(model)

    monkeypatch.setattr(module, "prove", prove)
    return asked


def collected(model: str = "toy", **wanted: Any) -> dict[str, Any]:
    given = {"samples": 5, "lengths": [64], "offsets": [8], **wanted}
    environment = [{"name": "python", "state": "ok", "detail": "3.11"}]
    return collect(
        Wanted(model, **given), environment=environment, command="kvgraft report", version="0.1.0"
    )


def test_everything_is_collected(proven: list[dict[str, Any]]) -> None:
    data = collected(seed=3, options={"threads": 2})
    assert set(data) == set(report_data())
    assert data["passed"] is True
    assert (proven[0]["samples"], proven[0]["seed"], proven[0]["options"]) == (5, 3, {"threads": 2})
    assert [at["tokens"] for at in data["lengths"]] == [64]
    assert [at["offset"] for at in data["probe"]["offsets"]] == [8]
    assert data["engine"]["layers"] == {"full": 2, "sliding": 2}
    assert data["engine"]["growing_bytes_per_token"] == {"full": 512}
    assert set(data["engine"]) == set(report_data()["engine"])
    assert data["fingerprint_digest"] == ToyEngine().fingerprint.hex
    assert load(to_json(data)) == data  # and it comes back as it was


def test_the_probe_may_be_left_out_or_impossible(
    proven: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collected(probe=False)["probe_reason"] == NOT_ASKED

    def unable(*given: Any, **more: Any) -> Any:
        raise UnsupportedModel("its keys cannot be moved")

    monkeypatch.setattr(module, "probe", unable)
    data = collected()
    assert (data["probe"], data["probe_reason"]) == (None, "its keys cannot be moved")


def test_only_offsets_that_were_asked_for_are_refused(
    proven: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def narrow(engine: Engine, offsets: Any, **more: Any) -> Any:
        raise UsageError("offsets must be within 1..3")

    monkeypatch.setattr(module, "probe", narrow)
    assert collected(offsets=None)["probe_reason"] == "offsets must be within 1..3"
    with pytest.raises(UsageError, match="offsets"):
        collected(offsets=[4000])


def test_what_would_be_refused_is_refused_before_the_long_work(
    proven: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "measure", lambda *given, **more: pytest.fail("too late"))
    with pytest.raises(UsageError, match="at least 5"):
        collected(samples=4)
    with pytest.raises(UsageError, match="lengths must be within"):
        collected(lengths=[64, 5000])
    with pytest.raises(UsageError, match="offsets must be within"):
        collected(offsets=[5000])
    with pytest.raises(UnknownModel):
        collected("toy:x")
    assert proven == []


def test_figures_of_another_fingerprint_are_no_proof(
    proven: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_engine", lambda model, **options: ToyEngine(seed=5))
    data = collected()
    assert data["passed"] is False
    assert "the figures were measured under another fingerprint" in data["proof"]["failures"]


def test_the_engine_is_closed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    engine = ToyEngine()
    monkeypatch.setattr(engine, "close", lambda: closed.append(1))
    monkeypatch.setattr(module, "open_engine", lambda model, **options: engine)

    def broken(*given: Any, **more: Any) -> Any:
        raise EngineError("broken")

    monkeypatch.setattr(module, "measure", broken)
    with pytest.raises(EngineError):
        collected()
    assert closed == [1]


# --- coming back ------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [report_data, a_failed_report])
def test_a_report_comes_back_as_it_was(make: Any) -> None:
    data = make()
    assert load(to_json(data)) == data
    printed = {"error": {"code": "check_failed"}, **data}  # what --json prints of a failed proof
    assert load(json.dumps(printed)) == data


def changed(**proof: Any) -> str:
    data = report_data()
    data["proof"].update(proof)
    return to_json(data)


@pytest.mark.parametrize(
    "proof",
    [
        {"kl_max": "nan"},
        {"kl_max": 1e-300},
        {"argmax_agree": 0.5},
        {"failures": ["the processes had different fingerprints"]},
        {"controls": []},
        {"controls": [{"control": "any", "served": True, "changed": False}]},
        {"raw_digests": {}},
        {"raw_digests": {"a/KEEP": ["00", None]}},
    ],
)
def test_a_report_cannot_say_of_itself_that_it_passed(proof: dict[str, Any]) -> None:
    assert load(changed())["passed"] is True
    data = load(changed(passed=True, controls_detected=True, rebuilt_equal=True, **proof))
    assert data["passed"] is data["proof"]["passed"] is False


def test_rows_are_judged_by_their_digests() -> None:
    data = report_data()
    data["proof"]["rows"][0]["graft_sha256"] = "0" * 63 + "1"
    with pytest.raises(InputError, match="counts and samples differ"):
        load(to_json(data))
    data["proof"]["sha_equal"] = 4
    found = load(to_json(data))
    assert found["passed"] is False
    assert found["proof"]["rows"][0]["equal"] is False


def broken_reports() -> list[str]:
    other = report_data()
    other["fingerprint"]["threads"] = "9"
    without = report_data()
    del without["proof"]["samples"]
    return [
        *("", "[]", "{}", "null", "{", "[" * 100_000, json.dumps({"format": "kvgraft-report-2"})),
        *(to_json(other), to_json(without)),
        *(changed(rows=[]), changed(rows=[{}] * 5), changed(rows=None), changed(samples=6)),
        *(changed(kl_max="much"), changed(kl_max=None), changed(controls=[{}])),
        *(changed(raw_digests=[1]), changed(raw_digests={"a": 5})),
        to_json({**report_data(), "proof": 5}),
        to_json({**report_data(), "fingerprint": []}),
    ]


@pytest.mark.parametrize("text", broken_reports(), ids=range(len(broken_reports())))
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not the data of a report"):
        load(text)
