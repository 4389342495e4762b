# SPDX-License-Identifier: Apache-2.0
"""Runs our loaders over the real loader modules of an engine's wheel, with everything around them stood in.

    python tests/python/engine_wheels.py vllm-X.whl
    python tests/python/engine_wheels.py sglang-X.whl

For a new version of an engine, by hand: the wheels are too large to fetch in a test. What runs of the engine is its code
that selects files, filters and iterates (the modules in REAL); the rest, which needs a GPU and the engine's own torch, are
objects that do nothing. Loads a small model with the engine's loader and with ours, and compares bit for bit.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import pathlib
import sys
import tempfile
import types
import zipfile
from collections.abc import Iterator
from typing import Any

import torch
from safetensors.torch import save_file

REAL = {
    "vllm": [f"vllm.model_executor.model_loader{name}" for name in
             ("", ".default_loader", ".base_loader", ".ep_weight_filter", ".weight_utils")],
    "sglang": ["sglang.srt.model_loader", "sglang.srt.model_loader.loader", "sglang.srt.model_loader.weight_utils",
               "sglang.srt.configs.load_config", "sglang.srt.arg_groups.choices"],
}  # fmt: skip
NAMES = {"auto": "DefaultModelLoader", "infercluster": "InferClusterModelLoader"}
# Packages that the engines import and this environment may lack.
LACKING = ("orjson", "gguf", "pybase64")


class Nothing:
    """A value of which any attribute, call or item is another such."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        is_decorator = len(arguments) == 1 and callable(arguments[0]) and not options
        return arguments[0] if is_decorator else Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __getitem__(self, key: Any) -> Any:
        return Nothing()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __or__(self, other: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return False


class StandIn(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value: Any = Nothing()
        if name[0].isupper() and not name.isupper():
            value = type(name, (), {"__init__": lambda *_, **__: None, "__getattr__": lambda self, name: None})
        setattr(self, name, value)
        return value


class Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, engine: str, root: pathlib.Path) -> None:
        self._engine, self._root = engine, root

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in (self._engine, *LACKING):
            return None
        place = self._root.joinpath(*name.split("."))
        if name not in REAL[self._engine] or not (place.is_dir() or place.with_suffix(".py").exists()):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if place.is_dir():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class Logger(logging.Logger):
    def info_once(self, *arguments: Any) -> None: ...

    warning_once = debug_once = info_once


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.got: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.got = dict(weights)


def make_models(folder: pathlib.Path) -> tuple[str, str]:
    (folder / "model").mkdir()
    (folder / "pickled").mkdir()
    for shard in range(2):
        tensors = {f"layers.{shard}.experts.{n}.up.weight": torch.randn(300, 500) for n in range(4)}
        save_file(
            tensors | {f"norm.{shard}": torch.ones(3)}, folder / "model" / f"model-{shard + 1:05}-of-00002.safetensors"
        )
    torch.save({"x": torch.arange(9)}, folder / "pickled" / "pytorch_model.bin")
    return str(folder / "model"), str(folder / "pickled")


def compare(stock: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], count: int) -> None:
    assert len(stock) == count and stock.keys() == ours.keys(), (len(stock), stock.keys() ^ ours.keys())
    assert all(torch.equal(tensor, ours[name]) for name, tensor in stock.items())


def vllm(folder: pathlib.Path) -> None:
    load_config = importlib.import_module("vllm.config.load")
    load_config.DEFAULT_SAFETENSORS_PREFETCH_NUM_THREADS = 8  # type: ignore[attr-defined]
    load_config.DEFAULT_SAFETENSORS_PREFETCH_BLOCK_SIZE = 1 << 24  # type: ignore[attr-defined]
    importlib.import_module("vllm.logger").init_logger = Logger  # type: ignore[attr-defined]
    importlib.import_module("vllm.tracing").instrument = lambda **_: lambda function: function  # type: ignore[attr-defined]
    package: Any = importlib.import_module("vllm.model_executor.model_loader")
    module: Any = importlib.import_module("vllm.model_executor.model_loader.default_loader")
    module.maybe_download_from_modelscope = lambda *_: None
    module.list_filtered_repo_files = lambda **_: []
    utils: Any = importlib.import_module("vllm.model_executor.model_loader.weight_utils")
    utils._get_available_ram_bytes = lambda: 1 << 34
    importlib.import_module("infercluster.integrations.vllm").register()
    model, pickled = make_models(folder)

    def load(load_format: str, source: str, experts: set[int] | None = None, **extra: Any) -> dict[str, torch.Tensor]:
        config = types.SimpleNamespace(
            load_format=load_format, download_dir=None, safetensors_load_strategy=None, use_tqdm_on_load=False,
            safetensors_prefetch_num_threads=8, safetensors_prefetch_block_size=1 << 24, model_loader_extra_config=extra,
            device=None, ignore_patterns=[], pt_load_map_location="cpu",
        )  # fmt: skip
        target, loader = Model(), package.get_model_loader(config)
        assert type(loader).__name__ == NAMES[load_format]
        loader._init_ep_weight_filter = lambda model_config: setattr(loader, "local_expert_ids", experts)
        target.secondary_weights = [module.DefaultModelLoader.Source(source, None, prefix="second.")]  # type: ignore[assignment]
        loader.load_weights(target, types.SimpleNamespace(
            model=source, revision=None, quantization=None, multimodal_config=None))  # fmt: skip
        return target.got

    compare(load("auto", model), load("infercluster", model, memory="8MiB"), 20)
    has_filter = isinstance(getattr(utils, "should_skip_weight", None), types.FunctionType)
    compare(load("auto", model, {1, 2}), load("infercluster", model, {1, 2}), 12 if has_filter else 20)
    compare(load("auto", pickled), load("infercluster", pickled), 2)


