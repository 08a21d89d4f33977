"""The problems of a study: read, sampled, split into groups, and posed.

Solvers get them from a file that is written after the registration and holds no answers, unless
the protocol says that its verifier sees the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvgraft.errors import InputError
from kvgraft.library.problem import Problem
from kvgraft.store.local import write_whole
from kvgraft.study.datasets import checked, data_path, read_dataset, read_hub, sample, split
from kvgraft.study.generate import family_of, generate
from kvgraft.study.protocol import Protocol, SetSpec

RECURRING, HELD_OUT, NEW = "recurring", "held_out", "new"
GROUPS = (RECURRING, HELD_OUT, NEW)
NAME = "problems.json"


@dataclass(frozen=True)
class Item:
    """A problem as it is posed. `group`: deposited and asked again (recurring), of the same family
    but never deposited (held out), or of a set of which nothing is deposited (new)."""

    problem: Problem
    set: str
    family: str
    group: str

    @property
    def id(self) -> str:
        return self.problem.id


def collect(protocol: Protocol, base: Path) -> list[Item]:
    """All problems of a study with their keys, in the order in which they are worked on. `base` is
    the folder that files are named from; what is not there is looked for where data lies.

    Raises:
        InputError, LimitExceeded, MissingExtra, DownloadFailed: a set cannot be read, is too small,
            or has a problem of another one; a problem has no key.
    """
    items: list[Item] = []
    for spec in protocol.sets:
        problems = [
            replace(one, text=one.text + protocol.suffix) for one in _read(spec, protocol, base)
        ]
        if keyless := [one.id for one in problems if not (one.expected or "").strip()]:
            raise InputError(
                f"{len(keyless)} problems have no answer to be scored by, such as {keyless[0]!r}",
                where=spec.name,
            )
        parts = split(problems, spec.deposit_share, protocol.seed, family_of)
        deposited = {one.id for one in parts.deposit}
        for problem in problems:
            group = RECURRING if problem.id in deposited else HELD_OUT
            named = replace(problem, id=f"{spec.name}:{problem.id}")
            family = family_of(problem) or spec.name
            items.append(Item(named, spec.name, family, group if deposited else NEW))
    checked([item.problem for item in items], "the study's problems")
    if not of_group(items, RECURRING):
        raise InputError("nothing would be deposited", hint="raise count or deposit_share")
    return items


def _read(spec: SetSpec, protocol: Protocol, base: Path) -> list[Problem]:
    if spec.families:
        assert spec.count is not None  # a protocol that is read says how many
        return generate(spec.families, spec.count, protocol.seed)
    if spec.hub is not None:
        problems = read_hub(spec.hub, spec.format, split=spec.split, config=spec.config)
    else:
        assert spec.file is not None
        near = base / spec.file
        problems = read_dataset(near if near.is_file() else data_path(spec.file), spec.format)
    return problems if spec.count is None else sample(problems, spec.count, protocol.seed)


def of_group(items: Iterable[Item], *groups: str) -> list[Item]:
    """The items of these groups, in their order."""
    return [item for item in items if item.group in groups]


def write_items(folder: Path, items: Sequence[Item], *, with_key: bool) -> None:
    """Write what solvers read; the answers only `with_key`.

    Raises:
        StoreError: the folder cannot be written.
    """
    rows = [
        {
            "id": item.id,
            "text": item.problem.text,
            "system": item.problem.system,
            "checks": dict(item.problem.checks),
            "set": item.set,
            "family": item.family,
            "group": item.group,
            **({"expected": item.problem.expected} if with_key else {}),
        }
        for item in items
    ]
    text = json.dumps({"with_key": with_key, "problems": rows}, indent=1)
    write_whole(folder / NAME, text.encode())


def read_items(folder: Path) -> list[Item]:
    """What `write_items` wrote.

    Raises:
        InputError: it is not there, or is something else.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return [_item(row) for row in document["problems"]]
    except OSError as error:
        raise InputError(
            f"cannot read the study's problems: {error.strerror}", where=str(path)
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"these are no study's problems: {error!r}", where=str(path)) from error


def _item(row: Any) -> Item:
    problem = Problem(row["id"], row["text"], row.get("expected"), row["system"], row["checks"])
    return Item(problem, row["set"], row["family"], row["group"])
