"""The verifier `consensus`: independent attempts agree. It never looks at a key."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from kvgraft.errors import UsageError
from kvgraft.library.verify.base import Case, Verdict, summary, without_answer
from kvgraft.library.verify.canonical import canonical_answer
from kvgraft.library.verify.extract import extract

THRESHOLD, QUORUM = 0.5, 5
SHOWN_ANSWERS, SHOWN_PEERS = 8, 64  # in evidence


class ConsensusVerifier:
    """Passes a trace whose answer is that of more than `threshold` of all attempts, and of more
    than any other answer has, where there were at least `quorum` of them.

    The attempts are the trace and `case.peers`. One without an answer counts in the denominator.
    Answers are one where their canonical forms are (`canonical_answer`). What many attempts of one
    model agree on can still be wrong: the grade is "agreed". After self-consistency (Wang et al.,
    2022).

    Raises:
        UsageError: a threshold outside [0, 1), a quorum below 2.
    """

    name = "consensus"
    needs = frozenset({"peers"})

    def __init__(self, threshold: float = THRESHOLD, quorum: int = QUORUM) -> None:
        if not 0 <= threshold < 1 or quorum < 2:
            raise UsageError(
                "consensus takes a threshold from 0 up to 1, and a quorum of at least 2",
                where=f"consensus:{threshold:g},{quorum}",
                hint=f"consensus:{THRESHOLD:g},{QUORUM} is what 'consensus' means",
            )
        self._threshold, self._quorum = threshold, quorum
        self.spec = f"consensus:{threshold!r},{quorum}"
        self.version = f"3+{threshold!r},{quorum}"

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`. Raises nothing."""
        evidence: dict[str, Any] = {
            "method": "consensus",
            "threshold": self._threshold,
            "quorum": self._quorum,
            "attempts": 1 + len(case.peers),
            "peers_sha256": digest_of(case.peers),
        }
        found = extract(trace)
        mine = None if found is None else canonical_answer(found.answer)
        if found is None:
            return without_answer(self, trace, evidence)
        if mine is None:
            evidence["reason"] = "the answer is too long to compare, or has no content"
            return Verdict(False, "none", None, self.name, self.version, evidence)
        votes = Counter([mine, *filter(None, map(vote, case.peers))])
        evidence |= tally(votes) | {"given": summary(found.answer)}
        share = votes[mine] / (1 + len(case.peers))
        evidence["share"] = round(share, 6)
        passed = (
            1 + len(case.peers) >= self._quorum
            and share > self._threshold
            and is_strict_winner(votes, mine)
        )
        return Verdict(passed, "agreed", found.answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held."""


def vote(trace: str) -> str | None:
    """The canonical answer of a trace, or None."""
    found = extract(trace)
    return None if found is None else canonical_answer(found.answer)


def is_strict_winner(votes: Counter[str], answer: str) -> bool:
    """Whether no other answer has as many votes."""
    return all(count < votes[answer] for other, count in votes.items() if other != answer)


def tally(votes: Counter[str]) -> dict[str, Any]:
    """The votes for evidence: the leading answers, and how many others there are."""
    leading = votes.most_common(SHOWN_ANSWERS)
    return {
        "votes": [[summary(answer), count] for answer, count in leading],
        "other_answers": len(votes) - len(leading),
    }


def digest_of(traces: Iterable[str]) -> str:
    """One SHA-256 over texts and their borders."""
    whole = hashlib.sha256()
    for trace in traces:
        whole.update(hashlib.sha256(trace.encode("utf-8", "surrogatepass")).digest())
    return whole.hexdigest()


def make(argument: str) -> ConsensusVerifier:
    """From `THRESHOLD` or `THRESHOLD,QUORUM`; empty: the defaults.

    Raises:
        UsageError: not numbers, or out of range.
    """
    first, _, second = argument.partition(",")
    try:
        threshold = float(first) if first.strip() else THRESHOLD
        quorum = int(second) if second.strip() else QUORUM
    except ValueError as error:
        raise UsageError(
            f"not a threshold and a quorum: {error}", where=f"consensus:{argument}"
        ) from None
    return ConsensusVerifier(threshold, quorum)
