"""Whether a family of the catalogue is exact: a cold process, a grafted one, and a verdict.

`capture` and `graft` each build the model anew and write what they saw into the same folder; run
them in processes of their own. `verdict` compares. A family is

- *exact* if, resumed at each of five points, it gave the bits of a run without any store, made the
  calls that the plan leaves and no other, and showed a wrong bit in any restored tensor;
- *refused* if the engine says that it does not carry it;
- *wrong* if anything else happened.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from kvgraft.engines.base import Context, Engine
from kvgraft.errors import UnsupportedModel
from kvgraft.plan import Call, plan_calls
from kvgraft.reuse import Keep, ReuseReport, compute_prompt
from kvgraft.store.check import open_local
from kvgraft.store.chunks import ChunkStore
from kvgraft.testing.families import FAMILIES
from kvgraft.testing.family_controls import PLACES, WrongBit, restored_tensors
from kvgraft.testing.family_engine import (
    FAR_BLOCKS,
    FORM,
    TOKENS,
    described,
    engine_of,
    prompt_ids,
    resume_points,
)

STEPS = 4
COLD, GRAFT = "cold.json", "graft.json"
_FOUND = ("layers", "plan", "token_bytes", "point_bytes")


@dataclass(frozen=True)
class FamilyResult:
    """What came out for one family and dtype; `reason` says why it is not exact, `layers` and
    `plan` what the engine found. `token_bytes`: by layer kind, what every token adds.
    `point_bytes`: what a point needs beside that, windows and states. `controls`: restored
    tensors in which one wrong bit changed the digest; `quiet`: where it did not, though it did at
    another point (attention that chooses among tokens may not look there)."""

    name: str
    dtype: str
    status: str
    reason: str = ""
    layers: str = ""
    plan: str = ""
    token_bytes: dict[str, int] = field(default_factory=dict)
    point_bytes: dict[str, int] = field(default_factory=dict)
    controls: int = 0
    quiet: tuple[str, ...] = ()


# --- the two processes ------------------------------------------------------------------------


def capture(name: str, dtype: str, folder: Path) -> None:
    """The cold process: digests of a run without a store, and a store for every point."""
    _write(folder / COLD, _guarded(_capture, name, dtype, folder))


def graft(name: str, dtype: str, folder: Path) -> None:
    """The grafted process: digests of runs that resume at the points, and of the controls."""
    _write(folder / GRAFT, _guarded(_graft, name, dtype, folder))


def _write(path: Path, seen: dict[str, Any]) -> None:
    path.write_text(json.dumps(seen, indent=1), encoding="utf-8")


def _guarded(
    check: Callable[[Engine, Path], dict[str, Any]], name: str, dtype: str, folder: Path
) -> dict[str, Any]:
    """What was seen, or why nothing was: whatever a model does is a result."""
    try:
        engine = engine_of(name, dtype)
    except UnsupportedModel as error:
        return {"refused": error.what}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    with closing(engine):
        found = described(engine)
        try:
            return {**found, **check(engine, folder)}
        except Exception as error:
            return {**found, "failed": f"{type(error).__name__}: {error}"}


def _capture(engine: Engine, folder: Path) -> dict[str, Any]:
    ids = prompt_ids()
    cold = _observe(engine, None, ids)
    failed = []
    for point in resume_points(engine.spec, engine.form.block):
        with closing(open_local(_store_of(folder, point))) as store:
            keep = Keep.ALL if point == len(ids) else Keep.BLOCKS
            computed = compute_prompt(engine, store, ids[:point], keep=keep)
            computed.context.close()
            if computed.report.capture_error or computed.report.drifted:
                failed.append(f"{point}: {computed.report.capture_error or 'drifted'}")
    return {"points": _cold_points(engine, cold), "finite": cold.finite, "capture": failed}


def _graft(engine: Engine, folder: Path) -> dict[str, Any]:
    ids = prompt_ids()
    points: dict[str, Any] = {}
    controls: dict[str, Any] = {}
    noticed: set[str] = set()
    for point in resume_points(engine.spec, engine.form.block):
        with closing(open_local(_store_of(folder, point))) as store:
            seen = _observe(engine, store, ids)
            digest, report = seen.sha256(point), seen.report
            points[str(point)] = {
                "sha256": digest,
                "reused_tokens": report.reused_tokens,
                "calls_made": report.calls_made,
                "misses": report.misses,
            }
            if point >= FAR_BLOCKS * engine.form.block:
                tensors = restored_tensors(engine.spec, whole=point == len(ids))
                left = [tensor for tensor in tensors if tensor not in noticed]
                controls[str(point)] = _wrong_bits(engine, store, point, digest, left)
                noticed |= {*controls[str(point)]["noticed"]}
    # A model that does not repeat itself would be no fault of the graft.
    again = _cold_points(engine, _observe(engine, None, ids))
    return {"points": points, "controls": controls, "again": again}


def _store_of(folder: Path, point: int) -> Path:
    return folder / f"store-{point}"


# --- what a run shows -------------------------------------------------------------------------


@dataclass
class _Seen:
    """Logits of a run, `calls` by the call's start, and its report."""

    calls: dict[int, np.ndarray]
    steps: list[np.ndarray]
    report: ReuseReport

    def sha256(self, point: int) -> str:
        """Over the logits of every row behind the point, and those of the decoded tokens."""
        digest = hashlib.sha256()
        for start, logits in self.calls.items():
            if start >= point:
                digest.update(np.ascontiguousarray(logits, np.float32).data)
        for logits in self.steps:
            digest.update(np.ascontiguousarray(logits, np.float32).data)
        return digest.hexdigest()

    @property
    def finite(self) -> bool:
        """Whether the logits are numbers: of others, equal bits would say nothing."""
        return all(bool(np.isfinite(one).all()) for one in [*self.calls.values(), *self.steps])


