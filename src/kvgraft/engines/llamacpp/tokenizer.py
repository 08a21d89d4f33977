"""A GGUF file's own tokenizer and chat template behind the engine's `Tokenizer` protocol."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import jinja2
import jinja2.ext
import llama_cpp
import regex
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvgraft.engines.base import Message
from kvgraft.engines.llamacpp.model import Model
from kvgraft.errors import EngineError, InputError, UnsupportedModel, UsageError
from kvgraft.identity import digest_json

_NO_TOKEN = -1
# Trained to begin with BOS, whatever their files say.
_BEGIN_WITH_BOS = ("gemma",)
# llama.cpp splits text by patterns before it merges. For these it does so by hand; for all others
# with std::regex, which recurses once per character of a match and overflows the stack: measured,
# 10,000 letters in a row pass and 50,000 end the process.
_SPLIT_BY_HAND = frozenset(
    {
        "chatglm-bpe",
        "command-r",
        "dbrx",
        "llama-bpe",
        "mpt",
        "olmo",
        "qwen2",
        "smollm",
        "stablelm2",
        "starcoder",
    }
)
_LONGEST_RUN = 8192
_LONG_RUN = regex.compile(
    "|".join(
        rf"{kind}{{{_LONGEST_RUN + 1}}}"
        for kind in (r"[\p{L}\p{M}]", r"\p{N}", r"\s", r"[^\s\p{L}\p{N}]")
    )
)


class LlamaTokenizer:
    """`digest` is over every tokenizer entry of the file but the chat template."""

    def __init__(self, model: Model, digest: str) -> None:
        self._model = model
        self.digest = digest
        words = model.words
        if llama_cpp.llama_vocab_type(words) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise UnsupportedModel("the file has no tokenizer", hint="convert the model anew")
        pieces = llama_cpp.llama_vocab_type(words) == llama_cpp.LLAMA_VOCAB_TYPE_SPM
        split = model.metadata("tokenizer.ggml.pre")
        self._any_run = pieces or split in _SPLIT_BY_HAND
        bos = llama_cpp.llama_vocab_bos(words)
        begins = llama_cpp.llama_vocab_get_add_bos(words) or model.architecture.startswith(
            _BEGIN_WITH_BOS
        )
        self.bos_id: int | None = bos if begins and bos != _NO_TOKEN else None
        template = llama_cpp.llama_model_chat_template(model.pointer, None)
        self._template = template.decode("utf-8", "replace") if template else ""
        self.template_digest = digest_json(self._template) if self._template else "none"
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Every id that llama.cpp takes as the end of a generation."""
        words = self._model.words
        return frozenset(
            token
            for token in range(self._model.vocabulary)
            if llama_cpp.llama_vocab_is_eog(words, token)
        )

    def encode(self, text: str) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the text is not Unicode: {error.reason}") from error
        if not self._any_run and len(text) > _LONGEST_RUN and _LONG_RUN.search(text):
            raise InputError(
                f"the text has more than {_LONGEST_RUN} characters of one kind in a row, on which"
                " llama.cpp's tokenizer for this model ends the process",
                hint="break the run, or use the transformers engine",
            )
        room = len(data) + 8
        tokens = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(
            self._model.words, data, len(data), tokens, room, False, True
        )
        if count < 0:
            raise EngineError(f"llama.cpp could not tokenise {len(data)} bytes ({count})")
        return list(tokens[:count])

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._piece(int(token)) for token in ids).decode("utf-8", "replace")

    def _piece(self, token: int) -> bytes:
        if token not in self._pieces:
            if not 0 <= token < self._model.vocabulary:
                raise InputError(f"token id {token}, the model has {self._model.vocabulary}")
            self._pieces[token] = self._spell(token, special=False)
        return self._pieces[token]

    def _spell(self, token: int, *, special: bool) -> bytes:
        """What a token is in text; nothing for special ones unless they are asked for."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            got = llama_cpp.llama_token_to_piece(self._model.words, token, buffer, size, 0, special)
            if got >= 0:
                return buffer.raw[:got]
            size = -got

    def render(self, messages: Sequence[Message]) -> str:
        if not self._template:
            raise UsageError(
                "the model has no chat template",
                hint="use plain text prompts, or an instruction-tuned model",
            )
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            template = _environment().from_string(self._template)
            return template.render(
                messages=turns, add_generation_prompt=True, **self._special_texts()
            )
        except jinja2.TemplateError as error:  # some refuse a system text, or two turns of one side
            raise InputError(
                f"the model's chat template refuses these messages: {error}",
                hint="leave out the system text, or let the sides take turns",
            ) from error

    def _special_texts(self) -> dict[str, str]:
        """The special tokens that templates name, by the names that they use."""
        words = self._model.words
        known = {
            "bos_token": llama_cpp.llama_vocab_bos(words),
            "eos_token": llama_cpp.llama_vocab_eos(words),
            "pad_token": llama_cpp.llama_vocab_pad(words),
        }
        return {
            name: self._spell(token, special=True).decode("utf-8", "replace")
            for name, token in known.items()
            if token != _NO_TOKEN
        }


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> ImmutableSandboxedEnvironment:
    """A template comes with the model and is not trusted: it sees the messages and nothing else.
    The settings are the ones that templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment
