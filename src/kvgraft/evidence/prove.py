"""Proof of exactness: cold and grafted runs in separate processes, compared by SHA-256.

A sample passes when the digests of all its logits are equal *and* the grafted run reused exactly
what it was expected to reuse: a run that computed everything again proves nothing.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvgraft.errors import UsageError
from kvgraft.evidence.process import Progress, run_module
from kvgraft.evidence.samples import LONGEST, cut_kind
from kvgraft.evidence.worker import Job


@dataclass
class Proof:
    """Counts out of `samples`; KL in nats, the largest over samples and steps.

    `controls_detected` is true when every altered state was served and changed the digest.
    `monolithic` is the difference from one stock call over the same text: it belongs to the
    engine's arithmetic, not to grafting, and is never mixed with the rest.
    `rows` has every sample; `raw_digests` has the digests of every stored object by `key/role`, as
    the capturing process stored it and as the cold one made it again (None: it did not).
    """

    model: str
    samples: int
    sha_equal: int
    reused_as_expected: int
    controls_detected: bool
    kl_max: float
    argmax_agree: float
    rebuilt_equal: bool
    monolithic: dict[str, float | int | None]
    fingerprint: dict[str, str]
    controls: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    raw_digests: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether everything that was claimed held."""
        whole = self.sha_equal == self.reused_as_expected == self.samples
        same = self.kl_max == 0.0 and self.argmax_agree == 1.0
        rest = self.controls_detected and self.rebuilt_equal and not self.failures
        return self.samples > 0 and whole and same and rest

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `passed` included, `raw_digests` not: of many samples they are long."""
        data = {"passed": self.passed, **asdict(self)}
        del data["raw_digests"]
        return data


def prove(
    model: str,
    *,
    samples: int = 50,
    seed: int = 0,
    longest: int = LONGEST,
    options: dict[str, Any] | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Proof:
    """Run the proof, with prompts of at most `longest` tokens. `options` go to the engine (dtype,
    device, threads, paranoid).

    Raises:
        UsageError: fewer than 5 samples (too few for controls).
        EngineError: a worker process died.
        KvgraftError: what a worker raised.
    """
    if samples < 5:
        raise UsageError("a proof takes at least 5 samples")
    with tempfile.TemporaryDirectory(prefix="kvgraft-prove-") as name:
        folder = Path(name)
        for kind in ("prepare", "cold", "graft"):
            job = Job(kind, model, name, samples, seed, longest, options or {})
            _work(job, folder, progress)
        return _compare(model, folder)


def _work(job: Job, folder: Path, progress: Progress) -> None:
    path = folder / f"{job.kind}-job.json"
    path.write_text(json.dumps(asdict(job)), encoding="utf-8")
    run_module("kvgraft.evidence.worker", [str(path)], progress)


def _compare(model: str, folder: Path) -> Proof:
    prepared, cold, graft = (
        json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
        for kind in ("prepare", "cold", "graft")
    )
    expected = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
    failures: list[str] = []
    rows = []
    for number, (mine, theirs, wanted) in enumerate(
        zip(cold["samples"], graft["samples"], expected, strict=True)
    ):
        rows.append(_row(folder, number, mine, theirs, wanted, graft["block"]))
        if not (rows[-1]["equal"] and rows[-1]["as_expected"]):
            failures.append(f"sample {number} ({mine['tokens']} tokens): {theirs}")
    rebuilt = _rebuilt(prepared["raw_digests"], cold["raw_digests"], failures)
    if not prepared["fingerprint"] == cold["fingerprint"] == graft["fingerprint"]:
        failures.append("the processes had different fingerprints")
    detected = [row["served"] and row["changed"] for row in graft["controls"]]
    return Proof(
        model=model,
        samples=len(expected),
        sha_equal=sum(row["equal"] for row in rows),
        reused_as_expected=sum(row["as_expected"] for row in rows),
        controls_detected=bool(detected) and all(detected),
        # NaN where one is NaN, which `max` might lose
        kl_max=float(np.max([row["kl"] for row in rows])),
        argmax_agree=sum(row["argmax_equal"] for row in rows) / len(rows),
        rebuilt_equal=rebuilt,
        monolithic=_monolithic(rows),
        fingerprint=graft["fingerprint"],
        controls=graft["controls"],
        failures=failures,
        rows=rows,
        raw_digests={
            name: (digest, cold["raw_digests"].get(name))
            for name, digest in prepared["raw_digests"].items()
        },
    )


def _row(
    folder: Path,
    number: int,
    cold: dict[str, Any],
    graft: dict[str, Any],
    wanted: dict[str, Any],
    block: int,
) -> dict[str, Any]:
    """What there is to say about one sample; KL in nats."""
    left, right = (np.load(folder / f"{kind}-{number}.npy") for kind in ("cold", "graft"))
    asked = (graft["reused_tokens"], graft["calls_made"])
    return {
        "sample": number,
        "tokens": cold["tokens"],
        "stored": wanted["stored"],
        "cut": cut_kind(wanted["stored"], cold["tokens"], block),
        "reused": graft["reused_tokens"],
        "reused_expected": wanted["reused"],
        "calls": graft["calls_made"],
        "calls_expected": wanted["calls"],
        "as_expected": asked == (wanted["reused"], wanted["calls"]),
        "cold_sha256": cold["sha256"],
        "graft_sha256": graft["sha256"],
        "equal": cold["sha256"] == graft["sha256"],
        "kl": float(kl_divergence(left, right).max()),
        "argmax_equal": bool((left.argmax(axis=1) == right.argmax(axis=1)).all()),
        "monolithic": _monolithic_row(folder / f"monolithic-{number}.npy", left[:1]),
    }


def _monolithic_row(path: Path, planned: np.ndarray) -> dict[str, Any] | None:
    """The next token's logits after the prompt, by one stock call against by the plan."""
    if not path.exists():
        return None
    stock = np.load(path)[None]
    return {
        "max_abs_logit": float(np.abs(stock - planned).max()),
        "kl": float(kl_divergence(stock, planned).max()),
        "argmax_equal": bool(stock.argmax() == planned.argmax()),
    }


