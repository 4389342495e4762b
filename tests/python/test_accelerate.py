# SPDX-License-Identifier: Apache-2.0
"""transformers and accelerate under patch(): every way in which they load safetensors files, compared with stock."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import accelerate
import pytest
import torch
import transformers

from infercluster.safetensors import _open, patch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small causal language model with tied weights, in several shards."""
    torch.manual_seed(5)
    found = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config()).save_pretrained(found, max_shard_size="150KB")
    assert len(list(found.glob("*.safetensors"))) > 1
    return found


def config() -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=600,
        tie_word_embeddings=True,
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the tensors that were read through ours."""
    names: list[str] = []
    for method in ("read", "read_box"):
        real = getattr(_open.Source, method)

        def one(self: _open.Source, framework: str, name: str, *rest: Any, real: Any = real) -> Any:
            names.append(name)
            return real(self, framework, name, *rest)

        monkeypatch.setattr(_open.Source, method, one)
    real_all = _open.Source.read_all

    def everything(self: _open.Source, framework: str) -> Any:
        found = real_all(self, framework)
        names.extend(found)
        return found

    monkeypatch.setattr(_open.Source, "read_all", everything)
    yield names


def same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys() and first
    for name, tensor in first.items():
        assert tensor.device == second[name].device, name
        if tensor.device.type != "meta":
            assert torch.equal(tensor, second[name]), name
    inputs = torch.tensor([[1, 2, 3, 500]])
    with torch.no_grad():
        assert torch.equal(one(inputs).logits, other(inputs).logits)


def names_in(folder: pathlib.Path) -> set[str]:
    found: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with _open.safe_open(file, framework="pt") as handle:
            found.update(handle.keys())
    return found


Load = Callable[[pathlib.Path, pathlib.Path], torch.nn.Module]


def from_pretrained(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    return transformers.LlamaForCausalLM.from_pretrained(folder)


def in_half_precision(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def with_a_device_map(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, device_map={"": "cpu"})


def with_layers_on_disk(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    placed = {
        "model.embed_tokens": "cpu",
        "model.layers": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    return transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=placed, offload_folder=scratch)


def empty() -> Any:
    with accelerate.init_empty_weights():
        model = transformers.LlamaForCausalLM(config())
    model.tie_weights()
    return model


def initialised() -> Any:
    torch.manual_seed(6)  # accelerate may leave a tied tensor as it was
    return transformers.LlamaForCausalLM(config())


def in_model(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    model = initialised()
    accelerate.load_checkpoint_in_model(model, folder)
    return model


def in_model_by_way_of_disk(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    model = initialised()
    accelerate.load_checkpoint_in_model(
        model, folder, device_map={"": "cpu"}, offload_state_dict=True, offload_folder=scratch
    )
    return model


def dispatched(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    return accelerate.load_checkpoint_and_dispatch(empty(), folder, device_map={"": "cpu"})


def dispatched_to_disk(folder: pathlib.Path, scratch: pathlib.Path) -> torch.nn.Module:
    placed = {
        "model.embed_tokens": "cpu",
        "model.layers": "disk",
        "model.norm": "cpu",
        "model.rotary_emb": "cpu",
        "lm_head": "cpu",
    }
    return accelerate.load_checkpoint_and_dispatch(empty(), folder, device_map=placed, offload_folder=scratch)


@pytest.mark.parametrize("load", [
    from_pretrained, in_half_precision, with_a_device_map, with_layers_on_disk, in_model, in_model_by_way_of_disk, dispatched,
    dispatched_to_disk,
])  # fmt: skip
def test_loads_through_ours_as_through_stock(
    folder: pathlib.Path, tmp_path: pathlib.Path, read: list[str], load: Load
) -> None:
    expected = load(folder, tmp_path / "stock").eval()
    assert not read
    with patch():
        loaded = load(folder, tmp_path / "ours").eval()
        assert set(read) == names_in(folder)
        same(loaded, expected)
