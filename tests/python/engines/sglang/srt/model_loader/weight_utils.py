# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import load_file

USED: list[str] = []


def safetensors_weights_iterator(
    hf_weights_files: list[str],
    disable_mmap: bool = False,
    prefetch: bool = False,
    prefetch_num_threads: int = 4,
    drop_cache_after_load: bool = False,
) -> Iterator[tuple[str, Any]]:
    USED.append("safetensors_weights_iterator")
    for file in hf_weights_files:
        yield from load_file(file).items()


def buffered_multi_thread_safetensors_weights_iterator(
    hf_weights_files: list[str],
    max_workers: int,
    disable_mmap: bool = False,
    prefetch: bool = False,
    prefetch_num_threads: int = 4,
    drop_cache_after_load: bool = False,
) -> Iterator[tuple[str, Any]]:
    yield from safetensors_weights_iterator(hf_weights_files)


def pt_weights_iterator(hf_weights_files: list[str]) -> Iterator[tuple[str, Any]]:
    USED.append("pt_weights_iterator")
    for file in hf_weights_files:
        yield from torch.load(file).items()
