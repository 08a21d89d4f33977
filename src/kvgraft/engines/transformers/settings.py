"""The process-wide settings of torch that choose kernels, and with them bits.

Measured on x86-64 with AVX-512: another thread count, `set_float32_matmul_precision("medium")`,
autocast, oneDNN switched off and a narrowed choice of attention kernels each change the bits that
an unchanged model computes.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

# transformers calls the kernels of whichever of these can be imported, on the CPU too.
_KERNEL_MODULES = ("causal_conv1d", "fla", "flash_attn", "kernels", "mamba_ssm", "triton")


def thread_count() -> int:
    """Threads of torch's kernels."""
    return torch.get_num_threads()


def kernel_settings(device: torch.device) -> str:
    """One line of `name=value`, equal where the choice of kernels is equal."""
    backends = torch.backends
    settings = {
        "matmul": _matmul_precision(device),
        "attention": "+".join(
            name
            for name in ("flash", "mem_efficient", "math", "cudnn")
            if getattr(backends.cuda, f"{name}_sdp_enabled")()
        ),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "autocast": "none",
    }
    if torch.is_autocast_enabled(device.type):
        settings["autocast"] = str(torch.get_autocast_dtype(device.type))
    if device.type == "cuda":
        matmul = backends.cuda.matmul
        settings["blas"] = str(backends.cuda.preferred_blas_library())
        settings["reduced"] = (
            f"{matmul.allow_bf16_reduced_precision_reduction}"
            f"+{matmul.allow_fp16_reduced_precision_reduction}"
        )
    else:
        settings["onednn"] = str(torch._C._get_mkldnn_enabled())
    return "/".join(f"{name}={value}" for name, value in settings.items())


@cache
def kernel_packages() -> str:
    """The optional packages of kernels that can be imported here, each with the start of a digest
    over its files; "none" without any. A version would not tell two builds apart."""
    found = []
    for name in _KERNEL_MODULES:
        spec = importlib.util.find_spec(name)
        if spec is not None:
            found.append(f"{name}={_files_digest(spec)[:16]}")
    return "+".join(found) or "none"


def _files_digest(spec: Any) -> str:
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    if not folders and spec.origin:
        files = [Path(spec.origin)]
    hasher = blake3()
    for path in sorted(files):
        if path.suffix != ".pyc":
            hasher.update(path.name.encode() + b"\0")
            hasher.update_mmap(path)
    return str(hasher.hexdigest())


def implementations(config: Any) -> str:
    """Which implementation of attention, and of experts where there are any, a model's config and
    the configs inside it choose."""
    chosen = []
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        attention = getattr(part, "_attn_implementation", None)
        experts = getattr(part, "_experts_implementation", None)
        chosen.append(str(attention) + (f"/experts={experts}" if experts else ""))
    return "+".join(chosen)


def _matmul_precision(device: torch.device) -> str:
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    # torch 2.9 and later know it per backend
    precision = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if precision is None:
        precision = torch.get_float32_matmul_precision()
    return "full" if precision in ("none", "ieee", "highest") else str(precision)
