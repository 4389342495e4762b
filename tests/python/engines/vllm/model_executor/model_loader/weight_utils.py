# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors import safe_open
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

USED: list[str] = []


def safetensors_weights_iterator(
    hf_weights_files: list[str],
    use_tqdm_on_load: bool,
    safetensors_load_strategy: str | None = None,
    local_expert_ids: set[int] | None = None,
    *,
    safetensors_prefetch_num_threads: int = 8,
    safetensors_prefetch_block_size: int = 1 << 24,
) -> Iterator[tuple[str, Any]]:
    USED.append("safetensors_weights_iterator")
    for file in hf_weights_files:
        with safe_open(file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                if not should_skip_weight(name, local_expert_ids):
                    yield name, handle.get_tensor(name)


def multi_thread_safetensors_weights_iterator(
    hf_weights_files: list[str], use_tqdm_on_load: bool, max_workers: int = 4
) -> Iterator[tuple[str, Any]]:
    yield from safetensors_weights_iterator(hf_weights_files, use_tqdm_on_load)


def pt_weights_iterator(
    hf_weights_files: list[str], use_tqdm_on_load: bool, pt_load_map_location: Any = "cpu"
) -> Iterator[tuple[str, Any]]:
    USED.append("pt_weights_iterator")
    for file in hf_weights_files:
        yield from torch.load(file, map_location=pt_load_map_location).items()
