"""Options that come together: said once, taken by a command as one value.

A group is a frozen dataclass whose fields are options, or groups again. `grouped` shows typer the
fields in the group's place, and gives the command the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

from kvgraft.cli import options


@dataclass(frozen=True)
class EngineOptions:
    """How a model is computed; every one of them may change bits."""

    engine: options.EngineOption = options.Engine.transformers
    dtype: options.DtypeOption = options.Dtype.bfloat16
    device: options.Device = "cpu"
    threads: options.Threads = None
    paranoid: options.Paranoid = False

    def as_dict(self) -> dict[str, Any]:
        """As `kvgraft.engines.registry.open_engine` takes them."""
        return {
            one.name: value.value if isinstance(value, Enum) else value
            for one in fields(self)
            for value in [getattr(self, one.name)]
        }


@dataclass(frozen=True)
class MemoryOptions:
    """A store folder, whose states in it, and how a model is computed over it."""

    store: options.Store = None
    tenant: options.Tenant = "public"
    load: options.LoadOption = options.Load.measured
    computed: EngineOptions = field(default_factory=EngineOptions)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as typer can take it: each parameter that is a group is its options instead."""
    hints = get_type_hints(command, include_extras=True)
    shown: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if (group := _group(hints[name])) is not None:
            groups[name] = group
            shown += _options(group)
        else:
            shown.append(parameter.replace(annotation=hints[name]))

    def taking_options(**given: Any) -> None:
        made = {name: _made(kind, given) for name, kind in groups.items()}
        own = inspect.signature(command).parameters.keys() - groups.keys()
        command(**{name: given[name] for name in own}, **made)

    taking_options.__name__, taking_options.__doc__ = command.__name__, command.__doc__
    taking_options.__module__ = command.__module__
    keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
    # What `inspect.signature` looks at first, and typer through it; a function's type lacks it.
    taking_options.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    taking_options.__annotations__ = {one.name: one.annotation for one in shown}
    return taking_options


def _group(kind: Any) -> type | None:
    """A parameter's type, if it is a group."""
    return kind if isinstance(kind, type) and is_dataclass(kind) else None


def _options(group: type) -> Iterator[inspect.Parameter]:
    """The options of a group, in its order."""
    hints = get_type_hints(group, include_extras=True)
    for one in fields(group):
        if (inner := _group(hints[one.name])) is not None:
            yield from _options(inner)
        else:
            yield inspect.Parameter(
                one.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=one.default,
                annotation=hints[one.name],
            )


def _made(group: type, given: Mapping[str, Any]) -> Any:
    """A group of what was given to its options."""
    hints = get_type_hints(group, include_extras=True)
    values = {
        one.name: given[one.name] if inner is None else _made(inner, given)
        for one in fields(group)
        for inner in [_group(hints[one.name])]
    }
    return group(**values)
