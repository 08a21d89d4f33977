"""A transformers tokenizer behind the engine's `Tokenizer` protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blake3 import blake3
from jinja2 import TemplateError

from kvgraft.engines.base import Message
from kvgraft.errors import InputError, UnreadableModel, UsageError
from kvgraft.identity import digest_json


class TransformersTokenizer:
    """`stop_ids` end a generation; `bos_id` is None where the model does not begin with one."""

    def __init__(self, tokenizer: Any, stop_ids: frozenset[int], *, begins_with_bos: bool) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise UnreadableModel(
                "the model's tokenizer has no fast form, so its content has no digest",
                hint="convert it to a tokenizer.json",
            )
        self._tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.bos_id: int | None = tokenizer.bos_token_id if begins_with_bos else None
        self.digest = blake3(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
        self._template = tokenizer.chat_template
        self.template_digest = digest_json(self._template) if self._template else "none"

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(
                list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def render(self, messages: Sequence[Message]) -> str:
        if not self._template:
            raise UsageError(
                "the model has no chat template",
                hint="use plain text prompts, or an instruction-tuned model",
            )
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:  # some refuse a system text, or two turns of one side
            raise InputError(
                f"the model's chat template refuses these messages: {error}",
                hint="leave out the system text, or let the sides take turns",
            ) from error
        return str(text)
