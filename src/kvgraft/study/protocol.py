"""What a study is: a JSON file that says everything that decides a figure, and nothing else.

Unknown keys are refused, so that a misspelt one cannot silently change a study. What is left out
has the defaults below, and these enter the registration too.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvgraft.decode import Sampling
from kvgraft.errors import InputError, LimitExceeded, UsageError
from kvgraft.library.budget import Budget
from kvgraft.library.endpoint import is_endpoint
from kvgraft.library.ladder import Effort
from kvgraft.limits import MAX_NEW_TOKENS, MAX_PROTOCOL_BYTES, MAX_TRANSFERRED_SOLUTIONS
from kvgraft.study.generate import FAMILIES

BASELINES = ("greedy", "vote", "answer_cache", "similarity_cache", "few_shot_text", "prefix_cache")
CONTROLS = ("emptied", "shuffled", "wrong_block", "decoys", "always_no", "always_yes")
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class ModelSpec:
    """A model and how it is computed. `label` names it in results. One without a `library` runs
    the baselines `greedy` and `vote` alone; a model behind an endpoint can have none."""

    name: str
    label: str
    library: bool = True
    engine: str = "transformers"
    dtype: str = "bfloat16"
    device: str = "cpu"
    threads: int | None = None


@dataclass(frozen=True)
class SetSpec:
    """A problem set: from a `file` (`format` as in `kvgraft.study.datasets`), from a `hub` by id,
    or generated of `families`; a sample of `count`, or all.

    `deposit_share` of each family is deposited and asked again; the rest is held out. With a share
    of 0 the set is new: no problem of it is like what was deposited.
    """

    name: str
    deposit_share: float = 0.5
    count: int | None = None
    file: str | None = None
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    format: str = "kvgraft"
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class SolveSpec:
    """The effort of solving. `ladder` as `kvgraft solve --effort` takes it; `sample` is `attempts`
    samples. The majority vote has `attempts` samples of the same length, whatever the ladder.
    Budgets are for one problem."""

    attempts: int = 8
    max_new_tokens: int = 256
    temperature: float = 0.8
    top_p: float = 0.95
    ladder: str = "sample"
    budget_tokens: int | None = None
    budget_seconds: float | None = None


@dataclass(frozen=True)
class AskSpec:
    """One greedy answer. `solutions`: how many verified solutions stand before a problem that is
    held out, as grafted context or as text. `verified`: answers to held-out problems are judged by
    the study's verifier, if it needs no key: then one attempt is made behind each solution, else
    one behind all. `similarity`: from which edit ratio a similarity cache answers."""

    max_new_tokens: int = 256
    solutions: int = 2
    verified: bool = False
    similarity: float = 0.9


@dataclass(frozen=True)
class Protocol:
    """A whole study. `question`: what it is to find out, in words. `suffix` stands behind every
    problem. `verifier_sees_key`: only with it, the verifier gets the answers; the report says so.
    `control_problems`: on how many deposited problems each control runs. `near_misses`: how many
    problems near misses are made of; 0 for none."""

    name: str
    question: str
    seed: int
    models: tuple[ModelSpec, ...]
    sets: tuple[SetSpec, ...]
    verifier: str
    verifier_sees_key: bool = False
    suffix: str = ""
    solve: SolveSpec = field(default_factory=SolveSpec)
    ask: AskSpec = field(default_factory=AskSpec)
    baselines: tuple[str, ...] = BASELINES
    controls: tuple[str, ...] = CONTROLS
    control_problems: int = 8
    near_misses: int = 0
    watts: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain data, defaults included: the registration's part `protocol`."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain


def read_protocol(path: Path) -> Protocol:
    """The protocol in a JSON file.

    Raises:
        InputError: no such file, not JSON, an unknown or missing key, a value that cannot be.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the protocol: {error.strerror}", where=str(path)) from error
    if len(data) > MAX_PROTOCOL_BYTES:
        raise InputError(f"a protocol is over {MAX_PROTOCOL_BYTES:,} bytes", where=str(path))
    try:
        document = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the protocol is not JSON: {error}", where=str(path)) from None
    return parse_protocol(document, str(path))


def parse_protocol(document: Any, where: str = "protocol") -> Protocol:
    """The protocol in plain data.

    Raises:
        InputError: as `read_protocol`.
    """
    made = _read(Protocol, document, where)
    _check(made, where)
    return made


_Need = Callable[[bool, str], None]


