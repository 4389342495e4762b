# SPDX-License-Identifier: Apache-2.0
"""infercluster checkpoint export: stock files, whole, within its memory, or none at all (case T01)."""

import json
import random
import resource

import pytest

from checkpoints import Tensor, write_checkpoint, write_sparse
from repositories import flip

numpy = pytest.importorskip("numpy")
safetensors_numpy = pytest.importorskip("safetensors.numpy")


def tensors() -> dict[str, Tensor]:
    content = random.Random(3).randbytes
    return {
        "model.a": Tensor("F32", [90, 71], content(90 * 71 * 4)),
        "model.b": Tensor("F16", [33, 2, 500], content(33 * 2 * 500 * 2)),
        "model.c": Tensor("U8", [70_000], content(70_000)),
        "model.scalar": Tensor("F64", [], content(8)),
        "optim.a": Tensor("F32", [90, 71], content(90 * 71 * 4)),
    }


@pytest.fixture
def root(folder):
    write_checkpoint(folder / "run", 5, tensors(), (2, 2))
    return folder / "run"


def read_all(destination) -> dict[str, bytes]:
    found = {}
    for path in destination.glob("*.safetensors"):
        found |= {name: array.tobytes() for name, array in safetensors_numpy.load_file(path).items()}
    return found


def test_boxes_of_a_mesh_come_out_as_whole_tensors(program, root, folder):
    report = program.json("checkpoint", "export", root, folder / "out", "--format", "hf", "--memory", "16KiB")
    assert report["memory_bytes"] <= 16 * 2**10 and report["index"] is None
    assert [path.name for path in (folder / "out").iterdir()] == ["model.safetensors"]
    assert read_all(folder / "out") == {name: tensor.content for name, tensor in tensors().items()}


def test_several_files_with_an_index_and_a_prefix_off(program, root, folder):
    report = program.json("checkpoint", "export", root, folder / "out", "--format", "hf", "--prefix", "model.", "--shard-bytes", "71KB")
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert sorted(path.name for path in (folder / "out").iterdir()) == [*names, "model.safetensors.index.json"]
    index = json.loads((folder / "out" / "model.safetensors.index.json").read_text())
    expected = {name.removeprefix("model."): tensor.content for name, tensor in tensors().items() if name.startswith("model.")}
    assert index["metadata"]["total_size"] == sum(map(len, expected.values())) == report["bytes"]
    assert sorted(index["weight_map"]) == sorted(expected) and set(index["weight_map"].values()) == set(names)
    assert read_all(folder / "out") == expected
    for name, file in index["weight_map"].items():
        assert name in safetensors_numpy.load_file(folder / "out" / file)
    assert program.json("load", folder / "out")["tensors"] == 4


def test_only_chooses_and_what_is_not_there_is_an_error(program, root, folder):
    program.json("checkpoint", "export", root, folder / "out", "--format", "hf", "--only", "*.a", "--step", "5")
    assert sorted(read_all(folder / "out")) == ["model.a", "optim.a"]
    for arguments in (["--only", "nothing.*"], ["--prefix", "nothing."]):
        error = program.error("checkpoint", "export", root, folder / "none", "--format", "hf", *arguments)
        assert error["code"] == "not found" and "nothing." in error["text"]
    assert not (folder / "none").exists()
    assert program.run("checkpoint", "export", root, folder / "none").returncode == 2
    assert program.run("checkpoint", "export", root, folder / "none", "--format", "zip").returncode == 2


def test_t01_no_success_without_output_and_no_output_without_success(program, root, folder):
    def export(destination, **options):
        return program.run("checkpoint", "export", root, destination, "--format", "hf", **options)

    for destination in ("/proc/none/model", "/proc/model", folder / "no" / "model"):
        result = export(destination)
        assert result.returncode == 1 and str(destination).rsplit("/", 1)[0] in result.stderr, result.stderr
    limited = {"restore_signals": False, "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))}  # SIGXFSZ stays ignored
    result = export(folder / "out", **limited)
    assert result.returncode == 1 and "File too large" in result.stderr
    (folder / "there").mkdir()
    assert export(folder / "there", **limited).returncode == 1
    (folder / "full").mkdir()
    (folder / "full" / "config.json").write_text("{}")
    result = export(folder / "full")
    assert result.returncode == 1 and "--merge" in result.stderr
    flip(root / "step-5" / "node-2.0.1.safetensors", 3000)
    result = export(folder / "out")
    assert result.returncode == 1 and "node-2.0.1.safetensors" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["full", "run", "there"]
    assert [path.name for path in (folder / "full").iterdir()] == ["config.json"] and not list((folder / "there").iterdir())


def test_a_tensor_larger_than_the_memory_it_may_use(program, folder):
    write_sparse(folder / "run", 1, mib=384)
    most = 320 * 2**20
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most))}
    error = program.error("checkpoint", "export", folder / "run", folder / "out", "--format", "hf", "--memory", "1GiB", **limited)
    assert error["code"] == "out of memory" and "smaller window" in error["hint"] and not (folder / "out").exists()
    report = program.json("checkpoint", "export", folder / "run", folder / "out", "--format", "hf", "--memory", "16MiB", **limited)
    assert report["memory_bytes"] <= 16 * 2**20 and report["bytes"] == 384 * 2**20
    assert (folder / "out" / "model.safetensors").stat().st_size > 384 * 2**20


def test_transformers_loads_what_was_exported(program, folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    state = {f"state.{name}": Tensor("F32", list(value.shape), value.numpy().tobytes()) for name, value in model.state_dict().items()}
    write_checkpoint(folder / "run", 1, {**state, "optim.step": Tensor("I64", [], bytes(8))}, (2, 2))
    config.save_pretrained(folder / "model")
    program.json("checkpoint", "export", folder / "run", folder / "model", "--format", "hf", "--prefix", "state.", "--shard-bytes", "20KB", "--merge")
    assert len(list((folder / "model").glob("*.safetensors"))) > 1
    loaded, told = transformers.LlamaForCausalLM.from_pretrained(folder / "model", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"]
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