def sglang(folder: pathlib.Path) -> None:
    importlib.import_module("sglang.srt.utils").is_hip = lambda: False  # type: ignore[attr-defined]
    choices: Any = importlib.import_module("sglang.srt.arg_groups.choices")
    arguments: Any = importlib.import_module("sglang.srt.server_args")
    if isinstance(choices.LOAD_FORMAT_CHOICES, Nothing):  # an older version, which has them elsewhere
        choices.LOAD_FORMAT_CHOICES = []
        choices.add_load_format_choices = choices.LOAD_FORMAT_CHOICES.extend
    arguments.add_load_format_choices = choices.add_load_format_choices
    early: Any = importlib.import_module("sglang.srt.model_loader")
    loader: Any = importlib.import_module("sglang.srt.model_loader.loader")
    configs: Any = importlib.import_module("sglang.srt.configs.load_config")
    loader.envs = types.SimpleNamespace(SGLANG_SORT_WEIGHT_FILES=types.SimpleNamespace(get=lambda: -1))
    loader.maybe_add_mtp_safetensors = lambda files, *_: files
    loader.get_model = lambda: types.SimpleNamespace(
        weight_loader_disable_mmap=False, weight_loader_prefetch_checkpoints=False,
        weight_loader_prefetch_num_threads=1, weight_loader_drop_cache_after_load=False,
    )  # fmt: skip
    importlib.import_module("infercluster.integrations.sglang").extend()
    assert choices.LOAD_FORMAT_CHOICES.count("infercluster") == 1
    model, pickled = make_models(folder)

    def load(load_format: str, source: str, **extra: Any) -> dict[str, torch.Tensor]:
        config = configs.LoadConfig(load_format=load_format, model_loader_extra_config=extra)
        model_config = types.SimpleNamespace(
            model_path=source, revision=None, quantization=None, hf_config=None, modelopt_quant=None,
            _is_already_quantized=lambda: False,
        )  # fmt: skip
        target = Model()
        target.secondary_weights = [loader.DefaultModelLoader.Source(source, None, prefix="second.")]  # type: ignore[assignment]
        chosen = early.get_model_loader(config, model_config)
        assert type(chosen).__name__ == NAMES[load_format]
        target.load_weights(chosen._get_all_weights(model_config, target))
        return target.got

    compare(load("auto", model), load("infercluster", model, memory="8MiB"), 20)
    compare(load("auto", model), load("infercluster", model, enable_multithread_load=False), 20)
    compare(load("auto", pickled), load("infercluster", pickled), 2)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wheel = pathlib.Path(sys.argv[1])
    engine = wheel.name.split("-")[0]
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        with zipfile.ZipFile(wheel) as archive:
            parts = {module.rpartition(".")[0].replace(".", "/") for module in REAL[engine]}
            parts |= {module.replace(".", "/") for module in REAL[engine]}
            names = [one for one in archive.namelist() if one.endswith(".py") and one.rpartition("/")[0] in parts]
            archive.extractall(root / "wheel", names)
        sys.meta_path.insert(0, Importer(engine, root / "wheel"))
        (root / "models").mkdir()
        {"vllm": vllm, "sglang": sglang}[engine](root / "models")
    print(f"{wheel.name}: ours loads as its own loader does")


if __name__ == "__main__":
    main()