def _rebuilt(stored: dict[str, str], again: dict[str, str], failures: list[str]) -> bool:
    """Whether every object that the capturing process stored was made again, bit for bit."""
    different = sorted(name for name in stored if stored[name] != again.get(name))
    failures += [f"rebuilt differently, or not at all: {name}" for name in different]
    return bool(stored) and not different


def kl_divergence(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """KL(left || right) in nats of next-token distributions: logits `[rows, vocab]` -> `[rows]`.

    What `left` excludes (a logit of -inf) adds nothing, whatever `right` says about it.
    """
    first, second = (_log_softmax(x.astype(np.float64)) for x in (left, right))
    with np.errstate(invalid="ignore"):
        terms = np.exp(first) * (first - second)
    divergence: np.ndarray = np.where(np.isneginf(first), 0.0, terms).sum(axis=1)
    return divergence


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    out: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def _monolithic(rows: list[dict[str, Any]]) -> dict[str, float | int | None]:
    """Planned against monolithic, over all samples that have both."""
    seen = [row["monolithic"] for row in rows if row["monolithic"] is not None]
    if not seen:
        return {"samples": 0, "max_abs_logit": None, "kl_max": None, "argmax_flips": None}
    return {
        "samples": len(seen),
        "max_abs_logit": float(np.max([row["max_abs_logit"] for row in seen])),
        # Of nearly equal distributions rounding can make it a hair less than nothing.
        "kl_max": float(np.maximum(0.0, np.max([row["kl"] for row in seen]))),
        "argmax_flips": sum(not row["argmax_equal"] for row in seen),
    }
