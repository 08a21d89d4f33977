"""What an OpenAI-compatible server sent back: a chat completion, or nothing that is one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kvgraft import limits
from kvgraft.meter import Cost


@dataclass(frozen=True)
class Completion:
    """`texts`, each with whether it came to its end; tokens as the server counts them, None where
    it does not."""

    texts: tuple[tuple[str, bool], ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    decode_tokens: int | None

    @property
    def cost(self) -> Cost:
        """Its tokens; what the server had cached it did not compute."""
        prompt, cached = self.prompt_tokens, self.cached_tokens
        return Cost(
            prefill_tokens=None if prompt is None else prompt - (cached or 0),
            reused_tokens=cached,
            decode_tokens=self.decode_tokens,
        )


def parse_completion(body: bytes, wanted: int) -> Completion:
    """The first `wanted` choices of a chat completion.

    Raises:
        ValueError: the body is none.
    """
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ValueError("it holds no choices")
    texts = tuple(map(_text, choices[:wanted]))
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    prompt = _tokens(usage.get("prompt_tokens"))
    cached = _tokens(details.get("cached_tokens")) if isinstance(details, dict) else None
    if prompt is None or (cached or 0) > prompt:
        cached = None
    return Completion(texts, prompt, cached, _tokens(usage.get("completion_tokens")))


def _text(choice: Any) -> tuple[str, bool]:
    """A choice's text, and whether it came to its end by itself."""
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise ValueError("a choice holds no message")
    text = message.get("content")
    if text is None:
        return "", False  # it called a tool, or refused
    if not isinstance(text, str):
        raise ValueError("a message is not text")
    whole = len(text) <= limits.MAX_TRACE_CHARS
    # Half a pair of surrogates is valid JSON, but no text.
    units = text[: limits.MAX_TRACE_CHARS].encode("utf-16", "surrogatepass")
    return units.decode("utf-16", "replace"), whole and choice.get("finish_reason") == "stop"


def _tokens(value: Any) -> int | None:
    counted = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if counted else None
