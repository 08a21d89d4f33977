"""`probe`: tables, a document, a plot; refusals that name what is wrong."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvgraft.cli import docs
from kvgraft.evidence.probe import AtOffset, Difference, KeyDifference, Probe

MOVED = Difference(rows=66, kl_mean_nats=1e-3, kl_max_nats=5e-3, max_abs_logit=0.5, argmax_flips=1)
PLACE = replace(MOVED, kl_mean_nats=0.0, argmax_flips=0)
KEYS = {"full": KeyDifference(0.25, 20.0), "sliding": KeyDifference(0.125, 10.0)}
PROBE = Probe(
    model="toy",
    samples=2,
    block_tokens=256,
    suffix_tokens=32,
    control_equal=True,
    fingerprint={"engine": "toy", "dtype": "F32"},
    offsets=[
        AtOffset(offset, MOVED, PLACE, {"full": MOVED, "sliding": PLACE}, KEYS)
        for offset in (8, 128)
    ],
)
WORDS = ("--samples", "1", "--tokens", "40")


def test_a_probe_of_the_toy(run, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    seen = run("probe", "toy", "--offsets", "8, 300,8", *WORDS, "-o", plot, "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["probe"])
    assert [at["offset"] for at in document["offsets"]] == [8, 300]
    assert document["control_equal"] is True
    drawn = "".join(ElementTree.parse(plot).getroot().itertext())
    for name in (
        *("relocated against computed there", "computed there against computed here"),
        *("full layers alone", "sliding layers alone", "offset (tokens)", "mean KL (nats)"),
    ):
        assert name in drawn
    for at in document["offsets"]:
        assert repr(at["relocated"]["kl_mean_nats"]) in drawn
    assert not list(tmp_path.glob("store*"))  # nothing is kept


def test_the_tables(run, monkeypatch) -> None:
    monkeypatch.setattr("kvgraft.evidence.probe.probe", lambda *words, **options: PROBE)
    seen = run("probe", "toy")
    assert seen.status == 0
    lines = [" ".join(line.split()) for line in seen.stdout.splitlines()]
    assert "copied, not moved equal bits" in lines
    assert "8 relocated against computed there 1.00e-03 5.00e-03 0.5 1 of 66" in lines
    assert "8 sliding layers alone 0.00e+00 5.00e-03 0.5 0 of 66" in lines
    assert "128 computed there against computed here 0.00e+00 5.00e-03 0.5 0 of 66" in lines
    assert "128 sliding 0.125 10" in lines
    assert "approximate" in seen.stdout


def test_one_kind_of_layer_needs_no_rows_of_its_own(run, monkeypatch, tmp_path: Path) -> None:
    plain = [replace(at, by_kind={"full": MOVED}) for at in PROBE.offsets]
    found = replace(PROBE, offsets=plain)
    monkeypatch.setattr("kvgraft.evidence.probe.probe", lambda *words, **options: found)
    plot = tmp_path / "plot.svg"
    assert "alone" not in run("probe", "toy", "-o", plot).stdout
    assert "alone" not in plot.read_text()


def test_a_failed_control(run, monkeypatch) -> None:
    failed = replace(PROBE, control_equal=False)
    monkeypatch.setattr("kvgraft.evidence.probe.probe", lambda *words, **options: failed)
    seen = run("probe", "toy", "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["control_equal"] is False
    assert "OTHER BITS" in run("probe", "toy").stdout


@pytest.mark.parametrize("offsets", ["", "8,,9", "-8", "eight", "8;9", "²", "1" * 12])
def test_offsets_that_are_none(run, offsets: str) -> None:
    seen = run("probe", "toy", f"--offsets={offsets}", *WORDS)
    assert seen.status == 2
    assert "offsets are whole numbers" in seen.stderr


def test_offsets_past_the_context(run) -> None:
    seen = run("probe", "toy", "--offsets", "2000", *WORDS)
    assert seen.status == 2
    assert "context of 2048" in seen.stderr


def test_a_plot_that_cannot_be_written(run, tmp_path: Path) -> None:
    seen = run("probe", "toy", "--offsets", "8", *WORDS, "-o", tmp_path / "no" / "plot.svg")
    assert seen.status == 3
    assert "no such folder" in seen.stderr
    (tmp_path / "folder.svg").mkdir()
    seen = run("probe", "toy", "--offsets", "8", *WORDS, "-o", tmp_path / "folder.svg")
    assert seen.status == 3
    assert "cannot be written" in seen.stderr


def test_the_engine_and_the_probe_get_their_options(run, monkeypatch) -> None:
    seen: dict[str, Any] = {}

    class Opened:
        def close(self) -> None:
            seen["closed"] = True

    def open_engine(model: str, **options: Any) -> Opened:
        seen.update(options, model=model)
        return Opened()

    def probe(engine: Any, offsets: Any, samples: int, **options: Any) -> Probe:
        seen.update(options, offsets=offsets, samples=samples)
        return PROBE

    monkeypatch.setattr("kvgraft.engines.registry.open_engine", open_engine)
    monkeypatch.setattr("kvgraft.evidence.probe.probe", probe)
    words = ("--dtype", "float32", "--threads", "1", "--paranoid", "--seed", "3", "--tokens", "64")
    assert run("probe", "toy", *words, "--samples", "7", "--engine", "llamacpp").status == 0
    assert (seen["offsets"], seen["samples"], seen["seed"], seen["block_tokens"]) == (
        None,
        7,
        3,
        64,
    )
    assert (seen["dtype"], seen["threads"], seen["paranoid"]) == ("float32", 1, True)
    assert (seen["engine"], seen["device"], seen["closed"]) == ("llamacpp", "cpu", True)
