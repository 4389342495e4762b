# SPDX-License-Identifier: Apache-2.0
"""A process of the server: spawned, so that it has only what it imports itself."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_loader import get_model_loader


def run_scheduler_process(server_args: Any) -> None:
    config = LoadConfig(
        load_format=server_args.load_format, model_loader_extra_config=server_args.model_loader_extra_config
    )
    model_config = SimpleNamespace(model_path=server_args.model_path, quantization=None)
    loader: Any = get_model_loader(config, model_config)
    print(type(loader).__name__)
    for name, tensor in sorted(loader._get_all_weights(model_config, SimpleNamespace()), key=lambda one: str(one[0])):
        print(name, hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy()).hexdigest())
