# SPDX-License-Identifier: Apache-2.0
"""Seals and verification, of which case T02: one bad file is named, and nothing is touched."""

import json

import pytest

from repositories import flip, shard, state_of, write_hub, write_model


@pytest.mark.parametrize("backend", ["auto", "threads"])
def test_sealed_files_are_verified_as_they_load(program, model, backend):
    sealed = program.json("seal", model)
    assert [file["seal"] for file in sealed["files"]] == [str(shard(model, number)) + ".icseal" for number in range(3)]
    report = program.json("load", model, "--verify", "--backend", backend)
    assert {file["verification"] for file in report["files"]} == {"seal"}
    assert program.json("verify", model)["good"] is True

    flip(shard(model, 1), 1_500_000)
    error = program.error("load", model, "--backend", backend)
    assert error["code"] == "corrupt"
    assert error["path"] == str(shard(model, 1))
    assert error["tensor"] == "layers.1.other"
    assert abs(error["offset"] - 1_500_000) <= 65536
    assert program.json("load", model, "--verify=never", "--backend", backend)["bytes"] > 0


def test_verify_always_without_checksums_is_refused_before_reading(program, model):
    error = program.error("load", model, "--verify")
    assert error["code"] == "unsupported"
    assert str(model) in error["text"]


def test_seals_in_a_directory_of_their_own(program, model, folder):
    seals = folder / "seals"
    before = state_of(model)
    program.json("seal", model, "--seal-dir", seals)
    assert state_of(model) == before
    assert len(list(seals.glob("*.icseal"))) == 3
    assert program.json("verify", model, "--seal-dir", seals)["good"] is True
    assert program.json("load", model, "--verify", env={"INFERCLUSTER_SEAL_DIR": str(seals)})["files"][0]["verification"] == "seal"


def test_a_damaged_seal_is_named_and_a_newer_one_by_its_version(program, model):
    program.json("seal", model)
    seal = shard(model, 0).with_name(shard(model, 0).name + ".icseal")
    good = seal.read_bytes()
    flip(seal, 50)
    assert "seal is damaged" in program.run("verify", model).stderr
    seal.write_bytes(good[:8] + b"\x02" + good[9:])
    assert "version 2" in program.run("verify", model).stderr
    seal.write_bytes(good)
    assert program.run("verify", model).returncode == 0


def test_t02_bad_files_are_named_and_nothing_is_touched(program, folder):
    model = write_model(folder / "model", shards=5)
    program.json("seal", model)
    flip(shard(model, 1), 1_000_000)
    flip(shard(model, 3), 2_000_000)
    before = state_of(model)
    result = program.run("verify", model)
    assert result.returncode == 1
    assert state_of(model) == before
    for number in range(5):
        assert (f"{shard(model, number)}: tensor" in result.stderr) == (number in (1, 3)), result.stderr
    assert "2 of 5 files bad" in result.stderr
    assert f"Fetch only these files again: {shard(model, 1).name} {shard(model, 3).name}" in result.stderr
    document = program.run("verify", model, "--json")
    assert document.returncode == 1 and '"good": false' in document.stdout


def test_t02_in_a_hub_cache_offline(program, folder):
    snapshot = write_hub(folder / "hub")
    environment = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    report = program.json("verify", "org/name", env=environment)
    assert report["good"] is True and {file["method"] for file in report["files"]} == {"sha256"}
    flip(shard(snapshot, 2).resolve(), 1_000_000)
    before = state_of(folder)
    result = program.run("verify", "org/name", env=environment)
    assert result.returncode == 1
    assert state_of(folder) == before
    assert "1 of 5 files bad" in result.stderr
    assert f"hf download org/name {shard(snapshot, 2).name} --revision {'c' * 40}" in result.stderr
    error = program.error("load", "org/name", "--verify", env=environment)
    assert shard(snapshot, 2).name in error["text"]


def test_files_without_checksums_are_not_called_good(program, model):
    result = program.run("verify", model)
    assert result.returncode == 1
    assert "cannot be verified" in result.stderr
    assert {file["method"] for file in json.loads(program.run("verify", model, "--json").stdout)["files"]} == {"none"}
