# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that puts infercluster.safetensors under the name safetensors, and the stock package out of reach."""

import importlib
import sys

sys.modules["safetensors"] = None  # type: ignore[assignment]  # an import of it fails: ours must not lean on it
for suffix in ("", ".torch", ".numpy"):
    ours = importlib.import_module(f"infercluster.safetensors{suffix}")
    if suffix:
        sys.modules[f"safetensors{suffix}"] = ours
sys.modules["safetensors"] = sys.modules["infercluster.safetensors"]
