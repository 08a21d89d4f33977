"""Everything a report shows, collected as plain data: JSON in, JSON out, nothing rounded.

`collect` measures; `load` takes what an earlier report wrote, and judges it again from its counts,
not from what it says of itself. `kvgraft.evidence.report_page` makes the page of either.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import Any

from kvgraft.engines.base import Engine
from kvgraft.engines.registry import open_engine
from kvgraft.errors import InputError, UnsupportedModel, UsageError
from kvgraft.evidence.measure import check_lengths, measure
from kvgraft.evidence.probe import probe
from kvgraft.evidence.process import Progress, Say
from kvgraft.evidence.prove import Proof, prove
from kvgraft.identity import Fingerprint
from kvgraft.state import Role

FORMAT = "kvgraft-report-1"
NOT_ASKED = "it was not asked for (--no-probe)"


@dataclass(frozen=True)
class Wanted:
    """What a report is made of. Without `lengths` or `offsets`: what fits the model's context.

    `options` go to the engine.
    """

    model: str
    samples: int = 50
    seed: int = 0
    lengths: Sequence[int] | None = None
    offsets: Sequence[int] | None = None
    probe: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def collect(
    wanted: Wanted,
    *,
    environment: Sequence[Mapping[str, str]],
    command: str,
    version: str,
    progress: Progress = lambda stage, done, total: None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """Measure and prove. `environment` (`name`, `state`, `detail`), the `command` that repeats it
    and kvgraft's `version` are carried along.

    What would be refused is refused before the long work.

    Raises:
        UsageError: fewer than 5 samples; lengths or offsets that the model's context does not hold.
        KvgraftError: the model cannot be opened, or what the parts raise.
    """
    if wanted.samples < 5:
        raise UsageError("a proof takes at least 5 samples")
    engine = open_engine(wanted.model, progress=progress, say=say, **wanted.options)
    try:
        if wanted.lengths is not None:
            check_lengths(engine, wanted.lengths)
        moved, reason = _probed(engine, wanted, progress)
        lengths = [at.as_dict() for at in measure(engine, wanted.lengths, progress=progress)]
        described, fingerprint = _described(engine), engine.fingerprint
    finally:
        engine.close()
    proof = prove(
        wanted.model,
        samples=wanted.samples,
        seed=wanted.seed,
        options=dict(wanted.options),
        progress=progress,
    )
    if proof.fingerprint != dict(fingerprint.fields):
        proof.failures.append("the figures were measured under another fingerprint")
    data = {
        "format": FORMAT,
        "passed": proof.passed,
        "model": wanted.model,
        "made_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "kvgraft": version,
        "command": command,
        "engine": described,
        "proof": {**proof.as_dict(), "raw_digests": proof.raw_digests},
        "lengths": lengths,
        "probe": moved,
        "probe_reason": reason,
        "environment": [dict(line) for line in environment],
        "fingerprint": proof.fingerprint,
        "fingerprint_digest": Fingerprint.of(proof.fingerprint).hex,
    }
    plain: dict[str, Any] = _plain(data)
    return plain


def _probed(
    engine: Engine, wanted: Wanted, progress: Progress
) -> tuple[dict[str, Any] | None, str]:
    """The probe, or why there is none."""
    if not wanted.probe:
        return None, NOT_ASKED
    try:
        found = probe(engine, wanted.offsets, seed=wanted.seed, progress=progress)
    except UnsupportedModel as error:
        return None, error.what
    except UsageError as error:
        if wanted.offsets is not None:
            raise
        return None, error.what  # a context too short for any of the usual offsets
    return found.as_dict(), ""


def _described(engine: Engine) -> dict[str, Any]:
    spec = engine.spec
    kinds = Counter(layer.kind.value for layer in spec.layers)
    growing: Counter[str] = Counter()
    for layer in spec.layers:
        if layer.role is Role.KEEP:
            growing[layer.kind.value] += layer.token_bytes
    return {
        "name": engine.name,
        "block": engine.form.block,
        "context_tokens": engine.context_tokens,
        "layers": dict(kinds),
        "layers_with_states": sum(bool(layer.states) for layer in spec.layers),
        "dtypes": list(spec.dtypes),
        "growing_bytes_per_token": dict(growing),
    }


def _plain(value: Any) -> Any:
    """`value` with what JSON has no word for spelled out."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def to_json(data: Mapping[str, Any]) -> str:
    """The raw data as a page carries it and `load` takes it."""
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def load(text: str) -> dict[str, Any]:
    """The data of an earlier report, `passed` judged anew.

    Raises:
        InputError: not such data.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"it is not marked as {FORMAT}")
        data.pop("error", None)  # beside what `kvgraft report --json` prints of a failed proof
        proof = data["proof"]
        for name in ("kl_max", "argmax_agree"):
            float(proof[name])
        data["passed"] = proof["passed"] = _proof(proof).passed
        named = Fingerprint.of(data["fingerprint"])
        if data["fingerprint_digest"] != named.hex or proof["fingerprint"] != data["fingerprint"]:
            raise ValueError("the fingerprint is not the one it says")
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"not the data of a report: {error}",
            hint="'kvgraft report MODEL --json' prints it, and every page carries it",
        ) from error
    return data


def _proof(document: Mapping[str, Any]) -> Proof:
    known = {one.name for one in fields(Proof)}
    given = {name: value for name, value in document.items() if name in known}
    given |= {name: float(document[name]) for name in ("kl_max", "argmax_agree")}
    proof = Proof(**given)
    rows, controls = proof.rows, proof.controls
    for row in rows:
        row["equal"] = row["cold_sha256"] == row["graft_sha256"]
        expected = (row["reused_expected"], row["calls_expected"])
        row["as_expected"] = (row["reused"], row["calls"]) == expected
    proof.sha_equal = sum(row["equal"] for row in rows)
    proof.reused_as_expected = sum(row["as_expected"] for row in rows)
    # What the counts say must be what the rows say.
    if (proof.samples, proof.sha_equal) != (len(rows), document["sha_equal"]) or (
        proof.reused_as_expected != document["reused_as_expected"]
    ):
        raise ValueError("counts and samples differ")
    detected = [row["served"] and row["changed"] for row in controls]
    proof.controls_detected = bool(detected) and all(detected)
    pairs = proof.raw_digests.values()
    proof.rebuilt_equal = bool(pairs) and all(stored == again for stored, again in pairs)
    return proof
