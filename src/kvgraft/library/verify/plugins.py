"""Verifiers of other packages: the entry-point group `kvgraft.verifiers`.

An entry point `NAME = "module:make"` names a function that makes a verifier from what stands behind
`NAME:` in a spec. What it makes is not trusted to keep the protocol: an exception, or a value that
is no verdict, is a fail.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from kvgraft.errors import KvgraftError, UsageError, VerifierError
from kvgraft.library.verify.base import Case, Verdict, Verifier, summary

GROUP = "kvgraft.verifiers"


class PluginVerifier:
    """A verifier of another package, its errors made verdicts."""

    def __init__(self, inner: Verifier, spec: str) -> None:
        self._inner = inner
        self.name, self.spec = spec.partition(":")[0], spec
        self.needs = frozenset(inner.needs)
        self.version = str(inner.version)

    def verify(self, case: Case, trace: str) -> Verdict:
        """The plug-in's verdict; a fail of grade "none" where it has none.

        Raises:
            VerifierError: the plug-in raised one.
        """
        try:
            verdict = self._inner.verify(case, trace)
        except VerifierError:
            raise
        except Exception as error:
            return self._failed(f"{type(error).__name__}: {error}")
        if type(verdict) is not Verdict:
            return self._failed(f"it returned {type(verdict).__name__}, not a verdict")
        return verdict

    def close(self) -> None:
        """Closes the plug-in."""
        self._inner.close()

    def _failed(self, failure: str) -> Verdict:
        evidence = {"method": "plug-in", "failure": summary(failure)}
        return Verdict(False, "none", None, self.name, self.version, evidence)


def plugins(built_in: frozenset[str]) -> dict[str, EntryPoint]:
    """The entry points by name. A name that is built in, or that two packages give, is nobody's."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return {
        name: points[0]
        for name, points in sorted(found.items())
        if name not in built_in and len({point.value for point in points}) == 1
    }


def make_plugin(spec: str, built_in: frozenset[str]) -> PluginVerifier:
    """The verifier that a plug-in makes of `spec`.

    Raises:
        UsageError: there is none of that name, or it cannot be loaded, or makes no verifier.
    """
    name, _, argument = spec.partition(":")
    known = plugins(built_in)
    if name not in known:
        names = ", ".join([*sorted(built_in), *known])
        raise UsageError(f"there is no verifier {name!r}", where=spec, hint=f"choose from {names}")
    where = f"{spec}, entry point {known[name].value}"
    try:
        make: Callable[[str], Verifier] = known[name].load()
        inner = make(argument)
        return PluginVerifier(inner, spec)
    except KvgraftError:
        raise
    except Exception as error:
        raise UsageError(
            f"the verifier {name!r} cannot be made: {type(error).__name__}: {error}",
            where=where,
            hint="it comes from another package: see its documentation",
        ) from error
