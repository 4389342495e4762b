# SPDX-License-Identifier: Apache-2.0
"""
vLLM: `vllm serve MODEL --load-format infercluster`. Nothing is to be imported: the entry point in the group
`vllm.general_plugins` registers the loader in every process of vLLM.

The loader is vLLM's DefaultModelLoader, whose iterator over safetensors files is ours: tensors are streamed to the
model's device within a window of memory. Which files, prefixes, secondary sources, unused shards and experts of other
ranks: vLLM decides as ever, and what it does not want is not read. `.bin` and `.pt` files, GGUF, and checkpoints of
torchao go to vLLM's own code.

`--model-loader-extra-config '{"memory": "4GiB", "verify": "always", "device": "cpu"}'` takes the window, whether seals are
demanded, and where tensors are handed out; the other keys are DefaultModelLoader's.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from . import _weights
from ._stock_iterators import chosen_when_called, replaced

_LOGGER = logging.getLogger("infercluster")
_PACKAGE = "vllm.model_executor.model_loader"
_ITERATORS = ("safetensors_weights_iterator", "multi_thread_safetensors_weights_iterator")


def register() -> None:
    """Called by vLLM in each of its processes. Never fails: vLLM goes on without the format then."""
    try:
        package = importlib.import_module(_PACKAGE)
        known = getattr(package, "_LOAD_FORMAT_TO_MODEL_LOADER", {})
        if _weights.FORMAT not in known:
            package.register_model_loader(_weights.FORMAT)(loader_class())
    except Exception as error:
        _LOGGER.warning("--load-format %s is not available in this vLLM: %s", _weights.FORMAT, error)


def _skips(name: str, local_expert_ids: set[int] | None) -> bool:
    """Whether vLLM's expert filter leaves a tensor out."""
    if local_expert_ids is None:
        return False
    module = importlib.import_module(f"{_PACKAGE}.ep_weight_filter")
    return bool(module.should_skip_weight(name, local_expert_ids))


@functools.cache
def loader_class() -> type:
    """The loader, over the vLLM that is installed."""
    package = importlib.import_module(_PACKAGE)
    module = importlib.import_module(f"{_PACKAGE}.default_loader")
    stock: Any = module.DefaultModelLoader
    chosen_when_called(stock._get_weights_iterator)

    class InferClusterModelLoader(stock):  # type: ignore[misc]
        """DefaultModelLoader that streams safetensors files through InferCluster."""

        def __init__(self, load_config: Any) -> None:
            # vLLM's code for "auto" chooses among the formats of the files; ours is not among them.
            self._options, extra = _weights.Options.taken_from(load_config.model_loader_extra_config or {})
            own_config = copy.copy(load_config)
            own_config.load_format = "auto"
            own_config.model_loader_extra_config = extra
            self._device = "cpu"
            super().__init__(own_config)

        def _other(self, model_config: Any) -> Any:
            """vLLM's loader for what is not ours at all; None: it is."""
            if not str(model_config.model).endswith(".gguf"):
                return None
            other_config = copy.copy(self.load_config)
            other_config.load_format = "gguf"
            return package.get_model_loader(other_config)

        def download_model(self, model_config: Any) -> None:
            other = self._other(model_config)
            if other is None:
                super().download_model(model_config)
            else:
                other.download_model(model_config)

        def load_weights(self, model: Any, model_config: Any) -> None:
            other = self._other(model_config)
            if other is None:
                super().load_weights(model, model_config)
            else:
                other.load_weights(model, model_config)

        def load_model(self, vllm_config: Any, model_config: Any, *arguments: Any, **options: Any) -> Any:
            other = self._other(model_config)
            if other is not None:
                return other.load_model(vllm_config, model_config, *arguments, **options)
            return super().load_model(vllm_config, model_config, *arguments, **options)

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            self._device = self._options.device or _weights.device_of(model)
            yield from super().get_all_weights(model_config, model)

        def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
            ours = {name: self._instead_of(getattr(module, name, None)) for name in _ITERATORS}
            with replaced(module, ours):
                found: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source)
            return found

        def _instead_of(self, stock_iterator: Any) -> Callable[..., Iterator[tuple[str, Any]]]:
            def iterator(hf_weights_files: list[str], *arguments: Any, **options: Any) -> Iterator[tuple[str, Any]]:
                if getattr(self.load_config, "safetensors_load_strategy", None) == "torchao":
                    # Its tensors are put together from several of the file's.
                    return iter(stock_iterator(hf_weights_files, *arguments, **options))
                local_expert_ids = options.get("local_expert_ids", getattr(self, "local_expert_ids", None))
                return _weights.weights(
                    hf_weights_files, self._options, self._device, lambda name: not _skips(name, local_expert_ids)
                )

            return iterator

    return InferClusterModelLoader