def _observe(engine: Engine, store: ChunkStore | None, ids: np.ndarray) -> _Seen:
    calls: dict[int, np.ndarray] = {}

    def see(call: Call, context: Context) -> None:
        calls[call.start] = context.call_logits()

    computed = compute_prompt(engine, store, ids, keep=Keep.NOTHING, room=STEPS, on_call=see)
    context = computed.context
    try:
        steps = [context.logits()]
        for _ in range(STEPS):
            context.decode(int(np.argmax(steps[-1])))
            steps.append(context.logits())
    finally:
        context.close()
    return _Seen(calls, steps, computed.report)


def _cold_points(engine: Engine, cold: _Seen) -> dict[str, str]:
    points = resume_points(engine.spec, engine.form.block)
    return {str(point): cold.sha256(point) for point in points}


def _wrong_bits(
    engine: Engine, store: ChunkStore, point: int, digest: str, tensors: list[str]
) -> dict[str, list[str]]:
    """Restored tensors by whether one wrong bit in them, somewhere, gives another digest."""
    ids = prompt_ids()
    out: dict[str, list[str]] = {"noticed": [], "unnoticed": []}
    for tensor in tensors:
        for place in range(PLACES):
            wrong = WrongBit(engine, tensor, place)
            seen = _observe(cast(Engine, wrong), store, ids)
            served = wrong.turned == 1 and seen.report.reused_tokens == point
            if served and seen.sha256(point) != digest:
                out["noticed"].append(tensor)
                break
        else:
            out["unnoticed"].append(tensor)
    return out


# --- the verdict ------------------------------------------------------------------------------


def verdict(name: str, dtype: str, folder: Path) -> FamilyResult:
    """What the two processes that wrote into `folder` showed."""
    cold, grafted = (_read(folder / file) for file in (COLD, GRAFT))
    refusals = {seen.get("refused") for seen in (cold, grafted)}
    if len(refusals) == 1 and (reason := refusals.pop()):
        layers = ", ".join(FAMILIES[name].layer_kinds)
        return FamilyResult(name, dtype, "refused", reason, layers)
    wrong = list(_differences(cold, grafted))
    noticed, unnoticed = _controls(grafted)
    return FamilyResult(
        name,
        dtype,
        "wrong" if wrong else "exact",
        "; ".join(wrong),
        **{key: cold[key] for key in _FOUND if key in cold},
        controls=len(noticed),
        quiet=tuple(f"{tensor} at {point}" for point, tensor in unnoticed),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        seen: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"failed": "the process left no result"}
    return seen


def _differences(cold: dict[str, Any], grafted: dict[str, Any]) -> Iterator[str]:
    ended = [
        f"{which}: {seen.get('failed') or seen['refused']}"
        for which, seen in (("cold", cold), ("grafted", grafted))
        if "failed" in seen or "refused" in seen
    ]
    if ended:
        yield from ended
        return
    if not cold["finite"]:
        yield "the logits are not numbers, so that equal bits would say nothing"
    yield from (f"not stored at {failure}" for failure in cold["capture"])
    if cold["fingerprint"] != grafted["fingerprint"]:
        yield "the two processes have different fingerprints"
    elif differing := _differing(cold["points"], grafted["again"]):
        yield f"two runs without a store differ behind {differing} tokens"
    if differing := _differing(
        cold["points"], {point: seen["sha256"] for point, seen in grafted["points"].items()}
    ):
        yield f"the logits differ behind {differing} tokens"
    calls = plan_calls(TOKENS, FORM, TOKENS)
    for point, seen in grafted["points"].items():
        left = sum(call.start >= int(point) for call in calls)
        got = seen["reused_tokens"], seen["calls_made"]
        if got != (int(point), left):
            why = "; ".join(seen["misses"])
            yield f"at {point} tokens {got[0]} were reused and {got[1]} calls made: {why}"
    noticed, unnoticed = _controls(grafted)
    if not noticed:
        yield "the control was not noticed"
    elif never := sorted({tensor for _, tensor in unnoticed} - {tensor for _, tensor in noticed}):
        yield f"the control was not noticed in {', '.join(never)}"


def _controls(grafted: dict[str, Any]) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """`(point, tensor)` of the wrong bits that changed the digest, and of those that did not."""
    controls = grafted.get("controls", {})
    noticed, unnoticed = (
        [(point, tensor) for point, seen in controls.items() for tensor in seen[which]]
        for which in ("noticed", "unnoticed")
    )
    return noticed, unnoticed


def _differing(one: dict[str, str], other: dict[str, str]) -> str:
    points = [p for p in {**one, **other} if one.get(p) != other.get(p)]
    return ", ".join(points)
