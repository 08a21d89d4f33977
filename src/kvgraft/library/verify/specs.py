"""Verifiers by their specs: `math`, `regex:PATTERN`, `all:[exact] [program]`, a plug-in's name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Verifier


def _make_math(argument: str) -> Verifier:
    from kvgraft.library.verify.math import MathVerifier

    _no_argument("math", argument)
    return MathVerifier()


def _make_exact(argument: str) -> Verifier:
    from kvgraft.library.verify.exact import ExactVerifier

    _no_argument("exact", argument)
    return ExactVerifier()


def _make_regex(argument: str) -> Verifier:
    from kvgraft.library.verify.regex import RegexVerifier

    return RegexVerifier(argument)


def _make_command(argument: str) -> Verifier:
    from kvgraft.library.verify.command import CommandVerifier

    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"cannot split the command: {error}", where=argument) from error
    return CommandVerifier(words)


def _make_code(argument: str) -> Verifier:
    from kvgraft.library.verify import code

    return code.make(argument)


def _make_consensus(argument: str) -> Verifier:
    from kvgraft.library.verify import consensus

    return consensus.make(argument)


def _make_program(argument: str) -> Verifier:
    from kvgraft.library.verify import program

    return program.make(argument)


def _make_schema(argument: str) -> Verifier:
    from kvgraft.library.verify.json_schema import SchemaVerifier

    _no_argument("schema", argument)
    return SchemaVerifier()


def _make_substitute(argument: str) -> Verifier:
    from kvgraft.library.verify.substitute import SubstituteVerifier

    _no_argument("substitute", argument)
    return SubstituteVerifier()


def _make_all(argument: str) -> Verifier:
    from kvgraft.library.verify import combine

    return combine.make(combine.AllVerifier, argument, make_verifier)


def _make_any(argument: str) -> Verifier:
    from kvgraft.library.verify import combine

    return combine.make(combine.AnyVerifier, argument, make_verifier)


def _no_argument(name: str, argument: str) -> None:
    if argument:
        raise UsageError(f"the verifier {name!r} takes no argument", where=f"{name}:{argument}")


# Modules are imported when a verifier is made, so that naming one costs nothing.
_MAKERS: Mapping[str, Callable[[str], Verifier]] = {
    "math": _make_math,
    "exact": _make_exact,
    "regex": _make_regex,
    "command": _make_command,
    "code": _make_code,
    "consensus": _make_consensus,
    "program": _make_program,
    "schema": _make_schema,
    "substitute": _make_substitute,
    "all": _make_all,
    "any": _make_any,
}


def make_verifier(spec: str) -> Verifier:
    """The verifier that `spec` names, as docs/VERIFIERS.md lists them: `math`, `regex:PATTERN`, ...

    Raises:
        UsageError: an unknown name, a missing or needless argument, a bad pattern, no such program.
        MissingExtra: the verifier's optional dependency is not installed.
    """
    name, _, argument = spec.partition(":")
    maker = _MAKERS.get(name)
    if maker is not None:
        return maker(argument)
    from kvgraft.library.verify.plugins import make_plugin

    return make_plugin(spec, tuple(_MAKERS))
