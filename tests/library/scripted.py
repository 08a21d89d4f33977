"""A model that says what a script gives it, over real states in a real store.

The engine is the toy; only its logits are bent towards the next scripted byte. What was said so
far is read out of the model's own memory: the value rows of layer 0 depend on one token each, so
they spell the context. A state that was restored wrongly therefore says something else, or cannot
be read at all; and since the toy's own logits stay underneath, their digest is that of the state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvgraft.engines.toy import ToyContext, ToyEngine, ToyLanes, ToyShape, ToyTokenizer
from kvgraft.identity import Fingerprint
from kvgraft.library.problem import Problem
from kvgraft.library.records import Library
from kvgraft.library.solve import Effort, Outcome, solve_all
from kvgraft.library.verify.base import Case, Verdict, Verifier
from kvgraft.library.verify.exact import ExactVerifier
from kvgraft.library.workspace import PUBLIC, Workspace
from kvgraft.prompt import CUES
from kvgraft.store.check import check_store, open_local
from kvgraft.store.tenants import TenantSalts

LOUD = np.float32(200)  # far above the toy's own logits, which stay within a few units
EOS = chr(257)


def spelled(text: str) -> str:
    """Text as one character for each token id."""
    return "".join(map(chr, ToyTokenizer().encode(text)))


@dataclass
class Line:
    """Behind `cue`, lane n says `says[n]`, batch 1 says `alone`; then the end token."""

    cue: str
    says: list[str]
    alone: str

    def next_token(self, context: str, lane: int | None) -> int | None:
        at = context.rfind(self.cue)
        if at < 0:
            return None
        said = context[at + len(self.cue) :]
        text = (self.alone if lane is None else self.says[lane % len(self.says)]) + EOS
        fits = text.startswith(said) and len(said) < len(text)
        return ord(text[len(said)]) if fits else None


class ScriptedEngine(ToyEngine):
    """Says what `script` holds, the latest line first; without a line, the end token.

    `drift` is added to every logit: an engine that is less deterministic than it declares.
    `forwards` counts rows of forward passes. `fields` replace fields of the fingerprint.
    """

    def __init__(self, seed: int = 0, shape: ToyShape | None = None, **fields: str) -> None:
        super().__init__(seed, shape)
        self.script: list[Line] = []
        self.drift = np.float32(0)
        self.forwards: list[int] = []
        self.fingerprint = Fingerprint.of({**dict(self.fingerprint.fields), **fields})
        self._rows_of_tokens = self._read_alphabet()

    def on(self, cue: str, *says: str, alone: str | None = None) -> None:
        """Behind the text `cue`, lanes say `says` in turn; batch 1 says `alone`, else lane 0's."""
        texts = [spelled(text) for text in says]
        self.script.append(Line(spelled(cue), texts, texts[0] if alone is None else spelled(alone)))

    def on_problem(self, problem: str, *says: str, alone: str | None = None) -> None:
        """What the model says when `problem` is posed."""
        self.on(f"{problem}<eos><assistant>", *says, alone=alone)

    def forward(self, layers: Any, tokens: np.ndarray) -> np.ndarray:
        self.forwards.append(len(tokens))
        return super().forward(layers, tokens)

    def open_context(self, capacity: int) -> ScriptedContext:
        return scripted(super().open_context(capacity), None)

    def _read_alphabet(self) -> np.ndarray:
        rows, block = [], self.form.block
        for start in range(0, 260, block):
            context = super().open_context(block)
            context.run(np.arange(start, min(start + block, 260)), block)
            rows.append(value_rows(context))
            context.close()
        return np.concatenate(rows)

    def spell(self, rows: np.ndarray) -> str:
        """The tokens that layer 0's values stand for."""
        table = self._rows_of_tokens
        away = (rows**2).sum(1)[:, None] - 2 * rows @ table.T + (table**2).sum(1)[None]
        nearest = away.argmin(axis=1)
        assert float(away.min(axis=1).max(initial=0)) < 1e-2, "the state does not spell any text"
        return "".join(map(chr, nearest))

    def next_token(self, text: str, lane: int | None) -> int:
        for line in reversed(self.script):
            if (token := line.next_token(text, lane)) is not None:
                return token
        return ord(EOS)


