"""Verifiers of other packages: the entry-point group `kvgraft.verifiers`.

An entry point `NAME = "module:make"` names a function that makes a verifier from what stands behind
`NAME:` in a spec. What it makes is not trusted to keep the protocol: an exception, or a value that
is no verdict, is a fail.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points

from kvgraft import limits
from kvgraft.errors import KvgraftError, UsageError, VerifierError
from kvgraft.library.verify.base import Case, Verdict, Verifier, summary

GROUP = "kvgraft.verifiers"


class PluginVerifier:
    """A verifier of another package, its errors made verdicts."""

    def __init__(self, inner: Verifier, spec: str) -> None:
        self._inner = inner
        self.name, self.spec = spec.partition(":")[0], spec
        self.needs = frozenset(map(str, inner.needs))
        self.version = str(inner.version)
        for method in ("verify", "close"):
            if not callable(getattr(inner, method)):
                raise TypeError(f"its {method!r} cannot be called")

    def verify(self, case: Case, trace: str) -> Verdict:
        """The plug-in's verdict; a fail of grade "none" where it has none.

        Raises:
            VerifierError: the plug-in says so, and the case lacks something that it needs.
        """
        try:
            # A copy: what it changes there stays its own.
            checks = copy.deepcopy(dict(case.checks))
            verdict = self._inner.verify(dataclasses.replace(case, checks=checks), trace)
        except (Exception, SystemExit) as error:
            if isinstance(error, VerifierError) and self._lacks_something(case):
                raise
            return self._failed(_described(error))
        if type(verdict) is not Verdict or type(verdict.passed) is not bool:
            return self._failed(f"it returned {type(verdict).__name__}, not a verdict")
        answer: object = verdict.answer
        if answer is not None and not _is_answer(answer):
            return self._failed(f"its answer is no text of {limits.MAX_ANSWER_CHARS:,} characters")
        # It speaks for itself only.
        evidence = copy.deepcopy(verdict.evidence)  # which it may go on writing to
        return dataclasses.replace(
            verdict, verifier=self.name, version=self.version, evidence=evidence
        )

    def close(self) -> None:
        """Closes the plug-in. Raises nothing."""
        with contextlib.suppress(Exception):
            self._inner.close()

    def _lacks_something(self, case: Case) -> bool:
        given = {"expected": case.expected, "peers": case.peers}
        has = {*case.checks, *(name for name, value in given.items() if value)}
        return not self.needs <= has

    def _failed(self, failure: str) -> Verdict:
        evidence = {"method": "plug-in", "failure": summary(failure)}
        return Verdict(False, "none", None, self.name, self.version, evidence)


def _is_answer(value: object) -> bool:
    return isinstance(value, str) and len(value) <= limits.MAX_ANSWER_CHARS


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # its text is made by the plug-in too
        return type(error).__name__


def plugins(built_in: Collection[str]) -> dict[str, EntryPoint]:
    """The entry points by name. One that is built in is no plug-in's, and one that is given twice
    with different values nobody's."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return {
        name: points[0]
        for name, points in sorted(found.items())
        if name not in built_in and len({point.value for point in points}) == 1
    }


def make_plugin(spec: str, built_in: Collection[str]) -> PluginVerifier:
    """The verifier that a plug-in makes of `spec`.

    Raises:
        UsageError: there is none of that name, or it cannot be loaded, or makes no verifier.
    """
    name, _, argument = spec.partition(":")
    known = plugins(built_in)
    if name not in known:
        names = ", ".join([*built_in, *known])
        rivals = [point.value for point in entry_points(group=GROUP, name=name)]
        what = f"there is no verifier {name!r}"
        if rivals:
            what = f"the verifier {name!r} is given by two packages: {', '.join(sorted(rivals))}"
        raise UsageError(what, where=spec, hint=f"choose from {names}")
    where = f"{spec}, entry point {known[name].value}"
    try:
        make: Callable[[str], Verifier] = known[name].load()
        inner = make(argument)
        return PluginVerifier(inner, spec)
    except KvgraftError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the verifier {name!r} cannot be made: {_described(error)}",
            where=where,
            hint="it comes from another package: see its documentation",
        ) from error
