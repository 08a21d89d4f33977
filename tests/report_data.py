"""A report that nobody had to wait for: data as `evidence.report.collect` makes it."""

from __future__ import annotations

from typing import Any

from kvgraft.engines.toy import ToyEngine
from kvgraft.evidence.controls import CONTROLS
from kvgraft.evidence.measure import AtLength
from kvgraft.evidence.probe import AtOffset, Difference, KeyDifference, Probe
from kvgraft.evidence.prove import Proof
from kvgraft.evidence.report import FORMAT, _plain
from kvgraft.identity import Fingerprint

LENGTHS = (64, 1024)
CUTS = ("boundary", "beside", "tail", "whole", "tail")


def a_proof(model: str = "toy") -> Proof:
    """A proof of 5 samples that holds."""
    rows = [
        {
            "sample": number,
            "tokens": 64 * 4**number,
            "stored": 48 * 4**number,
            "cut": cut,
            "reused": 48 * 4**number,
            "reused_expected": 48 * 4**number,
            "calls": number,
            "calls_expected": number,
            "as_expected": True,
            "cold_sha256": f"{number:x}" * 64,
            "graft_sha256": f"{number:x}" * 64,
            "equal": True,
            "kl": 0.0,
            "argmax_equal": True,
            "monolithic": {"max_abs_logit": 0.25 * number, "kl": 1e-5, "argmax_equal": True},
        }
        for number, cut in enumerate(CUTS)
    ]
    return Proof(
        model=model,
        samples=5,
        sha_equal=5,
        reused_as_expected=5,
        controls_detected=True,
        kl_max=0.0,
        argmax_agree=1.0,
        rebuilt_equal=True,
        monolithic={"samples": 5, "max_abs_logit": 1.0, "kl_max": 1e-5, "argmax_flips": 0},
        fingerprint=dict(ToyEngine().fingerprint.fields),
        controls=[{"control": name, "served": True, "changed": True} for name in CONTROLS],
        rows=rows,
        raw_digests={f"{n:064x}/KEEP": ("ab" * 32, "ab" * 32) for n in range(3)},
    )


def a_length(tokens: int) -> AtLength:
    return AtLength(
        tokens=tokens,
        compute_runs=[tokens / 1000] * 3,
        capture_runs=[0.05] * 3,
        restore_runs=[0.002] * 7,
        first_restore_seconds=0.003,
        after_restore_seconds=0.0005,
        restored_bytes=tokens * 500,
        stored_bytes=tokens * 600,
        bytes_by_kind={"full": tokens * 512, "sliding": 11264, "end": 128, "ids": tokens * 4},
        compressed_by_kind={"full": tokens * 300, "sliding": 9000, "end": 160, "ids": tokens * 5},
    )


def a_probe(model: str = "toy") -> Probe:
    moved = Difference(66, 1e-3, 5e-3, 0.5, 1)
    place = Difference(66, 0.0, 0.0, 0.0, 0)
    keys = {"full": KeyDifference(0.25, 20.0)}
    kinds = {"full": moved, "sliding": place}
    rows = [AtOffset(offset, moved, place, kinds, keys) for offset in (8, 128)]
    return Probe(model, 2, 256, 32, True, dict(ToyEngine().fingerprint.fields), rows)


def report_data(model: str = "toy", **changes: Any) -> dict[str, Any]:
    """A report that passed, with `changes` at the top."""
    proof = a_proof(model)
    fingerprint = Fingerprint.of(proof.fingerprint)
    data = {
        "format": FORMAT,
        "passed": True,
        "model": model,
        "made_at": "2026-11-30T12:00:00+00:00",
        "kvgraft": "0.1.0",
        "command": "kvgraft report toy -o report.html --samples 5 --seed 0",
        "engine": {
            "name": "toy",
            "block": 16,
            "context_tokens": 2048,
            "layers": {"full": 2, "sliding": 2},
            "layers_with_states": 0,
            "dtypes": ["F32"],
            "growing_bytes_per_token": {"full": 512},
        },
        "proof": {**proof.as_dict(), "raw_digests": proof.raw_digests},
        "lengths": [a_length(tokens).as_dict() for tokens in LENGTHS],
        "probe": a_probe(model).as_dict(),
        "probe_reason": "",
        "environment": [{"name": "python", "state": "ok", "detail": "3.11.7", "hint": ""}],
        "fingerprint": proof.fingerprint,
        "fingerprint_digest": fingerprint.hex,
        **changes,
    }
    plain: dict[str, Any] = _plain(data)
    return plain


def a_failed_report() -> dict[str, Any]:
    """One in which everything that can fail did, and much was not measured."""
    data = report_data(model="<script>alert('model')</script>", passed=False, probe=None)
    data["probe_reason"] = "the toy engine does not move states"
    proof = data["proof"]
    proof.update(passed=False, sha_equal=4, reused_as_expected=4, kl_max="inf")
    proof.update(controls_detected=False, rebuilt_equal=False)
    proof["rows"][1].update(graft_sha256="f" * 64, equal=False, kl="inf")
    proof["rows"][2].update(reused=0, calls=9, as_expected=False)
    proof["controls"][0]["changed"] = False
    proof["raw_digests"][f"{1:064x}/KEEP"][1] = None
    proof["failures"] = [
        *("sample 1 (256 tokens): <b>other</b>", f"rebuilt differently, or not at all: {1:064x}"),
        "the processes had different fingerprints",
    ]
    proof["monolithic"] = dict.fromkeys(("max_abs_logit", "kl_max", "argmax_flips")) | {
        "samples": 0
    }
    for row in proof["rows"]:
        row["monolithic"] = None
    empty = AtLength(
        64,
        [0.1],
        reasons=dict.fromkeys(
            ("capture_seconds", "restore_seconds", "bytes_by_kind", "compressed_by_kind"),
            "the capture failed: <no space>",
        ),
    )
    data["lengths"] = [empty.as_dict()]
    return data
