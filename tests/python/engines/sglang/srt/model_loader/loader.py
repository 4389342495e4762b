# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import glob
import os
from collections.abc import Iterator
from typing import Any

from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader.weight_utils import (
    buffered_multi_thread_safetensors_weights_iterator,
    pt_weights_iterator,
    safetensors_weights_iterator,
)


class BaseModelLoader:
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config


class GGUFModelLoader(BaseModelLoader):
    pass


class QuantizingModelLoader(BaseModelLoader):
    pass


class DefaultModelLoader(BaseModelLoader):
    DEFAULT_NUM_THREADS = 8
    counter_before_loading_weights: float = 0.0
    counter_after_loading_weights: float = 0.0

    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        model_config: Any = None

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        unexpected = set(load_config.model_loader_extra_config) - {"enable_multithread_load", "num_threads"}
        if unexpected:
            raise ValueError(f"Unexpected extra config keys for load format {load_config.load_format}: {unexpected}")

    def _prepare_weights(
        self,
        model_name_or_path: str,
        revision: str | None,
        fall_back_to_pt: bool,
        allow_patterns_overrides: list[str] | None = None,
    ) -> tuple[str, list[str], bool]:
        if self.load_config.load_format != LoadFormat.AUTO:
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        for pattern in allow_patterns_overrides or ["*.safetensors", "*.bin"]:
            files = sorted(glob.glob(os.path.join(model_name_or_path, pattern)))
            if files:
                return model_name_or_path, files, pattern.endswith(".safetensors")
        raise RuntimeError(f"Cannot find any model weights with `{model_name_or_path}`")

    def _get_weights_iterator(
        self,
        source: Source,
        *,
        resolved_source: Any = None,
        startup_prefetch_started: bool = False,
        startup_prefetch_active: bool = False,
    ) -> Iterator[tuple[str, Any]]:
        _, files, use_safetensors = self._prepare_weights(
            source.model_or_path, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
        )
        if not use_safetensors:
            found = pt_weights_iterator(files)
        elif self.load_config.model_loader_extra_config.get("enable_multithread_load", True):
            found = buffered_multi_thread_safetensors_weights_iterator(
                files, max_workers=2, disable_mmap=False, prefetch=False
            )
        else:
            found = safetensors_weights_iterator(files, disable_mmap=False, prefetch=False)
        if self.load_config.draft_model_idx is not None:
            return self._filter_mtp_weights(found, source.prefix, self.load_config.draft_model_idx)
        return ((source.prefix + name, tensor) for name, tensor in found)

    @classmethod
    def _filter_mtp_weights(cls, weights_iterator: Any, prefix: str, draft_model_idx: int) -> Iterator[tuple[str, Any]]:
        for name, tensor in weights_iterator:
            if f"layers.{draft_model_idx}." in name:
                yield prefix + name, tensor

    def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
        yield from self._get_weights_iterator(DefaultModelLoader.Source(model_config.model_path, None))
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)


def get_model_loader(load_config: Any, model_config: Any = None) -> BaseModelLoader:
    if getattr(model_config, "quantization", None) == "brings its own":
        return QuantizingModelLoader(load_config)
    if load_config.load_format == LoadFormat.GGUF:
        return GGUFModelLoader(load_config)
    return DefaultModelLoader(load_config)
