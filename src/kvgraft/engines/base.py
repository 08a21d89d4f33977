"""What an engine is: a frozen model that runs planned calls and shows its state as bytes.

Engines know no stores. They declare what they can do (`Capabilities`); nothing is found out by
trying. `kvgraft.testing.engines` is the conformance suite every engine passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from kvgraft.blob.payload import ChunkPlace
from kvgraft.flops import ModelSize
from kvgraft.identity import Fingerprint
from kvgraft.plan import PlanForm
from kvgraft.state import Role, StateSpec


@dataclass(frozen=True)
class Capabilities:
    """`monolithic`: can run a whole prompt in one call, for comparison. `lanes`: can decode
    several continuations of one context in a batch. `row_logits`: gives the logits of every token
    of a call, not of its last alone."""

    monolithic: bool
    lanes: bool
    row_logits: bool


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. `digest` stands for vocabulary and merges; `template_digest` for the
    chat template, and is "none" where there is none."""

    @property
    def digest(self) -> str:
        """Of everything that turns text into ids."""

    @property
    def template_digest(self) -> str:
        """Of the chat template, or "none"."""

    @property
    def bos_id(self) -> int | None:
        """The id that every prompt begins with, if there is one."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a generation."""

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Special tokens that the text spells are recognised; none are added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out."""

    def render(self, messages: Sequence[Message]) -> str:
        """The chat template applied, ending where the assistant's answer begins.

        Raises:
            UsageError: the model has no chat template.
        """


@runtime_checkable
class Context(Protocol):
    """A live sequence. `length` tokens are in it; `capacity` fit."""

    @property
    def length(self) -> int:
        """Tokens in the context."""

    @property
    def capacity(self) -> int:
        """Tokens that fit."""

    def run(self, ids: np.ndarray, rows: int) -> None:
        """One plan call: append `ids` (uint32 `[count]`), computed in a shape of `rows` rows.

        Raises:
            EngineError: more rows than the capacity has room for.
        """

    def decode(self, token: int) -> None:
        """Append one token in a one-row call at batch 1."""

    def logits(self) -> np.ndarray:
        """Next-token logits after the last token: float32 `[vocab]`, from a one-row head."""

    def call_logits(self) -> np.ndarray:
        """Logits of the last `run`: float32 `[count, vocab]`, one row per token; `[1, vocab]`,
        the last token's, where `capabilities.row_logits` is not declared."""

    def export_views(self, role: Role, place: ChunkPlace) -> list[np.ndarray]:
        """The tensors of the chunk that the last `run` computed, ids apart, in the order of
        `StateSpec.tensors`. Valid until the next call."""

    def import_views(self, role: Role, place: ChunkPlace, length: int) -> list[np.ndarray]:
        """Writable buffers for a chunk, on the way to a restored context of `length` tokens.
        What is written stays invisible until `commit`."""

    def commit(self, length: int) -> None:
        """Make an imported state of `length` tokens the context's own."""

    def fork(self, lanes: int, new_tokens: int) -> Lanes:
        """`lanes` continuations of this context with room for `new_tokens` each. The context
        itself is left as it is."""

    def close(self) -> None:
        """Give the buffers back. Idempotent; the context is unusable afterwards."""


@runtime_checkable
class Lanes(Protocol):
    """Continuations that are decoded together. Their bits are not batch 1's, and never stored."""

    @property
    def count(self) -> int:
        """Lanes still running."""

    def logits(self) -> np.ndarray:
        """float32 `[lanes, vocab]`."""

    def step(self, tokens: np.ndarray) -> None:
        """Append one token to every lane: int64 `[lanes]`."""

    def keep(self, lanes: Sequence[int]) -> None:
        """Go on with these lanes only, in this order."""

    def close(self) -> None:
        """Give the buffers back. Idempotent."""


@runtime_checkable
class Engine(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str:
        """Of the engine: toy, transformers."""

    @property
    def model(self) -> str:
        """The model as it was named."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Everything that changes the bytes of its states."""

    @property
    def spec(self) -> StateSpec:
        """Its layers."""

    @property
    def model_size(self) -> ModelSize | None:
        """What a token is multiplied with, for model FLOPs; None where that is not known."""

    @property
    def form(self) -> PlanForm:
        """How it wants prompts to be computed."""

    @property
    def context_tokens(self) -> int:
        """The longest context."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""

    def open_context(self, capacity: int) -> Context:
        """An empty context with room for `capacity` tokens (at most `context_tokens`)."""

    def monolithic_logits(self, ids: np.ndarray) -> np.ndarray:
        """Next-token logits float32 `[vocab]` of a prompt run in one stock call, without the
        plan; only where `capabilities.monolithic` says so.

        Raises:
            EngineError: the engine does not declare it.
        """

    def close(self) -> None:
        """Release the model. Idempotent."""
