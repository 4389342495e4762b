# SPDX-License-Identifier: Apache-2.0
"""Cases L02, L04, L05, L07 and L08 as the program's user meets them: what is damaged, missing or hostile is named before anything is loaded."""

import json
import os
import pickle
import zipfile

import pytest

from repositories import index_text, pack, shard, shard_bytes, shard_name, write_hub

COMMANDS = ("load", "inspect", "plan", "verify")


def data_begin(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


@pytest.mark.parametrize("cut", ["one byte", "at a tensor's end", "inside the header", "7 bytes", "empty"])
@pytest.mark.parametrize("command", COMMANDS)
def test_l02_a_shard_that_is_cut_is_named_with_both_sizes(program, model, cut, command):
    path = shard(model, 1)
    content = path.read_bytes()
    length = {"one byte": len(content) - 1, "at a tensor's end": data_begin(content) + 2**20, "inside the header": 100, "7 bytes": 7, "empty": 0}[cut]
    path.write_bytes(content[:length])
    error = program.error(command, model)
    assert str(path) in error["text"]
    assert error["code"] == "corrupt"
    assert str(length) in error["text"], "the actual size"
    if cut in ("one byte", "at a tensor's end"):
        assert str(len(content)) in error["text"], "the size that the header asks for"
    for other in (0, 2):
        assert shard(model, other).name not in error["text"]


@pytest.mark.parametrize("kind", ["lfs", "html", "pickle", "zip"])
def test_l04_what_is_no_safetensors_file_is_named_in_plain_words(program, model, kind):
    path = shard(model, 0)
    if kind == "lfs":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4932307584\n")
    elif kind == "html":
        path.write_text("<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n" * 3)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"weight": list(range(1000))}, protocol=2))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", b"x" * 1000)
    for command in COMMANDS:
        error = program.error(command, model)
        assert str(path) in error["text"]
        assert {"lfs": "LFS pointer", "html": "HTML", "pickle": "pickle", "zip": "zip"}[kind].lower() in error["text"].lower()
    lines = program.run("load", path)
    assert lines.returncode == 1 and lines.stderr.count("\n") < 5


def test_l05_every_missing_file_is_listed_at_once(program, model):
    shard(model, 2).unlink()
    shard(model, 0).unlink()
    error = program.error("load", model)
    assert error["code"] == "not found"
    for number in (0, 2):
        assert shard_name(number, 3) in error["text"]
    assert shard_name(1, 3) not in error["text"]
    assert "download" in error["text"] or "fetch" in error["text"].lower()


def test_l05_a_tensor_that_its_shard_lacks_is_named(program, model):
    index = json.loads((model / "model.safetensors.index.json").read_text())
    index["weight_map"]["layers.0.extra"] = shard_name(0, 3)
    index["weight_map"]["layers.1.extra"] = shard_name(1, 3)
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    error = program.error("load", model)
    assert "layers.0.extra" in error["text"] and "layers.1.extra" in error["text"]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": {}}', '{"weight_map": []}', "\x00\x01"])
def test_l05_an_index_that_is_none_is_refused(program, model, text):
    (model / "model.safetensors.index.json").write_text(text)
    error = program.error("load", model)
    assert "index.json" in error["text"]


def test_l05_a_wrong_total_size_alone_is_a_warning(program, model):
    index = json.loads(index_text(3))
    index["metadata"]["total_size"] += 1
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    report = program.json("load", model)
    assert any("total_size" in notice for notice in report["notices"])
    assert any("total_size" in warning for warning in program.json("inspect", model)["warnings"])


@pytest.mark.parametrize("name", ["../x/secret.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b.safetensors", "nul\0.safetensors", ""])
def test_l07_an_index_cannot_lead_out_of_the_folder(program, model, folder, name):
    secret = folder / "x"
    secret.mkdir()
    (secret / "secret.safetensors").write_bytes(shard_bytes(0))
    index = json.loads(index_text(3))
    index["weight_map"]["layers.0.weight"] = name
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    error = program.error("load", model)
    assert error["code"] in ("corrupt", "invalid argument", "permission denied"), error
    assert "layers.0.weight" in error["text"] or (name.strip("\0") and name.split("\0")[0] in error["text"])


def test_l07_a_link_out_of_the_folder_is_refused_and_those_of_the_cache_work(program, model, folder):
    outside = folder / "outside.safetensors"
    outside.write_bytes(shard_bytes(0))
    shard(model, 0).unlink()
    (model / shard_name(0, 3)).symlink_to(outside)
    assert shard_name(0, 3) in program.error("load", model)["text"]

    snapshot = write_hub(folder / "hub")
    assert program.json("load", snapshot)["tensors"] == 15
    environment = {"HF_HOME": str(folder / "home")}
    (folder / "home").mkdir()
    os.rename(folder / "hub", folder / "home" / "hub")
    assert program.json("load", "org/name", env=environment)["tensors"] == 15
    assert program.json("load", "org/name", "--revision", "c" * 40, env=environment)["tensors"] == 15
    moved = folder / "home" / "hub" / snapshot.relative_to(folder / "hub")
    shard(moved, 1).resolve().unlink()
    error = program.error("load", "org/name", env=environment)
    assert shard_name(1, 5) in error["text"] and "blob" in error["text"]


def test_l08_empty_tensors_and_files_load(program, folder):
    path = folder / "empty.safetensors"
    path.write_bytes(pack({"start": ("F32", [0], b""), "a": ("U8", [3], b"abc"), "middle": ("F64", [0, 4], b""), "scalar": ("U8", [], b"x"), "end": ("I16", [2, 0], b"")}))
    report = program.json("load", path)
    assert (report["tensors"], report["bytes"]) == (5, 4)
    for content in (pack({}), pack({}, {"only": "metadata"}), pack({"a": ("F32", [0, 3], b"")})):
        path.write_bytes(content)
        report = program.json("load", path)
        assert report["bytes"] == 0 and report["requests"] == 0


def test_l01_a_duplicate_name_is_called_that(program, folder):
    text = b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"\\u0061":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}'
    path = folder / "twice.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    for command in COMMANDS:
        error = program.error(command, path)
        assert "duplicate" in error["text"].lower() and '"a"' in error["text"] and str(path) in error["text"]


def test_reference_compatibility_is_for_those_who_ask(program, folder):
    text = b'{"a":["U8",[4],[0,4]]}'
    path = folder / "array.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"abcd")
    assert program.error("load", path)["code"] == "corrupt"
    assert program.json("load", path, "--compat", "reference")["bytes"] == 4
