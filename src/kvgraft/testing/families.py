"""Tiny models of random weights, one or more for each family of architectures in transformers.

They are for tests of engines: every kind of layer that a family has occurs in its model, windows
and chunks are shorter than the prompts of a test, and the weights are noisy enough for logits to
depend on the whole context. A model is a function of its name, the seed and the dtype.

torch and transformers are imported when a model is built, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvgraft.testing.family_attention import ATTENTION
from kvgraft.testing.family_experts import EXPERTS
from kvgraft.testing.family_rows import MORE_NOISE, NOISE, Row
from kvgraft.testing.family_states import STATES

# A recurrent state decays by exp(-exp(A_log) * step): drawn anew, so that it lasts for a while.
DECAY, DECAY_MEAN = "A_log", -2.0


@dataclass(frozen=True)
class Family:
    """`layer_kinds_expected` has one word of `family_rows.KINDS` per layer of the cache.

    `attention` is the implementation that the model is built with, the best that the architecture
    has on a CPU. `model_class` is empty where `AutoModelForCausalLM` knows the class from the
    config's `model_type`. `noise` is what every parameter is moved by: some start as zeros, as ones
    or equal to each other.
    """

    name: str
    layer_kinds_expected: str
    build: Callable[[], Any]
    attention: str = "sdpa"
    model_type: str = ""
    model_class: str = ""
    noise: float = NOISE

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        return tuple(self.layer_kinds_expected.split())


def installed() -> list[str]:
    """Names of the families that the installed transformers has: releases add some."""
    from transformers import CONFIG_MAPPING

    return [name for name, family in FAMILIES.items() if family.model_type in CONFIG_MAPPING]


def build_model(name: str, *, seed: int = 0, dtype: Any = None) -> Any:
    """The family's model in eval mode, of dtype float32 unless told."""
    import torch
    import transformers

    family = FAMILIES[name]
    config = family.build()
    dtype = torch.float32 if dtype is None else dtype
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family.model_class:
            maker = getattr(transformers, family.model_class)._from_config
        else:
            maker = transformers.AutoModelForCausalLM.from_config
        # Not `to(dtype)` afterwards, which would round the buffers that stay float32 as well.
        model = maker(config, attn_implementation=family.attention, dtype=dtype)
    _add_noise(model, family.noise, seed)
    return model.eval()


def _add_noise(model: Any, amount: float, seed: int) -> None:
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # each once, tied or not
            if parameter.ndim > 0 and parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=generator)
                if name.rpartition(".")[2] == DECAY:
                    parameter.copy_(DECAY_MEAN + drawn)
                else:
                    parameter.add_((drawn * amount).to(parameter.dtype))


def _config(model_type: str, settings: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**deepcopy(settings))  # some change the lists they are given


def _family(name: str, row: Row) -> Family:
    model_type = row.model_type or name
    build = partial(_config, model_type, row.settings)
    noise = MORE_NOISE.get(name, NOISE)
    return Family(name, row.kinds, build, row.attention, model_type, row.model_class, noise)


FAMILIES: dict[str, Family] = {
    name: _family(name, row) for rows in (ATTENTION, EXPERTS, STATES) for name, row in rows.items()
}
