# SPDX-License-Identifier: Apache-2.0
"""
SGLang: `python -m infercluster.integrations.sglang --model-path MODEL ...` in the place of `sglang serve` or
`python -m sglang.launch_server`.

SGLang's load formats are a closed enumeration, and its choice of a loader is one function; neither has a hook that
takes a new format. This module extends both from outside, in every process of the server, before it starts: an
extension of what SGLang closes, that a new version of it may break (then the server says so and does not start). The
member `infercluster` is added to `LoadFormat`, and `get_model_loader` gives a DefaultModelLoader whose iterators over
safetensors files are ours wherever SGLang would take DefaultModelLoader for "auto"; quantization that brings a loader of
its own, GGUF, `.bin` and `.pt` files stay SGLang's.

`--load-format infercluster` is implied. `--model-loader-extra-config '{"memory": "4GiB", "verify": "always", "device":
"cpu"}'` takes the window, whether seals are demanded, and where tensors are handed out.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from . import _weights
from ._stock_iterators import chosen_when_called, replaced

_CONFIG = "sglang.srt.configs.load_config"
_LOADER = "sglang.srt.model_loader.loader"
_ITERATORS = (
    "safetensors_weights_iterator",
    "buffered_multi_thread_safetensors_weights_iterator",
    "multi_thread_safetensors_weights_iterator",
)


def extend() -> None:
    """Adds the format to the SGLang that is installed, in this process. Twice is as good as once."""
    load_format = importlib.import_module(_CONFIG).LoadFormat
    if _weights.FORMAT not in [member.value for member in load_format]:
        _add_member(load_format, "INFERCLUSTER", _weights.FORMAT)
        _add_choice()
    loader = importlib.import_module(_LOADER)
    stock = loader.get_model_loader
    if getattr(stock, "extends", None) is None:
        ours = _selection(loader, stock, load_format)
        for module in list(sys.modules.values()):  # whoever imported the function by name
            if isinstance(module, ModuleType) and vars(module).get("get_model_loader") is stock:
                module.get_model_loader = ours  # type: ignore[attr-defined]


def _add_member(enumeration: Any, name: str, value: str) -> None:
    """What the enumeration's class body would have done."""
    member = str.__new__(enumeration, value)
    member._name_, member._value_ = name, value
    member._sort_order_ = len(enumeration._member_names_)
    member.__objclass__ = enumeration
    enumeration._member_map_[name] = member
    enumeration._member_names_.append(name)
    enumeration._value2member_map_[value] = member
    type.__setattr__(enumeration, name, member)
    if enumeration(value) is not member or enumeration[name] is not member:
        raise RuntimeError(f"{enumeration.__name__} cannot be extended in this version of Python")


def _add_choice() -> None:
    """Of the option --load-format."""
    arguments = importlib.import_module("sglang.srt.server_args")
    add = getattr(arguments, "add_load_format_choices", None)
    if add is not None:
        add([_weights.FORMAT])
    else:
        choices = getattr(arguments, "LOAD_FORMAT_CHOICES", None)
        if choices is None:
            raise RuntimeError("this SGLang has neither add_load_format_choices nor LOAD_FORMAT_CHOICES; not supported")
        choices.append(_weights.FORMAT)


def _selection(loader: Any, stock: Any, load_format: Any) -> Any:
    """get_model_loader with our format."""

    @functools.wraps(stock)
    def get_model_loader(load_config: Any, model_config: Any = None) -> Any:
        if load_config.load_format != load_format.INFERCLUSTER:
            return stock(load_config, model_config)
        options, extra = _weights.Options.taken_from(load_config.model_loader_extra_config or {})
        own_config = copy.copy(load_config)
        own_config.model_loader_extra_config = extra
        is_gguf = str(getattr(model_config, "model_path", "")).endswith(".gguf")
        own_config.load_format = load_format.GGUF if is_gguf else load_format.AUTO
        chosen = stock(own_config, model_config)
        if type(chosen) is not loader.DefaultModelLoader:
            return chosen
        return loader_class()(own_config, options)

    get_model_loader.extends = stock  # type: ignore[attr-defined]
    return get_model_loader


@functools.cache
def loader_class() -> type:
    """The loader, over the SGLang that is installed."""
    module = importlib.import_module(_LOADER)
    stock: Any = module.DefaultModelLoader
    chosen_when_called(stock._get_weights_iterator)

    class InferClusterModelLoader(stock):  # type: ignore[misc]
        """DefaultModelLoader that streams safetensors files through InferCluster."""

        def __init__(self, load_config: Any, options: _weights.Options) -> None:
            self._options = options
            self._device = "cpu"
            super().__init__(load_config)

        def _get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            self._device = self._options.device or _weights.device_of(model)
            yield from super()._get_all_weights(model_config, model)

        def _get_weights_iterator(self, source: Any, **options: Any) -> Iterator[tuple[str, Any]]:
            with replaced(module, dict.fromkeys(_ITERATORS, self._iterator)):
                found: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source, **options)
            return found

        def _iterator(self, hf_weights_files: list[str], *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
            return _weights.weights(hf_weights_files, self._options, self._device)

    return InferClusterModelLoader


def main(arguments: list[str]) -> None:
    """The server, as `python -m sglang.launch_server` runs it."""
    extend()
    if not any(one == "--load-format" or one.startswith("--load-format=") for one in arguments):
        arguments = [*arguments, "--load-format", _weights.FORMAT]
    launch = importlib.import_module("sglang.launch_server")
    if hasattr(launch, "load_plugins"):
        launch.load_plugins()
    server_args = launch.prepare_server_args(arguments)
    try:
        getattr(launch, "run_server", _run_server)(server_args)
    finally:
        launch.kill_process_tree(os.getpid(), include_parent=False)


def _run_server(server_args: Any) -> None:
    """Of versions whose launcher has it in its main program."""
    if getattr(server_args, "grpc_mode", False):
        asyncio.run(importlib.import_module("sglang.srt.entrypoints.grpc_server").serve_grpc(server_args))
    else:
        importlib.import_module("sglang.srt.entrypoints.http_server").launch_server(server_args)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":  # a process of the server: multiprocessing runs the main module again in it
    extend()
