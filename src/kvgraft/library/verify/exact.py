"""The verifier `exact`: the answer equals the expected text, character by character."""

from __future__ import annotations

import unicodedata
from typing import Any

from kvgraft.library.verify.base import Case, Verdict, need_expected, summary, without_answer
from kvgraft.library.verify.extract import extract


class ExactVerifier:
    """Passes when the extracted answer, or else the whole text, equals `expected`.

    Both sides are first brought to Unicode NFC and stripped of white space at their ends; nothing
    else is forgiven: not case, not `016` for `16`. Text in another normal form is the same text;
    anything further is a question of meaning, which is for other verifiers.
    """

    name = spec = "exact"
    needs = frozenset({"expected"})
    version = "1"

    def verify(self, case: Case, trace: str) -> Verdict:
        """The verdict on `trace`.

        Raises:
            VerifierError: `case.expected` is None or blank.
        """
        gold = _canonical(need_expected(self.name, case.expected))
        found = extract(trace)
        whole = trace.strip()
        evidence: dict[str, Any] = {"method": "key", "gold": summary(gold)}
        if found is not None and _equal(found.answer, gold):
            evidence |= {"given": summary(found.answer), "rule": found.rule}
            return Verdict(True, "proved", found.answer, self.name, self.version, evidence)
        if _equal(whole, gold):
            evidence |= {"given": summary(whole), "rule": "text"}
            return Verdict(True, "proved", whole, self.name, self.version, evidence)
        if found is None:
            return without_answer(self, trace, evidence)
        evidence |= {"given": summary(found.answer), "rule": found.rule}
        return Verdict(False, "proved", found.answer, self.name, self.version, evidence)

    def close(self) -> None:
        """Nothing is held."""


def _equal(text: str, gold: str) -> bool:
    # Composition shortens a text to a fourth at most. Asked first, because it takes time with the
    # square of a run of combining marks, and a trace may be one long run.
    return len(text) <= 4 * len(gold) and _canonical(text) == gold


def _canonical(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()
