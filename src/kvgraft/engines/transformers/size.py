"""How many of a model's parameters a token is multiplied with."""

from __future__ import annotations

from torch import nn

from kvgraft.flops import ModelSize


def model_size(model: nn.Module, body: nn.Module, layers: int) -> ModelSize | None:
    """Sizes of a dense model whose cache has `layers` layers; None for one with experts, with
    layers that are used more than once or keep no state, or with heads of several counts.

    `body` is the model without its head.
    """
    config = model.config.get_text_config()
    output = model.get_output_embeddings()
    heads = getattr(config, "num_attention_heads", None)
    experts = [n for name, n in config.to_dict().items() if "expert" in name and isinstance(n, int)]
    if (
        config is not model.config  # a part of something larger
        or not isinstance(output, nn.Linear)
        or not isinstance(heads, int)
        or layers != config.num_hidden_layers
        or any(count > 1 for count in experts)
    ):
        return None
    looked_up = {
        id(parameter)
        for module in body.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    used = [
        parameter
        for _, parameter in body.named_parameters(remove_duplicate=False)
        if id(parameter) not in looked_up
    ]
    if len({id(parameter) for parameter in used}) != len(used):
        return None
    return ModelSize(sum(p.numel() for p in used), output.weight.numel(), heads)
