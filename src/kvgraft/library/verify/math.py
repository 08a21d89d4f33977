"""The verifier `math`: the answer is the same mathematics as the expected one."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

from kvgraft import limits
from kvgraft.errors import MissingExtra
from kvgraft.library.verify.base import Case, Verdict, need_expected, summary, without_answer
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.worker import Worker


class MathVerifier:
    """Compares the extracted answer with `expected`: numbers exactly, the rest by `math-verify`.

    The comparison runs in a worker process, started with the first trace: `seconds` of wall time
    for each trace, `memory_bytes` of address space. One that crashes or passes a limit is replaced,
    and the verdict is a fail whose evidence names the failure.

    Raises:
        MissingExtra: `math-verify` is not installed.
    """

    name = spec = "math"
    needs = frozenset({"expected"})

    def __init__(
        self,
        *,
        seconds: float = limits.MATH_VERIFY_SECONDS,
        memory_bytes: int = limits.MATH_VERIFY_MEMORY_BYTES,
    ) -> None:
        # Looked for and not imported: sympy must not be loaded in this process.
        if importlib.util.find_spec("math_verify") is None:
            raise MissingExtra(
                "the verifier 'math' needs the package math-verify",
                hint="pip install 'kvgraft[math]'",
            )
        packages = ("math-verify", "latex2sympy2_extended", "sympy")
        self._version = "+".join(
            ["2", *(f"{package}-{_version_of(package)}" for package in packages)]
        )
        self._worker = Worker(
            "kvgraft.library.verify.math_compare:load", seconds=seconds, memory_bytes=memory_bytes
        )

    @property
    def version(self) -> str:
        """Ours, and those of the packages that decide."""
        return self._version

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        Raises:
            VerifierError: `case.expected` is None or blank.
        """
        gold = need_expected(self.name, case.expected)
        evidence: dict[str, Any] = {"method": "key", "gold": summary(gold)}
        found = extract(trace)
        if found is None:
            return without_answer(self, trace, evidence)
        evidence |= {"given": summary(found.answer), "rule": found.rule}
        if max(len(gold), len(found.answer)) > limits.MAX_MATH_CHARS:
            evidence |= {"failure": f"an answer is over {limits.MAX_MATH_CHARS:,} characters"}
            return Verdict(False, "none", found.answer, self.name, self.version, evidence)
        reply = self._worker.ask({"gold": gold, "given": found.answer})
        evidence |= {"seconds": round(reply.seconds, 6)}
        if reply.failure is not None:
            evidence |= {"failure": summary(reply.failure)}
            return Verdict(False, "none", found.answer, self.name, self.version, evidence)
        evidence |= {"how": reply.value["how"]}
        passed = reply.value["equal"] is True
        return Verdict(passed, "proved", found.answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Ends the worker process."""
        self._worker.close()


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
