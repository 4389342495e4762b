# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader


class GGUFLoader(BaseModelLoader):
    """Of versions that have one."""

    def download_model(self, model_config: Any) -> None:
        pass

    def load_weights(self, model: Any, model_config: Any) -> None:
        model.loaded_by = type(self).__name__


_LOAD_FORMAT_TO_MODEL_LOADER: dict[str, type[BaseModelLoader]] = {"auto": DefaultModelLoader, "gguf": GGUFLoader}


def register_model_loader(load_format: str) -> Any:
    def register(loader: type[BaseModelLoader]) -> type[BaseModelLoader]:
        assert load_format not in _LOAD_FORMAT_TO_MODEL_LOADER and issubclass(loader, BaseModelLoader)
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = loader
        return loader

    return register


def get_model_loader(load_config: Any) -> BaseModelLoader:
    return _LOAD_FORMAT_TO_MODEL_LOADER[load_config.load_format](load_config)