class ScriptedContext(ToyContext):
    """A context of the scripted engine; `lane` is None at batch 1."""

    lane: int | None
    text = ""  # of the tokens that were read already

    def logits(self) -> np.ndarray:
        engine = self._engine
        assert isinstance(engine, ScriptedEngine)
        logits = super().logits() + engine.drift
        self.text += engine.spell(value_rows(self)[len(self.text) :])
        logits[engine.next_token(self.text, self.lane)] += LOUD
        return logits

    def copy(self, capacity: int) -> ScriptedContext:
        other = scripted(super().copy(capacity), self.lane)
        other.text = self.text
        return other

    def fork(self, lanes: int, new_tokens: int) -> ToyLanes:
        forked = super().fork(lanes, new_tokens)
        for number, context in enumerate(forked._open):
            scripted(context, number)
        return forked


def scripted(context: ToyContext, lane: int | None) -> ScriptedContext:
    context.__class__ = ScriptedContext
    assert isinstance(context, ScriptedContext)
    context.lane = lane
    return context


def value_rows(context: ToyContext) -> np.ndarray:
    """Layer 0's values float32 `[tokens, heads * dim]`: a full layer, so nothing is dropped."""
    layer = context.arena.layers[0]
    return layer.parts[1][0, : layer.rows].reshape(layer.rows, -1).copy()


@dataclass
class Judge:
    """Passes what ends with the expected answer, as `exact` does, and remembers what it saw.

    `before` runs ahead of every verdict and may raise.
    """

    seen: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda trace: None
    name: str = "judge"
    version: str = "1"
    spec: str = "judge"
    needs: frozenset[str] = frozenset({"expected"})

    def verify(self, case: Case, trace: str) -> Verdict:
        self.seen.append(trace)
        self.before(trace)
        verdict = ExactVerifier().verify(case, trace)
        return Verdict(
            verdict.passed, verdict.grade, verdict.answer, self.name, self.version, verdict.evidence
        )

    def close(self) -> None:
        return


QUESTION = "What is 2 + 2?"
SOLUTION = "2 and 2 make 4.\nAnswer: 4"
FOUR = Problem("four", QUESTION, expected="4")


def solving_engine(seed: int = 0, **fields: str) -> ScriptedEngine:
    """An engine that solves `FOUR` in lane 1 of 3 and restates the answer behind the first cue."""
    engine = ScriptedEngine(seed, **fields)
    engine.on_problem(
        QUESTION, "I think it is\nAnswer: 5", SOLUTION, "hm " * 60, alone="Answer: 22"
    )
    engine.on(SOLUTION + CUES[0], " 4\nAnd so on.")
    return engine


@contextlib.contextmanager
def opened(root: Path, engine: ToyEngine, tenant: str = PUBLIC) -> Iterator[Workspace]:
    """What `kvgraft.open` would make of a folder, around an engine that is there already."""
    chunks = open_local(root)
    library = Library.open(root / "library.sqlite3")
    salt = TenantSalts(root / "tenants.json").salt(tenant)
    try:
        yield Workspace(engine, chunks, library, tenant, salt)
    finally:
        library.close()
        chunks.close()


EFFORT = Effort(3, 100)


def run(
    workspace: Workspace,
    *problems: Problem,
    judge: Verifier | None = None,
    effort: Effort = EFFORT,
    **options: Any,
) -> list[Outcome]:
    """Solve `problems` to the end; without any, `FOUR`."""
    return list(solve_all(workspace, problems or (FOUR,), judge or Judge(), effort, **options))


def states(outcomes: list[Outcome]) -> list[str]:
    return [outcome.state for outcome in outcomes]


def sound(workspace: Workspace) -> bool:
    """Whether library and store hold nothing half-written."""
    report = check_store(workspace.chunks)
    return report.ok and not report.unlisted_objects and workspace.library.check() == []