def _check(protocol: Protocol, where: str) -> None:
    def need(holds: bool, what: str) -> None:
        if not holds:
            raise InputError(what, where=where)

    need(bool(protocol.name.strip() and protocol.question.strip()), "name and question are text")
    need(0 <= protocol.seed < 2**63, "a seed is a number from 0 to 2**63 - 1")
    for kind, labels in (
        ("models", [model.label for model in protocol.models]),
        ("sets", [one.name for one in protocol.sets]),
    ):
        need(0 < len(labels) == len(set(labels)), f"{kind} are one or more, each with its own name")
        bad = [label for label in labels if not _LABEL.fullmatch(label)]
        need(not bad, f"a name is made of a-z, 0-9 and ._-, and not {bad}")
    for given, known in ((protocol.baselines, BASELINES), (protocol.controls, CONTROLS)):
        strangers = sorted(set(given) - set(known))
        need(not strangers, f"there is no {', '.join(strangers)}; choose from {', '.join(known)}")
    need(0 <= protocol.control_problems <= 1_000, "control_problems are 0 to 1,000")
    need(0 <= protocol.near_misses <= 1_000, "near_misses are made of 0 to 1,000 problems")
    need(protocol.watts is None or protocol.watts > 0, "watts are over 0")
    _check_ask(protocol, need)
    _check_solve(protocol.solve, where)
    for one in protocol.sets:
        _check_set(one, need)
    deposits = any(one.deposit_share > 0 for one in protocol.sets)
    need(deposits, "no set has a deposit_share over 0: nothing would be deposited")
    need(any(model.library for model in protocol.models), "no model has a library")
    for model in protocol.models:
        refused = is_endpoint(model.name) and model.library
        need(not refused, f"{model.label}: a model behind an endpoint has no library")


def _check_ask(protocol: Protocol, need: _Need) -> None:
    ask, most = protocol.ask, MAX_TRANSFERRED_SOLUTIONS
    need(1 <= ask.max_new_tokens <= MAX_NEW_TOKENS, f"max_new_tokens are 1 to {MAX_NEW_TOKENS}")
    need(0 <= ask.solutions <= most, f"solutions in context are 0 to {most}")
    need(0 < ask.similarity <= 1, "similarity is in (0, 1]")
    sees = protocol.verifier_sees_key and ask.verified
    need(not sees, "held-out answers are not judged by a verifier that sees the key")


def _check_solve(solve: SolveSpec, where: str) -> None:
    try:
        sampling = Sampling(solve.temperature, solve.top_p)
        budget = Budget(tokens=solve.budget_tokens, seconds=solve.budget_seconds)
        Effort(solve.attempts, solve.max_new_tokens, sampling, solve.ladder, budget)
    except (UsageError, LimitExceeded) as error:
        raise InputError(error.what, where=f"{where}: solve", hint=error.hint) from error


def _check_set(one: SetSpec, need: _Need) -> None:
    sources = [one.file is not None, one.hub is not None, bool(one.families)]
    need(sum(sources) == 1, f"{one.name}: give one of file, hub and families")
    need(0 <= one.deposit_share <= 1, f"{one.name}: deposit_share is 0 to 1")
    need(one.count is None or one.count > 0, f"{one.name}: count is over 0")
    strangers = sorted(set(one.families) - set(FAMILIES))
    known = ", ".join(FAMILIES)
    need(not strangers, f"{one.name}: no family {', '.join(strangers)}; choose from {known}")
    need(not one.families or one.count is not None, f"{one.name}: how many are generated? (count)")


# --- dataclasses out of plain data --------------------------------------------------------------


def _read(kind: type[_Made], data: Any, where: str) -> _Made:
    """`data` as the dataclass `kind`, each value of the type that its field says."""
    if not isinstance(data, Mapping):
        raise InputError("an object is expected here", where=where)
    fields = {one.name: one for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(data.keys() - fields.keys()):
        raise InputError(
            f"unknown keys {', '.join(unknown)}", where=where, hint=f"known: {', '.join(fields)}"
        )
    needed = [
        one.name
        for one in fields.values()
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in data]:
        raise InputError(f"missing: {', '.join(missing)}", where=where)
    hints = typing.get_type_hints(kind)
    return kind(
        **{name: _value(hints[name], value, f"{where}: {name}") for name, value in data.items()}
    )


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, value, where)
    if isinstance(hint, types.UnionType):  # `X | None`
        return None if value is None else _value(typing.get_args(hint)[0], value, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise InputError("a list is expected here", where=where)
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, one, f"{where}[{n}]") for n, one in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(value)):
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise InputError(f"{words[hint]} is expected here", where=where)
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return data
