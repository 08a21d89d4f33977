"""A proof passes on an exact engine, and fails on every kind of engine or worker that is not.

Sabotaged proofs run their workers in this process, one after the other, so that one of them can
be given another engine or another function; whole ones run as users run them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvgraft.engines.base import Engine
from kvgraft.engines.toy import ToyEngine, ToyShape
from kvgraft.errors import EngineError, UnknownModel, UsageError
from kvgraft.evidence import prove as prove_module
from kvgraft.evidence import worker
from kvgraft.evidence.controls import CONTROLS, altered_store
from kvgraft.evidence.prove import Proof, kl_divergence, prove
from kvgraft.evidence.worker import Job
from kvgraft.identity import Fingerprint
from kvgraft.reuse import Keep, compute_prompt
from toys import memory_chunks

KEYS = [  # of the JSON document, as promised
    *("samples", "sha_equal", "reused_as_expected", "controls_detected", "kl_max"),
    *("argmax_agree", "rebuilt_equal", "monolithic", "fingerprint"),
]
Engines = dict[str, Engine]


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Proof]:
    """Prove in this process, with an engine for each kind of worker."""

    def _prove(engines: Engines | None = None, samples: int = 8, **options: Any) -> Proof:
        kinds: list[str] = []

        def work(job: Job, folder: Path, progress: Any) -> None:
            kinds.append(job.kind)
            worker._run(job)

        def open_engine(model: str, **options: Any) -> Engine:
            return (engines or {}).get(kinds[-1]) or ToyEngine()

        monkeypatch.setattr(prove_module, "_work", work)
        monkeypatch.setattr(worker, "open_engine", open_engine)
        return prove("toy", samples=samples, **{"longest": 300, **options})

    return _prove


# --- proofs that hold -------------------------------------------------------------------------


def test_the_toy_is_proven_in_separate_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[tuple[str, int, int]] = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = prove("toy", samples=10, progress=lambda *step: stages.append(step))
    assert found.passed, found.failures
    document = json.loads(json.dumps(found.as_dict()))
    assert document["passed"] is True
    assert list(filter(document.__contains__, KEYS)) == KEYS
    assert (found.samples, found.sha_equal, found.reused_as_expected) == (10, 10, 10)
    assert (found.kl_max, found.argmax_agree) == (0.0, 1.0)
    assert found.controls_detected is True
    assert found.rebuilt_equal is True
    assert {row["control"] for row in found.controls} == set(CONTROLS)
    assert found.failures == []
    assert found.fingerprint == dict(ToyEngine().fingerprint.fields)
    # The monolithic difference is measured beside it, and is none of the above.
    assert found.monolithic["samples"] == 10
    assert found.monolithic["max_abs_logit"] is not None
    # Every sample, and every stored object; the latter are too many for the document.
    assert [row["sample"] for row in found.rows] == list(range(10))
    for row in found.rows:
        assert row["equal"] == (row["cold_sha256"] == row["graft_sha256"])
        assert (row["reused"], row["calls"]) == (row["reused_expected"], row["calls_expected"])
        assert 0 < row["reused"] <= row["stored"] <= row["tokens"]
        assert (row["cut"] == "whole") == (row["stored"] == row["tokens"])
        assert set(row["monolithic"]) == {"max_abs_logit", "kl", "argmax_equal"}
    largest = max(row["monolithic"]["max_abs_logit"] for row in found.rows)
    assert found.monolithic["max_abs_logit"] == largest
    assert document["rows"] == found.rows
    assert "raw_digests" not in document
    assert all(stored == again for stored, again in found.raw_digests.values())
    assert {name.rpartition("/")[2] for name in found.raw_digests} == {"KEEP", "NEAR", "END"}
    assert {(kind, n) for kind, n, _ in stages} >= {("capture", 10), ("cold", 10), ("graft", 10)}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model("demo:smollm2")
@pytest.mark.usefixtures("model_path")
def test_a_real_model_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where other processes want the cores too, threads that wait must not spin.
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    found = prove("demo:smollm2", samples=5, longest=1040, options={"threads": 2})
    assert found.passed, found.failures
    assert (found.sha_equal, found.reused_as_expected, found.kl_max) == (5, 5, 0.0)
    assert len(found.controls) == 3
    assert found.fingerprint["dtype"] == "BF16"
    assert found.monolithic["max_abs_logit"] != 0  # its own arithmetic differs, and is not hidden


@pytest.mark.parametrize(
    "shape",
    [
        ToyShape(windows=(0, 0)),
        ToyShape(windows=(24, 7)),
        ToyShape(windows=(0, 300), block=256, rungs=(8, 64, 256)),
        ToyShape(windows=(0, 30), block=8, rungs=(2, 8)),
    ],
    ids=["full only", "sliding only", "large blocks", "small blocks"],
)
def test_engines_of_other_shapes_are_proven(proof: Callable[..., Proof], shape: ToyShape) -> None:
    engines = {kind: ToyEngine(shape=shape) for kind in ("prepare", "cold", "graft")}
    found = proof(engines, samples=5, longest=1200)
    assert found.passed, found.failures
    assert len(found.controls) >= len(CONTROLS)  # also with the fewest samples


def test_an_engine_without_a_monolithic_call_has_that_not_measured(
    proof: Callable[..., Proof],
) -> None:
    class Planned(ToyEngine):
        capabilities = replace(ToyEngine.capabilities, monolithic=False)

    found = proof({kind: Planned() for kind in ("prepare", "cold", "graft")})
    assert found.passed
    assert found.monolithic == {
        "samples": 0,
        "max_abs_logit": None,
        "kl_max": None,
        "argmax_flips": None,
    }
    assert [row["monolithic"] for row in found.rows] == [None] * 8


# --- proofs that must fail --------------------------------------------------------------------


def test_a_graft_that_ignores_the_store_proves_nothing(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    def graft(engine: Engine, chunks: Any, samples: Any, folder: Path) -> dict[str, Any]:
        monkeypatch.setattr(
            worker,
            "compute_prompt",
            lambda engine, store, ids, **options: compute_prompt(
                engine, None if "on_call" in options else store, ids, **options
            ),
        )
        return real(engine, chunks, samples, folder)

    real = worker._graft
    monkeypatch.setattr(worker, "_graft", graft)
    found = proof()
    assert found.sha_equal == found.samples  # everything was computed again, and is equal
    assert found.reused_as_expected == 0
    assert found.controls_detected is False
    assert not found.passed
    assert len(found.failures) == found.samples


class Noisy(ToyEngine):
    """Two runs of one prompt differ in their last bits."""

    def forward(self, layers: Any, tokens: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng().standard_normal(len(tokens)) * 1e-6
        return super().forward(layers, tokens) + noise[:, None].astype(np.float32)


def test_an_engine_that_is_not_deterministic_fails(proof: Callable[..., Proof]) -> None:
    found = proof({kind: Noisy() for kind in ("prepare", "cold", "graft")})
    assert found.sha_equal < found.samples
    assert not found.passed
    assert found.failures


def test_other_numbers_in_the_grafting_process_fail(proof: Callable[..., Proof]) -> None:
    moved = ToyEngine()
    moved.head = np.nextafter(moved.head, np.float32(9))  # its fingerprint was taken before
    found = proof({"graft": moved})
    assert (found.sha_equal, found.reused_as_expected) == (0, found.samples)
    assert found.rebuilt_equal
    assert 0 < found.kl_max < 1e-6  # far below anything that text would show
    assert not found.passed


def test_one_wrong_sample_of_many_is_enough_to_fail(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    def observe(engine: Engine, chunks: Any, sample: Any, keep: Keep = Keep.NOTHING) -> Any:
        seen = real(engine, chunks, sample, keep)
        observed.append(1)
        if len(observed) == 8 + 3:  # the third of the grafted runs
            seen["calls_made"] += 1
        return seen

    observed: list[int] = []
    real = worker._observe
    monkeypatch.setattr(worker, "_observe", observe)
    found = proof()
    assert (found.sha_equal, found.reused_as_expected) == (8, 7)
    assert not found.passed
    (failure,) = found.failures
    assert failure.startswith("sample 2 (")
    assert [row["as_expected"] for row in found.rows] == [n != 2 for n in range(8)]


def test_the_capturing_process_must_store_what_the_cold_one_makes(
    proof: Callable[..., Proof],
) -> None:
    class Elsewhere(ToyEngine):
        """Its states differ from what it declares."""

        def forward(self, layers: Any, tokens: np.ndarray) -> np.ndarray:
            out = super().forward(layers, tokens)
            layers[0].parts[1][0, layers[0].rows - 1] *= np.float32(1 + 2**-20)
            return out

    found = proof({"prepare": Elsewhere()})
    assert not found.rebuilt_equal
    assert not found.passed
    assert any("rebuilt differently" in failure for failure in found.failures)
    assert any(stored != again for stored, again in found.raw_digests.values())


def test_what_the_cold_process_did_not_make_is_not_rebuilt(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker._cold
    monkeypatch.setattr(worker, "_cold", lambda *given: {**real(*given), "raw_digests": {}})
    found = proof()
    assert (found.sha_equal, found.rebuilt_equal) == (8, False)
    assert {again for _, again in found.raw_digests.values()} == {None}
    assert not found.passed


def test_a_cold_run_that_reuses_anything_ends_the_proof(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = worker.make_samples
    monkeypatch.setattr(worker, "make_samples", lambda *given: real(*given)[:4] * 2)
    with pytest.raises(EngineError, match="the proof would be void"):
        proof()


def test_controls_that_were_not_served_are_not_detected(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "altered_store", lambda *given: memory_chunks())
    found = proof()
    assert [row["served"] for row in found.controls] == [False] * len(found.controls)
    assert all(row["changed"] is False for row in found.controls)
    assert not found.controls_detected
    assert not found.passed


def test_controls_that_change_nothing_are_not_detected(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_altered(engine: Engine, chunks: Any, prefix: Any, donor: Any, control: str) -> Any:
        # The donor is the prompt itself: "another prompt's chunk" is then its own.
        return altered_store(engine, chunks, prefix, prefix, control)

    monkeypatch.setattr(worker, "altered_store", half_altered)
    found = proof()
    same = [row for row in found.controls if not row["changed"]]
    assert {row["control"] for row in same} == {"another prompt's chunk"}
    assert all(row["served"] for row in same)
    assert not found.controls_detected
    assert not found.passed


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"control": "any", "served": True, "changed": False}],
        [{"control": "any", "served": False, "changed": True}],
        [
            {"control": "any", "served": True, "changed": True},
            {"control": "other", "served": False, "changed": False},
        ],
    ],
)
def test_every_control_is_served_and_seen_or_there_is_no_proof(
    proof: Callable[..., Proof], monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(worker, "_controls", lambda *given: rows)
    found = proof(samples=5, longest=100)
    assert found.sha_equal == found.reused_as_expected == 5
    assert (found.controls, found.controls_detected, found.passed) == (rows, False, False)


def test_processes_with_different_fingerprints_fail(proof: Callable[..., Proof]) -> None:
    other = ToyEngine()
    other.fingerprint = Fingerprint.of({**dict(other.fingerprint.fields), "threads": "7"})
    found = proof({"cold": other})
    assert "the processes had different fingerprints" in found.failures
    assert not found.passed


def test_a_proof_is_only_what_holds_in_every_part(proof: Callable[..., Proof]) -> None:
    good = proof()
    assert good.passed
    for part in (
        {"sha_equal": 7},
        {"reused_as_expected": 7},
        {"controls_detected": False},
        {"rebuilt_equal": False},
        {"kl_max": 1e-300},
        {"kl_max": float("nan")},
        {"argmax_agree": 0.99},
        {"failures": ["the processes had different fingerprints"]},
        {"samples": 0, "sha_equal": 0, "reused_as_expected": 0},
    ):
        assert not replace(good, **part).passed, part


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 5"):
        prove("toy", samples=4)


def test_a_workers_error_arrives_as_what_it_was() -> None:
    with pytest.raises(UnknownModel, match="a toy model is named") as caught:
        prove("toy:x", samples=5)
    assert caught.value.where == "toy:x"


# --- the divergence ---------------------------------------------------------------------------


def test_the_divergence_is_that_of_the_distributions() -> None:
    left = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], np.float32)
    right = np.array([[3.0, 2.0, 1.0], [5.0, 5.0, 5.0]], np.float32)
    p, q = (np.exp(x) / np.exp(x).sum() for x in (left[0].astype(float), right[0].astype(float)))
    assert kl_divergence(left, right) == pytest.approx([(p * np.log(p / q)).sum(), 0])
    assert (kl_divergence(left, left) == 0).all()


def test_a_token_that_is_ruled_out_adds_nothing_and_nonsense_is_not_hidden() -> None:
    masked = np.array([[1.0, -np.inf, 2.0]], np.float32)
    assert kl_divergence(masked, masked).tolist() == [0.0]
    assert kl_divergence(np.zeros((1, 3)), masked).tolist() == [np.inf]
    assert np.isnan(kl_divergence(np.array([[np.nan, 0, 0]]), masked)).all()


def test_a_divergence_that_is_no_number_is_not_lost(proof: Callable[..., Proof]) -> None:
    class Broken(ToyEngine):
        def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
            return super().monolithic_logits(ids) * np.float32("nan" if len(ids) > 120 else 1)

    found = proof({"cold": Broken()})
    assert found.passed  # it is none of the proof
    assert np.isnan(found.monolithic["max_abs_logit"])
    assert np.isnan(found.monolithic["kl_max"])
