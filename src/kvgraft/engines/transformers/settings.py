"""The process-wide settings of torch that choose kernels, and with them bits.

Measured on x86-64 with AVX-512: another thread count, `set_float32_matmul_precision("medium")`,
autocast, oneDNN switched off and a narrowed choice of attention kernels each change the bits that
an unchanged model computes.
"""

from __future__ import annotations

import torch


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


def _matmul_precision(device: torch.device) -> str:
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    # torch 2.9 and later know it per backend
    precision = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if precision is None:
        precision = torch.get_float32_matmul_precision()
    return "full" if precision in ("none", "ieee", "highest") else str(precision)
