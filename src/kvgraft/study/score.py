"""Is an answer right? The one place where a study meets its key.

An answer is compared by mathematics, as the verifier `math` does: `016` is 16, `\\frac{1}{2}` is
0.5. A text that was cut off by its budget has no answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from kvgraft.errors import InputError
from kvgraft.library.verify.base import Case, Verifier
from kvgraft.library.verify.extract import extract
from kvgraft.library.verify.math import MathVerifier


class Scorer:
    """Compares answers with an opened key. Close it when done.

    Raises:
        MissingExtra: `math-verify` is not installed.
    """

    def __init__(self, key: Mapping[str, str], verifier: Verifier | None = None) -> None:
        self._key = dict(key)
        self._verifier = verifier or MathVerifier()
        self._known: dict[tuple[str, str], bool] = {}

    def right(self, id: str, answer: str | None) -> bool:
        """Whether `answer` is the key's; no answer is not.

        Raises:
            InputError: the key has no such problem; the comparison itself failed.
        """
        if id not in self._key:
            raise InputError("the key has no such problem", where=id)
        if answer is None or not answer.strip():
            return False
        pair = (self._key[id], answer.strip())
        if pair not in self._known:
            self._known[pair] = self._compared(id, *pair)
        return self._known[pair]

    def right_text(self, id: str, text: str, *, finished: bool) -> bool:
        """Whether the answer in a whole text is the key's."""
        found = extract(text) if finished else None
        return self.right(id, found.answer if found else None)

    def _compared(self, id: str, key: str, answer: str) -> bool:
        verdict = self._verifier.verify(Case("", key), f"\\boxed{{{answer}}}")
        if "failure" in verdict.evidence:
            # Neither right nor wrong: a study must not go on as if it were one of them.
            raise InputError(
                f"an answer could not be compared with the key: {verdict.evidence['failure']}",
                where=id,
            )
        return verdict.passed

    def close(self) -> None:
        """Ends the verifier's process."""
        self._verifier.close()

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
