# SPDX-License-Identifier: Apache-2.0
"""safetensors.flax: the stock package's module; under `infercluster.safetensors.patch()` it reads and writes through
ours."""

from __future__ import annotations

try:
    from safetensors.flax import load, load_file, save, save_file
except ImportError as error:
    raise ImportError(f"infercluster.safetensors.flax needs the packages safetensors and jax: {error}") from error

__all__ = ["load", "load_file", "save", "save_file"]
