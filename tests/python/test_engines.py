# SPDX-License-Identifier: Apache-2.0
"""vLLM and SGLang: our loaders over stand-ins (tests/python/engines) that have the recorded signatures of the real
packages (tests/python/signatures, made by tools/record_signatures.py)."""

from __future__ import annotations

import hashlib
import importlib
import os
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import bytes_of, write_file
from engine_stand_ins import ENGINES, ROOT, engines
from safetensors.torch import load_file, save_file

import infercluster
from infercluster.integrations import _weights

__all__ = ["engines"]


@pytest.fixture
def model(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "model"
    folder.mkdir()
    torch.manual_seed(3)
    for shard in range(2):
        tensors = {f"layers.{shard}.experts.{n}.up.weight": torch.randn(256, 512) for n in range(4)}
        tensors |= {
            f"layers.{shard}.norm": torch.randn(77).to(torch.bfloat16),
            f"layers.{shard}.count": torch.tensor(shard),
        }
        save_file(tensors, folder / f"model-{shard + 1:05}-of-00002.safetensors")
    return folder


def expected_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        name: bytes_of(tensor)
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.got: dict[str, bytes] = {}
        self.loaded_by = ""

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            assert name not in self.got
            self.got[name] = bytes_of(tensor)


def vllm_loader(extra: dict[str, Any] | None = None, **config: Any) -> Any:
    importlib.import_module("infercluster.integrations.vllm").register()
    package = importlib.import_module("vllm.model_executor.model_loader")
    load_config = importlib.import_module("vllm.config.load").LoadConfig
    return package.get_model_loader(load_config("infercluster", model_loader_extra_config=extra or {}, **config))


def vllm_config(folder: pathlib.Path, experts: set[int] | None = None) -> SimpleNamespace:
    return SimpleNamespace(model=str(folder), revision=None, local_expert_ids=experts)


def used(engine: str) -> list[str]:
    name = {"vllm": "vllm.model_executor.model_loader", "sglang": "sglang.srt.model_loader"}[engine]
    found: list[str] = importlib.import_module(f"{name}.weight_utils").USED
    return found


# --- vLLM


def test_vllm_finds_the_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {
        "infercluster": "infercluster.integrations.vllm:register"
    }


@pytest.mark.parametrize("extra", [{}, {"memory": "2MiB", "verify": "never"}, {"enable_multithread_load": True}])
def test_vllm_loads_bit_equal(engines: None, model: pathlib.Path, extra: dict[str, Any]) -> None:
    loader = vllm_loader(extra)
    loaded = loader.load_model(SimpleNamespace(make_model=lambda prefix: Model()), vllm_config(model), prefix="p")
    assert loaded.got == expected_of(model) and used("vllm") == []
    loader.download_model(vllm_config(model))


def test_vllm_keeps_prefixes_and_secondary_sources(engines: None, model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    loader, target = vllm_loader(), Model()
    (tmp_path / "more" / "sub").mkdir(parents=True)
    save_file({"extra": torch.arange(5)}, tmp_path / "more" / "sub" / "x.safetensors")
    target.secondary_weights = [loader.Source(str(tmp_path / "more"), None, subfolder="sub", prefix="second.")]  # type: ignore[assignment]
    loader.load_weights(target, vllm_config(model))
    assert target.got == expected_of(model) | {"second.extra": bytes_of(torch.arange(5))}


def test_vllm_leaves_other_ranks_experts_unread(
    engines: None, model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real_close = infercluster.Stream.close

    def close(self: infercluster.Stream) -> None:
        real_close(self)
        read.append(self.report["bytes_read"])

    monkeypatch.setattr(infercluster.Stream, "close", close)
    loader, target = vllm_loader(), Model()
    loader.load_weights(target, vllm_config(model, experts={1, 3}))
    mine = {name: data for name, data in expected_of(model).items() if not ("experts.0" in name or "experts.2" in name)}
    assert target.got == mine and len(mine) == 8
    assert sum({*read}) <= 4 * 256 * 512 * 4 + 16 * 4096


def test_vllm_hands_other_files_to_stock(engines: None, model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save({"a": torch.arange(7)}, pickled / "pytorch_model.bin")
    target = Model()
    vllm_loader().load_weights(target, vllm_config(pickled))
    assert target.got == {"a": bytes_of(torch.arange(7))} and used("vllm") == ["pt_weights_iterator"]
    target = Model()
    vllm_loader(safetensors_load_strategy="torchao").load_weights(target, vllm_config(model))
    assert target.got == expected_of(model) and used("vllm")[1:] == ["safetensors_weights_iterator"]
    target = Model()
    vllm_loader().load_weights(target, vllm_config(tmp_path / "x.gguf"))
    assert target.loaded_by == "GGUFLoader"
    loader = vllm_loader()
    loader.load_model(SimpleNamespace(make_model=lambda prefix: target), vllm_config(tmp_path / "x.gguf"))
    loader.download_model(vllm_config(tmp_path / "x.gguf"))


def test_vllm_configuration_is_checked(engines: None, model: pathlib.Path) -> None:
    for extra, message in [
        ({"memory": "much"}, "much"),
        ({"verify": "maybe"}, "verify"),
        ({"nothing": 1}, "Unexpected"),
    ]:
        with pytest.raises(ValueError, match=message):
            vllm_loader(extra)
    with pytest.raises(RuntimeError, match="no checksums"):
        vllm_loader({"verify": "always"}).load_weights(Model(), vllm_config(model))


def test_vllm_goes_on_when_it_is_too_old(
    engines: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours = importlib.import_module("infercluster.integrations.vllm")
    package = importlib.import_module("vllm.model_executor.model_loader")
    monkeypatch.delattr(package, "register_model_loader")
    ours.register()
    assert "not available" in caplog.text
    monkeypatch.undo()
    stock = importlib.import_module("vllm.model_executor.model_loader.default_loader").DefaultModelLoader

    def later(self: Any, source: Any) -> Iterator[Any]:
        yield source

    monkeypatch.setattr(stock, "_get_weights_iterator", later)
    ours.loader_class.cache_clear()
    with pytest.raises(RuntimeError, match="not supported"):
        ours.loader_class()


def test_vllm_lora_reads_through_patch(engines: None, tmp_path: pathlib.Path) -> None:
    save_file({"a.lora_A.weight": torch.randn(4, 8)}, tmp_path / "adapter_model.safetensors")
    lora = importlib.import_module("vllm.lora.lora_model")
    import safetensors

    from infercluster.safetensors import _open

    with infercluster.safetensors.patch():
        assert lora.safetensors.safe_open is _open.safe_open
        found = lora.LoRAModel.from_local_checkpoint(str(tmp_path), {"a"}, None, device="cpu")
    assert lora.safetensors.safe_open is safetensors.safe_open is not _open.safe_open
    assert {name: bytes_of(tensor) for name, tensor in found.items()} == expected_of(tmp_path)


# --- The stream under both


def test_a_consumer_that_keeps_everything_gets_everything(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = {f"t{n}": torch.full((1 << 20,), n, dtype=torch.uint8) for n in range(40)}
    save_file(data, tmp_path / "m.safetensors")
    kept = list(_weights.weights([tmp_path / "m.safetensors"], _weights.Options(memory="16MiB"), "cpu"))
    assert sorted(name for name, _ in kept) == sorted(data) and len(kept) == 40
    assert all(torch.equal(tensor, data[name]) for name, tensor in kept)
    assert "tensor by tensor" in caplog.text


def test_files_of_a_folder_are_streamed_together_and_others_are_left_out(model: pathlib.Path) -> None:
    files = sorted(model.glob("*.safetensors"))
    assert [source for source, _ in _weights._sources(files)] == [str(model)]
    assert [source for source, _ in _weights._sources(files[:1])] == [str(files[0])]
    write_file(model / "other.safetensors", {"layers.0.norm": ("U8", [1], b"x")})  # a name twice: no repository
    assert [source for source, _ in _weights._sources(files)] == [str(file) for file in files]
    found = dict(_weights.weights(files, _weights.Options(), "cpu", lambda name: name.endswith("norm")))
    assert sorted(found) == ["layers.0.norm", "layers.1.norm"] and found["layers.0.norm"].dtype == torch.bfloat16


# --- SGLang


def sglang() -> Any:
    ours = importlib.import_module("infercluster.integrations.sglang")
    ours.extend()
    return ours


def test_sglang_gets_one_more_format(engines: None) -> None:
    early = importlib.import_module("sglang.srt.model_loader")  # has imported the function by name
    ours = sglang()
    formats = importlib.import_module("sglang.srt.configs.load_config").LoadFormat
    arguments = importlib.import_module("sglang.srt.server_args")
    member = formats("infercluster")
    assert member is formats.INFERCLUSTER is formats["INFERCLUSTER"] and member in list(formats)
    assert member == "infercluster" and member.name == "INFERCLUSTER" and list(formats)[0] is formats.AUTO
    selection = early.get_model_loader
    assert selection is importlib.import_module("sglang.srt.model_loader.loader").get_model_loader
    ours.extend()
    assert early.get_model_loader is selection and arguments.LOAD_FORMAT_CHOICES.count("infercluster") == 1
    assert len(list(formats)) == 6


def sglang_config(**options: Any) -> Any:
    return importlib.import_module("sglang.srt.configs.load_config").LoadConfig("infercluster", **options)


@pytest.mark.parametrize("extra", [{}, {"memory": "2MiB"}, {"enable_multithread_load": False}])
def test_sglang_loads_bit_equal(engines: None, model: pathlib.Path, extra: dict[str, Any]) -> None:
    sglang()
    selection = importlib.import_module("sglang.srt.model_loader").get_model_loader
    model_config = SimpleNamespace(model_path=str(model), quantization=None)
    loader = selection(sglang_config(model_loader_extra_config=extra), model_config)
    target = Model()
    target.secondary_weights = [loader.Source(str(model), None, prefix="second.")]  # type: ignore[assignment]
    target.load_weights(loader._get_all_weights(model_config, target))
    expected = expected_of(model)
    assert target.got == expected | {f"second.{name}": data for name, data in expected.items()}
    assert used("sglang") == []
    loader = selection(sglang_config(draft_model_idx=1), model_config)
    assert {name for name, _ in loader._get_all_weights(model_config, None)} == {
        name for name in expected if ".1." in name[:9]
    }


def test_sglang_keeps_what_is_not_ours(engines: None, model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    sglang()
    selection = importlib.import_module("sglang.srt.model_loader").get_model_loader

    def chosen(path: object, quantization: str | None = None, config: Any = None) -> Any:
        return selection(config or sglang_config(), SimpleNamespace(model_path=str(path), quantization=quantization))

    assert type(chosen(model, "brings its own")).__name__ == "QuantizingModelLoader"
    assert type(chosen(tmp_path / "m.gguf")).__name__ == "GGUFModelLoader"
    stock = importlib.import_module("sglang.srt.configs.load_config").LoadConfig("auto")
    assert type(chosen(model, config=stock)).__name__ == "DefaultModelLoader"
    torch.save({"a": torch.arange(3)}, tmp_path / "pytorch_model.bin")
    loader = chosen(tmp_path)
    found = dict(loader._get_all_weights(SimpleNamespace(model_path=str(tmp_path)), None))
    assert torch.equal(found["a"], torch.arange(3)) and used("sglang") == ["pt_weights_iterator"]


def test_sglang_launcher_reaches_spawned_processes(model: pathlib.Path) -> None:
    command = [sys.executable, "-m", "infercluster.integrations.sglang", "--model-path", str(model)]
    paths = [str(ENGINES), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": ":".join(paths)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert lines[0] == "InferClusterModelLoader"
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in expected_of(model).items()}
    assert dict(line.split() for line in lines[1:] if line) == hashes


def test_sglang_launcher_implies_the_format_and_passes_the_rest(engines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, launch = sglang(), importlib.import_module("sglang.launch_server")
    ran: list[Any] = []
    monkeypatch.setattr(launch, "run_server", ran.append)
    for asked in ([], ["--load-format", "auto"], ["--load-format=pt"]):
        ours.main(["--model-path", "m", *asked])
    assert [(one.model_path, one.load_format) for one in ran] == [("m", "infercluster"), ("m", "auto"), ("m", "pt")]
    monkeypatch.delattr(launch, "run_server")  # older versions have it in their main program
    server = SimpleNamespace(launch_server=ran.append)
    monkeypatch.setitem(sys.modules, "sglang.srt.entrypoints.http_server", server)  # type: ignore[arg-type]
    ours.main(["--model-path", "n"])
    assert ran[-1].model_path == "n"
