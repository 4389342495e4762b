# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Callable, Iterator
from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.weight_utils import (
    multi_thread_safetensors_weights_iterator,
    pt_weights_iterator,
    safetensors_weights_iterator,
)


class DefaultModelLoader(BaseModelLoader):
    DEFAULT_NUM_THREADS = 8
    counter_before_loading_weights: float = 0.0
    counter_after_loading_weights: float = 0.0

    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: Callable[[str], bool] | None = None

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        self.local_expert_ids: set[int] | None = None
        unexpected = set(load_config.model_loader_extra_config) - {"enable_multithread_load", "num_threads"}
        if unexpected:
            raise ValueError(f"Unexpected extra config keys for load format {load_config.load_format}: {unexpected}")

    def _prepare_weights(
        self,
        model_name_or_path: str,
        subfolder: str | None,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None,
    ) -> tuple[str, list[str], bool, str]:
        if self.load_config.load_format != "auto":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = os.path.join(model_name_or_path, subfolder or "")
        for pattern in allow_patterns_overrides or ["*.safetensors", "*.bin", "*.pt"]:
            files = sorted(glob.glob(os.path.join(folder, pattern)))
            if files:
                return folder, files, pattern.endswith(".safetensors"), "model.safetensors.index.json"
        raise RuntimeError(f"Cannot find any model weights with `{model_name_or_path}`")

    def _get_weights_iterator(self, source: Source) -> Iterator[tuple[str, Any]]:
        _, files, use_safetensors, _ = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        config = self.load_config
        if not use_safetensors:
            found = pt_weights_iterator(files, config.use_tqdm_on_load, config.pt_load_map_location)
        elif config.model_loader_extra_config.get("enable_multithread_load"):
            found = multi_thread_safetensors_weights_iterator(files, config.use_tqdm_on_load, max_workers=2)
        else:
            found = safetensors_weights_iterator(
                files,
                config.use_tqdm_on_load,
                config.safetensors_load_strategy,
                local_expert_ids=self.local_expert_ids,
                safetensors_prefetch_num_threads=config.safetensors_prefetch_num_threads,
                safetensors_prefetch_block_size=config.safetensors_prefetch_block_size,
            )
        return ((source.prefix + name, tensor) for name, tensor in found)

    def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        yield from self._get_weights_iterator(DefaultModelLoader.Source(model_config.model, model_config.revision))
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config: Any) -> None:
        self._prepare_weights(model_config.model, None, model_config.revision, True, None)

    def load_weights(self, model: Any, model_config: Any) -> None:
        self.local_expert_ids = model_config.local_expert_ids
        model.load_weights(self.get_all_weights(model_config, model))
