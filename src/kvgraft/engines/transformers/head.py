"""The part of a model behind its body: from a final hidden state to logits."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from kvgraft.errors import UnsupportedModel


class Head:
    """The model's own code with its body taken out, whatever it does: scaling, soft caps, bias."""

    def __init__(self, model: nn.Module, body: nn.Module, output: Any) -> None:
        """`body` is a child of `model`; `output` is what it returned once: the head may look for
        any of its fields."""
        self._body = _FixedBody(body, type(output))
        (name,) = (name for name, child in model.named_children() if child is body)
        # A shallow copy: it shares every weight and every setting with the model.
        self._rest = copy.copy(model)
        self._rest.__dict__["_modules"] = {**model._modules, name: self._body}

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[lanes, rows, vocab]` of final hidden states `[lanes, rows, hidden]`."""
        self._body.hidden = hidden
        # Nobody looks the ids up, but some heads ask for their shape.
        ids = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        try:
            logits: torch.Tensor = self._rest(input_ids=ids, use_cache=False).logits
        finally:
            self._body.hidden = None
        return logits

    def check(self, hidden: torch.Tensor, expected: torch.Tensor) -> None:
        """Compare with logits that the whole model gave for the same input.

        Raises:
            UnsupportedModel: other bits, so the body's output is not all that the head reads.
        """
        if not torch.equal(self.logits(hidden), expected):
            raise UnsupportedModel(
                "the model's logits do not follow from its final hidden state alone",
                hint="this version needs a head that reads nothing else",
            )


class _FixedBody(nn.Module):
    """Stands where the body was: returns the hidden state it was given."""

    def __init__(self, body: nn.Module, output_type: type) -> None:
        super().__init__()
        # Not registered as a submodule: nothing may walk from here into the body.
        object.__setattr__(self, "_kvgraft_body", body)
        self._output_type = output_type
        self.hidden: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output_type(last_hidden_state=self.hidden)

    def __getattr__(self, name: str) -> Any:
        # Some heads call a part of the body (OPT its `decoder`), others read a setting off it.
        if name in ("_parameters", "_buffers", "_modules") or "_kvgraft_body" not in self.__dict__:
            return super().__getattr__(name)
        value = getattr(self.__dict__["_kvgraft_body"], name)
        return self if isinstance(value, nn.Module) else value
