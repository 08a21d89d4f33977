"""Running a study: collect, register, run what is missing. Everything can be stopped and resumed.

Each phase of a model is a process of its own, so that what is asked is asked by a process that
deposited nothing. Results are kept as they come.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from kvgraft.errors import CheckFailed, InputError
from kvgraft.evidence.process import Say, run_module
from kvgraft.library.verify.specs import make_verifier
from kvgraft.store.local import store_error
from kvgraft.study import items as study_items
from kvgraft.study.bench import OnStep, open_journal
from kvgraft.study.items import GROUPS, Item, collect, of_group, write_items
from kvgraft.study.protocol import ModelSpec
from kvgraft.study.protocol import Protocol as Plan
from kvgraft.study.registration import (
    NAME,
    Registration,
    code_part,
    data_part,
    load_registration,
    register,
)
from kvgraft.study.worker import FINGERPRINT

WORKER = "kvgraft.study.worker"
# Baselines and controls that take a step, by that step's name.
_BASELINE_STEPS = {"few_shot_text": "few_shot_text", "prefix_cache": "emptied"}


class Runner(Protocol):
    """How models are opened and steps are run: in processes of their own, or here in a test."""

    def identity(self, spec: ModelSpec, follow: OnStep) -> dict[str, Any]:
        """As `worker.identity_of`."""

    def run(self, folder: Path, label: str, steps: Sequence[str], follow: OnStep) -> None:
        """As `worker.run_steps`."""


@dataclass(frozen=True)
class Processes:
    """Each call is a process of its own; what it says goes to `say`."""

    say: Say = lambda line: None

    def identity(self, spec: ModelSpec, follow: OnStep) -> dict[str, Any]:
        """As `worker.identity_of`."""
        with tempfile.TemporaryDirectory(prefix="kvgraft-study-") as folder:
            file = Path(folder) / "identity.json"
            run_module(WORKER, [FINGERPRINT, str(file), json.dumps(asdict(spec))], follow, self.say)
            identity: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return identity

    def run(self, folder: Path, label: str, steps: Sequence[str], follow: OnStep) -> None:
        """As `worker.run_steps`."""
        run_module(WORKER, [str(folder), label, *steps], follow, self.say)


def phases(plan: Plan, model: ModelSpec) -> list[list[str]]:
    """The steps of a model, in the processes that they are run in."""
    first = ["greedy", *(["vote"] if "vote" in plan.baselines else [])]
    if not model.library:
        return [first]
    asked = ["library"]
    asked += [step for name, step in _BASELINE_STEPS.items() if name in plan.baselines]
    asked += [name for name in plan.controls if name not in asked]
    if plan.near_misses:
        asked.append("near_misses")
    return [[*first, "deposit"], asked]


def run_study(
    plan: Plan,
    folder: Path,
    *,
    base: Path,
    resume: bool = False,
    runner: Runner | None = None,
    follow: OnStep = lambda words, done, total: None,
    say: Say = lambda line: None,
) -> Registration:
    """Register the study in `folder` and run it to its end. `base`: where its files are named from.

    Raises:
        InputError, MissingExtra, DownloadFailed, UsageError: the protocol's data or verifier.
        CheckFailed: the folder holds another study, or this one, and `resume` is not said.
        UnknownModel, UnreadableModel, ...: a model cannot be opened.
        StoreError: the folder cannot be written, or another process is at work in it.
    """
    runner = runner or Processes(say)
    items = collect(plan, base)
    code = {**code_part(), "verifier_version": _verifier_version(plan)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error(error, folder, "making the study's folder") from error
    lock = FileLock(folder / ".lock")
    try:
        with lock.acquire(timeout=0):
            models = _models(plan, folder, resume, runner, follow)
            registration = register(folder, _parts(plan, items, code, models))
            if not (folder / study_items.NAME).exists():
                write_items(folder, items, with_key=plan.verifier_sees_key)
            _run_missing(plan, folder, registration, runner, follow)
            return registration
    except Timeout as error:
        raise CheckFailed(
            "another process is running this study", where=str(folder), hint="wait for it"
        ) from error


def _parts(
    plan: Plan, items: Sequence[Item], code: dict[str, str], models: dict[str, Any]
) -> dict[str, Any]:
    splits = {name: [item.problem for item in of_group(items, name)] for name in GROUPS}
    data = data_part([item.problem for item in items], **splits)
    return {"protocol": plan.as_dict(), "data": data, "code": code, "models": models}


def _models(
    plan: Plan, folder: Path, resume: bool, runner: Runner, follow: OnStep
) -> dict[str, Any]:
    """What each model is: as registered (each process compares), else as it is now."""
    if not (folder / NAME).exists():
        return {model.label: runner.identity(model, follow) for model in plan.models}
    if not resume:
        raise CheckFailed(
            "the folder holds a registered study",
            where=str(folder),
            hint="--resume goes on with it; another study needs another folder",
        )
    models: dict[str, Any] = load_registration(folder).parts["models"]
    return models


def _verifier_version(plan: Plan) -> str:
    verifier = make_verifier(plan.verifier)
    try:
        if "expected" in verifier.needs and not plan.verifier_sees_key:
            raise InputError(
                f"the verifier {verifier.name!r} compares with the key",
                where="verifier",
                hint='choose one that needs no key, or say "verifier_sees_key": true',
            )
        return verifier.version
    finally:
        verifier.close()


def _run_missing(
    plan: Plan, folder: Path, registration: Registration, runner: Runner, follow: OnStep
) -> None:
    for model in plan.models:
        for steps in phases(plan, model):
            todo = [
                step
                for step in steps
                if not open_journal(folder, model.label, step, registration).finished
            ]
            if todo:
                runner.run(folder, model.label, todo, follow)
