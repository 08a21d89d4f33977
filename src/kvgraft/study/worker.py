"""One process of a study: `python -m kvgraft.study.worker RUN LABEL STEP...`.

It opens one model, checks that it is the registered one, and runs steps. It reads the problems that
the run folder holds, never the data they come from. Progress goes to standard output, a JSON object
a line. `python -m kvgraft.study.worker --fingerprint FILE SPEC` writes what a model is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvgraft.energy import EnergyMeter
from kvgraft.engines.base import Engine
from kvgraft.engines.registry import open_engine
from kvgraft.errors import CheckFailed, InputError, KvgraftError
from kvgraft.evidence.process import tell, tell_progress
from kvgraft.library.attempts import LocalModel, Model
from kvgraft.library.endpoint import EndpointModel, is_endpoint
from kvgraft.store.local import write_whole
from kvgraft.study import conditions, controls
from kvgraft.study.bench import Bench, OnStep
from kvgraft.study.items import read_items
from kvgraft.study.journal import Journal
from kvgraft.study.protocol import ModelSpec, parse_protocol
from kvgraft.study.registration import load_registration

Step = Callable[[Bench, Journal], None]
STEPS: dict[str, Step] = {
    "greedy": conditions.greedy_step,
    "vote": conditions.vote_step,
    "deposit": conditions.deposit_step,
    "library": conditions.library_step,
    "few_shot_text": conditions.few_shot_step,
    "emptied": conditions.emptied_step,
    "shuffled": controls.shuffled_step,
    "wrong_block": controls.wrong_block_step,
    "decoys": controls.decoys_step,
    "always_no": controls.always_no_step,
    "always_yes": controls.always_yes_step,
    "near_misses": controls.near_miss_step,
}
FINGERPRINT = "--fingerprint"
_LAST_ROW_SECONDS = 10.0  # an orphan ends when it cannot tell of a row
OpenEngine = Callable[[ModelSpec], Engine]


def open_model(spec: ModelSpec) -> Engine:
    """The engine of a model here."""
    return open_engine(
        spec.name,
        engine=spec.engine,
        dtype=spec.dtype,
        device=spec.device,
        threads=spec.threads,
        progress=tell_progress,
        say=lambda line: tell({"say": line}),
    )


def identity_of(spec: ModelSpec, opened: OpenEngine = open_model) -> dict[str, Any]:
    """What the registration says of a model. Nothing can be proven of one behind an endpoint."""
    if is_endpoint(spec.name):
        return {"model": spec.name, "fingerprint": None, "fields": None}
    engine = opened(spec)
    try:
        fingerprint = engine.fingerprint
        return {
            "model": engine.model,
            "fingerprint": fingerprint.hex,
            "fields": dict(fingerprint.fields),
        }
    finally:
        engine.close()


def run_steps(
    folder: Path,
    label: str,
    steps: Sequence[str],
    opened: OpenEngine = open_model,
    follow: OnStep = tell_progress,
) -> None:
    """Run the steps that are not finished yet, one after the other.

    Raises:
        InputError: the folder holds no registered study, or no such model.
        CheckFailed: the model is not the registered one, or another process is at work.
    """
    registration = load_registration(folder)
    protocol = parse_protocol(registration.parts["protocol"], "the registered protocol")
    spec = next((one for one in protocol.models if one.label == label), None)
    if spec is None:
        raise InputError("the study has no such model", where=label)
    registered = registration.parts["models"].get(label, {}).get("fingerprint")
    with _alone(folder), _model(spec, opened) as (model, engine):
        if engine is not None and engine.fingerprint.hex != registered:
            raise CheckFailed(
                "the model is not the one that was registered",
                where=label,
                hint="another machine, engine or thread count gives other bits: register anew",
            )
        meter = EnergyMeter(watts=protocol.watts)
        items = tuple(read_items(folder))
        bench = Bench(
            protocol, registration, spec, items, folder, model, engine, meter, follow=follow
        )
        for name in steps:
            journal = bench.journal(name)
            if not journal.finished:
                STEPS[name](bench, journal)
                journal.finish()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time writes results, also where its parent was killed before it."""
    try:
        with FileLock(folder / ".worker.lock").acquire(timeout=_LAST_ROW_SECONDS):
            yield
    except Timeout as error:
        raise CheckFailed(
            "a process of an earlier run is still at work", where=str(folder), hint="wait for it"
        ) from error


@contextmanager
def _model(spec: ModelSpec, opened: OpenEngine) -> Iterator[tuple[Model, Engine | None]]:
    engine = None if is_endpoint(spec.name) else opened(spec)
    model: Model = EndpointModel(spec.name) if engine is None else LocalModel(engine, None)
    try:
        yield model, engine
    finally:
        model.close()


def main(arguments: list[str]) -> int:
    """0, or the error's exit status with the error as JSON."""
    try:
        if arguments[0] == FINGERPRINT:
            spec = ModelSpec(**json.loads(arguments[2]))
            write_whole(Path(arguments[1]), json.dumps(identity_of(spec)).encode())
        else:
            run_steps(Path(arguments[0]), arguments[1], arguments[2:])
    except KvgraftError as error:
        tell({"error": error.as_dict()})
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
