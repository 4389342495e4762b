# SPDX-License-Identifier: Apache-2.0
"""safetensors.tensorflow: the stock package's module; under `infercluster.safetensors.patch()` it reads and writes
through ours."""

from __future__ import annotations

try:
    from safetensors.tensorflow import load, load_file, save, save_file
except ImportError as error:
    raise ImportError(
        f"infercluster.safetensors.tensorflow needs the packages safetensors and TensorFlow: {error}"
    ) from error

__all__ = ["load", "load_file", "save", "save_file"]
