# SPDX-License-Identifier: Apache-2.0
"""patch(): unmodified code that imports the stock package gets ours, and the stock package back afterwards."""

from __future__ import annotations

import pathlib
import sys
import types

import pytest
import safetensors
import safetensors.torch
import torch

import infercluster.safetensors
import infercluster.safetensors._open as ours
from infercluster.safetensors import patch
from infercluster.safetensors import safe_open as took_ours


def test_names_are_replaced_everywhere_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    stock_open, stock_load = safetensors.safe_open, safetensors.torch.load_file
    consumer = types.ModuleType("a_consumer")
    consumer.safe_open, consumer.renamed = stock_open, stock_load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_consumer", consumer)
    with patch():
        assert safetensors.safe_open is ours.safe_open
        assert consumer.safe_open is ours.safe_open
        assert consumer.renamed is infercluster.safetensors.torch.load_file
        late = types.ModuleType("a_late_consumer")
        late.safe_open = safetensors.safe_open  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "a_late_consumer", late)
        with patch():
            assert safetensors.safe_open is ours.safe_open
        assert safetensors.safe_open is ours.safe_open
    assert safetensors.safe_open is stock_open and safetensors.torch.load_file is stock_load
    assert consumer.safe_open is stock_open and consumer.renamed is stock_load and late.safe_open is stock_open
    assert infercluster.safetensors.safe_open is ours.safe_open and took_ours is ours.safe_open


def test_restored_after_an_exception() -> None:
    stock_open = safetensors.safe_open
    with pytest.raises(KeyError), patch():
        raise KeyError
    assert safetensors.safe_open is stock_open


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small BERT with random weights, in several shards."""
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=1000,
        max_position_embeddings=64,
    )
    folder = tmp_path_factory.mktemp("model")
    transformers.BertModel(config).save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    return folder


def test_transformers_loads_through_ours(model: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    expected = transformers.BertModel.from_pretrained(model).state_dict()
    read = []
    real = ours.Source.read_box

    def counted(self: ours.Source, *arguments: object) -> object:
        read.append(arguments[1])
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ours.Source, "read_box", counted)
    with patch():
        assert transformers.modeling_utils.safe_open is ours.safe_open
        loaded = transformers.BertModel.from_pretrained(model).state_dict()
    assert transformers.modeling_utils.safe_open is safetensors.safe_open
    assert set(read) == set(expected)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


def test_transformers_saves_through_ours(model: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import transformers

    loaded = transformers.BertModel.from_pretrained(model)
    loaded.save_pretrained(tmp_path / "stock")
    with patch():
        assert transformers.modeling_utils.safe_save_file is infercluster.safetensors.torch.save_file
        loaded.save_pretrained(tmp_path / "ours")
    files = [(tmp_path / which / "model.safetensors").read_bytes() for which in ("stock", "ours")]
    assert files[0] == files[1]


def test_the_variable_patches_an_unmodified_program(model: pathlib.Path, python: object) -> None:
    program = """
import safetensors, sys
from safetensors import safe_open
from safetensors.torch import load_file
print(safe_open.__module__)
import transformers
print(transformers.modeling_utils.safe_open.__module__)
transformers.BertModel.from_pretrained(sys.argv[1])
print(sum(len(load_file(f)) for f in __import__("glob").glob(sys.argv[1] + "/*.safetensors")))
"""
    done = python(program, model, INFERCLUSTER_PATCH="1")  # type: ignore[operator]
    assert done.stdout.split()[:2] == ["infercluster.safetensors._open"] * 2, done.stderr
    for variables in ({}, {"INFERCLUSTER_PATCH": "0"}, {"INFERCLUSTER_PATCH": "1", "INFERCLUSTER_DISABLE": "1"}):
        out = python("import safetensors\nprint(safetensors.safe_open.__module__)", **variables).stdout  # type: ignore[operator]
        assert "infercluster" not in out
