"""The verifier `program`: a program's output agrees with a second derivation. It sees no key."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict, summary
from kvgraft.library.verify.consensus import digest_of, is_strict_winner, tally
from kvgraft.library.verify.derivation import PROGRAM, Derivation, Derivations

AGREEING = 2


class ProgramVerifier:
    """Passes a trace whose answer has at least `agreeing` independent derivations, more than any
    other answer, and one of them a program that computes it.

    An attempt's derivation is what its program prints in the sandbox, or the answer in its text.
    Two programs that are the same but for layout, comments and names are one derivation; texts
    count each, as a model writes them anew. The attempts are the trace and `case.peers`. The grade
    is "agreed": programs of one model can share a misreading. After program-aided language models
    (Gao et al., 2022).

    Raises:
        UsageError: fewer than 2 derivations cannot agree.
    """

    name = "program"
    needs = frozenset({"peers"})

    def __init__(self, agreeing: int = AGREEING, derivations: Derivations | None = None) -> None:
        if agreeing < 2:
            raise UsageError("two derivations at least can agree", where=f"program:{agreeing}")
        self._agreeing = agreeing
        self._derivations = derivations or Derivations()
        self.spec = f"program:{agreeing}"
        # Another Python may print something else.
        self.version = f"4+python-{sys.version_info[0]}.{sys.version_info[1]}+{agreeing}"

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`; its answer is what the program printed, or what the text says.

        Raises:
            SandboxUnavailable: programs cannot be run safely on this system.
        """
        mine, *others = self._derivations.all([trace, *case.peers])
        evidence: dict[str, Any] = {
            "method": "program",
            "agreeing": self._agreeing,
            "attempts": 1 + len(others),
            "peers_sha256": digest_of(case.peers),
            "kind": mine.kind,
        }
        if mine.answer is None or mine.canonical is None:
            evidence["reason"] = summary(mine.reason or "the answer is too long to compare")
            return Verdict(False, "none", None, self.name, self.version, evidence)
        independent = distinct([mine, *others])
        votes = Counter(one.canonical for one in independent if one.canonical is not None)
        computed = sum(
            one.canonical == mine.canonical and one.kind == PROGRAM for one in independent
        )
        evidence |= tally(votes) | {"given": summary(mine.answer), "computed_by_programs": computed}
        passed = (
            votes[mine.canonical] >= self._agreeing
            and computed > 0
            and is_strict_winner(votes, mine.canonical)
        )
        return Verdict(passed, "agreed", mine.answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held: each program's sandbox ended with it."""


def distinct(derivations: list[Derivation]) -> list[Derivation]:
    """Without programs that are one of those before them."""
    seen: set[str] = set()
    out = []
    for one in derivations:
        if one.source is not None:
            if one.source in seen:
                continue
            seen.add(one.source)
        out.append(one)
    return out


def make(argument: str) -> ProgramVerifier:
    """From the number of derivations that have to agree; empty: 2.

    Raises:
        UsageError: not a number, or below 2.
    """
    try:
        agreeing = int(argument) if argument.strip() else AGREEING
    except ValueError:
        raise UsageError("not a number of derivations", where=f"program:{argument}") from None
    return ProgramVerifier(agreeing)
