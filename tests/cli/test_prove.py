"""`prove`: the proof as tables and as a document; a failed one has status 1."""

from __future__ import annotations

from kvgraft.cli import docs
from kvgraft.evidence.prove import Proof

PROOF = Proof(
    model="toy",
    samples=5,
    sha_equal=5,
    reused_as_expected=5,
    controls_detected=True,
    kl_max=0.0,
    argmax_agree=1.0,
    rebuilt_equal=True,
    monolithic={"samples": 5, "max_abs_logit": 0.25, "kl_max": 1e-5, "argmax_flips": 0},
    fingerprint={"engine": "toy"},
    controls=[
        {"control": "one flipped bit", "served": True, "changed": True},
        {"control": "the neighbour's window", "served": True, "changed": True},
        {"control": "one flipped bit", "served": True, "changed": True},
    ],
)


def test_a_proof_of_the_toy(run) -> None:
    seen = run("prove", "toy", "--samples", "5", "--seed", "1", "--json")
    assert seen.status == 0, seen.stderr
    document = seen.document
    assert set(document) == set(docs.DOCUMENTS["prove"])
    assert document["passed"] is True
    assert document["sha_equal"] == document["reused_as_expected"] == document["samples"] == 5


def test_the_tables(run, monkeypatch) -> None:
    monkeypatch.setattr("kvgraft.evidence.prove.prove", lambda model, **options: PROOF)
    seen = run("prove", "toy")
    assert seen.status == 0
    lines = {" ".join(line.split()) for line in seen.stdout.splitlines()}
    assert "logits equal by SHA-256 5 of 5" in lines
    assert "one flipped bit 2 2 2" in lines
    assert "the neighbour's window 1 1 1" in lines
    assert "result passed" in lines
    # The monolithic difference stands apart, below the result.
    assert seen.stdout.index("passed") < seen.stdout.index("Apart from the proof")
    assert "largest logit difference 0.25" in lines


def test_a_failed_proof(run, monkeypatch) -> None:
    from dataclasses import replace

    failures = [f"sample {number}: differs" for number in range(12)]
    failed = replace(PROOF, sha_equal=4, kl_max=float("inf"), failures=failures)
    monkeypatch.setattr("kvgraft.evidence.prove.prove", lambda model, **options: failed)
    seen = run("prove", "toy", "--json")
    assert seen.status == 1
    assert seen.document["error"]["code"] == "check_failed"
    assert seen.document["passed"] is False
    assert seen.document["kl_max"] == "inf"  # JSON has no word for it
    human = run("prove", "toy")
    assert human.status == 1
    assert "FAILED" in human.stdout
    assert "failed: sample 0: differs" in human.stdout
    assert "2 more failures" in human.stdout


def test_what_was_not_measured_is_not_zero(run, monkeypatch) -> None:
    from dataclasses import replace

    nothing = {"samples": 0, "max_abs_logit": None, "kl_max": None, "argmax_flips": None}
    monkeypatch.setattr(
        "kvgraft.evidence.prove.prove", lambda model, **options: replace(PROOF, monolithic=nothing)
    )
    assert run("prove", "toy").stdout.count("not measured") == 3


def test_the_engine_gets_its_options(run, monkeypatch) -> None:
    seen: dict[str, object] = {}

    def prove(model: str, **options: object) -> Proof:
        seen.update(options)
        return PROOF

    monkeypatch.setattr("kvgraft.evidence.prove.prove", prove)
    words = ("--dtype", "float32", "--threads", "1", "--paranoid", "--samples", "7", "--seed", "3")
    assert run("prove", "toy", *words, "--engine", "llamacpp").status == 0
    assert (seen["samples"], seen["seed"]) == (7, 3)
    assert seen["options"] == {
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "paranoid": True,
        "engine": "llamacpp",
    }
