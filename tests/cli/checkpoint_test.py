# SPDX-License-Identifier: Apache-2.0
"""infercluster checkpoint ls, show, verify, diff, prune and drain."""

import json
import random
import re

import pytest

from checkpoints import Tensor, sealed, write_checkpoint
from repositories import flip, state_of

COMMANDS = ["ls", "show", "verify", "diff", "prune", "drain", "export"]
NAMES = ["model.embed", "model.layers.0.weight", "model.norm", "optim.step"]


def tensors(seed: int = 0) -> dict[str, Tensor]:
    content = random.Random(seed).randbytes
    return {
        "model.embed": Tensor("BF16", [50, 40], content(4000)),
        "model.layers.0.weight": Tensor("F32", [301, 77, 3], content(301 * 77 * 3 * 4)),
        "model.norm": Tensor("F32", [40], content(160)),
        "optim.step": Tensor("I64", [], content(8)),
    }


@pytest.fixture
def root(folder):
    """Steps 100 to 400, of two to four ranks."""
    for step, mesh in ((100, (1, 2)), (200, (2, 2)), (300, (3, 1)), (400, (2, 1))):
        write_checkpoint(folder / "run", step, tensors(), mesh, {"note": "same"})
    return folder / "run"


def by_step(document: dict) -> dict[int, dict]:
    return {step["step"]: step for step in document["steps"]}


def test_help_has_examples_and_a_group_wants_a_command(program):
    for command in COMMANDS:
        text = program.run("checkpoint", command, "--help").stdout
        assert f"  infercluster checkpoint {command}" in text.split("Examples:")[1]
    assert program.run("checkpoint").returncode == 2
    assert program.run("checkpoint", "fly").returncode == 2


def test_a_root_that_is_not_there_is_named(program, folder):
    for arguments in (["ls"], ["show"], ["verify"], ["prune", "--keep", "1"]):
        error = program.error("checkpoint", arguments[0], folder / "none", *arguments[1:])
        assert error["code"] == "not found" and str(folder / "none") in error["text"]


def test_ls_tells_durable_verified_latest_and_leftovers_apart(program, root):
    (root / "step-300" / "COMMIT").unlink()
    segment = root / "step-400" / "node-1.0.1.safetensors"
    segment.write_bytes(segment.read_bytes()[:-1])
    trash = root / ".trash-step-7-0123456789abcdef"
    trash.mkdir()
    document = program.json("checkpoint", "ls", root)
    assert document["latest"] == 200
    steps = by_step(document)
    assert [(step["durable"], step["verified"], step["latest"]) for step in steps.values()] == [
        (True, True, False), (True, True, True), (False, False, False), (True, False, False)]
    assert [step["world"] for step in steps.values()] == [2, 4, None, 2]
    assert steps[300]["problem"] is None and steps[400]["problem"]["code"] == "corrupt"
    for number, step in steps.items():
        assert step["bytes"] == sum(path.stat().st_size for path in (root / f"step-{number}").iterdir())
    commit = root / "step-200" / "COMMIT"
    assert steps[200]["committed"] == pytest.approx(commit.stat().st_mtime)
    assert [entry["name"] for entry in document["trash"]] == [trash.name]
    lines = {line.split()[0]: line for line in program.run("checkpoint", "ls", root).stdout.splitlines()}
    assert lines["step-200"].endswith("durable, verified, latest")
    assert "not durable: no commit record" in lines["step-300"]
    assert "durable, not verified" in lines["step-400"] and segment.name in lines["step-400"]
    assert trash.name in lines


def test_ls_of_an_empty_folder_and_of_one_checkpoint(program, folder, root):
    (folder / "empty").mkdir()
    assert program.json("checkpoint", "ls", folder / "empty") == {"root": str(folder / "empty"), "latest": None, "steps": [], "trash": []}
    assert "no checkpoints" in program.run("checkpoint", "ls", folder / "empty").stdout
    assert "folder that holds it" in program.error("checkpoint", "ls", root / "step-100")["hint"]


def test_a_newer_format_is_refused_by_its_version(program, root):
    commit = root / "step-400" / "COMMIT"
    body = json.loads(commit.read_text())
    del body["crc32c"]
    commit.write_text(sealed({**body, "version": 2}))
    before = state_of(root)
    assert "version 2" in by_step(program.json("checkpoint", "ls", root))[400]["problem"]["text"]
    for arguments in (["show", root, "--step", "400"], ["export", root, root / "out", "--format", "hf", "--step", "400"]):
        error = program.error("checkpoint", *arguments)
        assert error["code"] == "unsupported" and "version 2" in error["text"]
    result = program.run("checkpoint", "verify", root)
    assert result.returncode == 1 and "version 2" in result.stderr
    assert program.json("checkpoint", "prune", root, "--keep", "1", "--yes")["remove"]
    assert (root / "step-400" / "COMMIT").exists() and {name: at for name, at in before.items() if "400" in name}.items() <= state_of(root).items()


def test_show_names_tensors_chunks_metadata_and_segments(program, root):
    document = program.json("checkpoint", "show", root, "--step", "200")
    assert [tensor["name"] for tensor in document["tensors"]] == NAMES
    assert document["tensors"][1] == {"name": NAMES[1], "dtype": "F32", "shape": [301, 77, 3], "chunks": 4, "bytes": 301 * 77 * 3 * 4}
    assert (document["step"], document["epoch"], document["world"], document["plan_hash"]) == (200, 1, 4, "0" * 32)
    assert document["metadata"] == [{"key": "note", "ranks": 4}]
    assert document["groups"]["model"]["tensors"] == 3
    for segment in document["segments"]:
        assert segment["bytes"] == (root / "step-200" / segment["name"]).stat().st_size
    assert "tensors" not in program.json("checkpoint", "show", root, "--summary")
    assert program.json("checkpoint", "show", root)["step"] == 400
    assert program.json("checkpoint", "show", root / "step-100")["step"] == 100
    assert all(name in program.run("checkpoint", "show", root).stdout for name in NAMES)
    error = program.error("checkpoint", "show", root, "--step", "5")
    assert error["code"] == "not found" and "checkpoint ls" in error["hint"]


@pytest.mark.parametrize("backend", ["auto", "threads"])
def test_verify_names_the_first_bad_block_and_goes_on(program, root, backend):
    environment = {"INFERCLUSTER_BACKEND": backend}
    assert program.json("checkpoint", "verify", root, "--all", env=environment)["good"] is True
    bad = root / "step-200" / "node-3.0.1.safetensors"
    size = bad.stat().st_size
    flip(bad, size - 1)
    (root / "step-300" / "COMMIT").unlink()
    before = state_of(root)
    result = program.run("checkpoint", "verify", root, "--all", "--json", env=environment)
    assert result.returncode == 1 and state_of(root) == before
    steps = by_step(json.loads(result.stdout))
    assert [steps[step]["good"] for step in (100, 200, 300, 400)] == [True, False, False, True]
    modes = {segment["mode"] for segment in steps[400]["segments"]}
    assert modes <= {"direct", "buffered", "resident"}
    never = program.json("checkpoint", "verify", root, "--step", "400", env={**environment, "INFERCLUSTER_DIRECT": "never"})
    assert "direct" not in {segment["mode"] for step in never["steps"] for segment in step["segments"]}
    assert steps[300]["skipped"] is True and steps[400]["bytes"] > 0
    (error,) = [segment["error"] for segment in steps[200]["segments"] if segment["error"]]
    assert (error["path"], error["tensor"], error["offset"]) == (str(bad), "model.layers.0.weight", (size - 1) // 65536 * 65536)
    assert error["text"] in result.stderr and "1 of 3 checkpoints bad" in result.stderr
    text = program.run("checkpoint", "verify", root, "--all", env=environment).stdout
    assert re.search(r"BAD +step-200", text) and re.search(r"good +step-400", text) and "step-300  not durable" in text
    assert program.run("checkpoint", "verify", root, "--step", "100", "--quiet", env=environment).stdout == ""
    assert program.run("checkpoint", "verify", root, "--step", "200").returncode == 1
    assert program.run("checkpoint", "verify", root, "--step", "300").returncode == 1
    assert program.run("checkpoint", "verify", root / "step-200").returncode == 1
    assert program.run("checkpoint", "verify", root).returncode == 0


def test_verify_takes_the_highest_that_claims_to_be_one_and_is_never_good_of_nothing(program, root):
    (root / "step-400" / "node-0.1.index.json").write_text("{}")
    result = program.run("checkpoint", "verify", root)
    assert result.returncode == 1 and "node-0.1.index.json" in result.stderr
    for step in (100, 200, 300, 400):
        (root / f"step-{step}" / "COMMIT").unlink()
    assert program.error("checkpoint", "verify", root, "--all")["code"] == "not found"
    assert program.run("checkpoint", "verify", root, "--step", "1", "--all").returncode == 2


def test_diff_exits_as_diff_does(program, root):
    other = tensors()
    changed = bytearray(other["model.layers.0.weight"].content)
    changed[(300 * 77 + 5) * 12 + 4] ^= 1
    other["model.layers.0.weight"].content = bytes(changed)
    other["model.norm"] = Tensor("F16", [40], bytes(80))
    other["extra"] = other.pop("optim.step")
    write_checkpoint(root.parent / "other", 100, other, (3, 2), {"note": "other"})

    same = program.run("checkpoint", "diff", root, "--step", "100", "--step", "200", "--json")
    assert same.returncode == 0 and json.loads(same.stdout)["same"] is True
    result = program.run("checkpoint", "diff", root, root.parent / "other", "--memory", "100KiB", "--json")
    assert result.returncode == 1, result.stderr
    document = json.loads(result.stdout)
    assert document["differences"] == [
        {"tensor": "extra", "kind": "only in B"},
        {"tensor": "model.layers.0.weight", "kind": "values", "elements": 1, "first": [300, 5, 1]},
        {"tensor": "model.norm", "kind": "dtype or shape", "a": "F32 [40]", "b": "F16 [40]"},
        {"tensor": "optim.step", "kind": "only in A"},
    ]
    assert document["metadata"] == ["note"] and document["equal"] == 1
    text = program.run("checkpoint", "diff", root, root.parent / "other", "--step", "100").stdout
    assert "1 element differs, the first at [300, 5, 1]" in text and "1 tensors equal, 4 not" in text
    for arguments in ([root], [root, "--step", "100"], [root, "--step", "1", "--step", "2", "--step", "3"], [root, root, root]):
        assert program.run("checkpoint", "diff", *arguments).returncode == 2, arguments
    trouble = program.run("checkpoint", "diff", root, root.parent / "none")
    assert trouble.returncode == 2 and str(root.parent / "none") in trouble.stderr
    flip(root / "step-200" / "node-0.0.1.safetensors", 2000)
    assert program.run("checkpoint", "diff", root, "--step", "100", "--step", "200").returncode == 2


def test_prune_shows_and_removes_with_yes_alone(program, root):
    (root / "step-300" / "COMMIT").unlink()
    (root / ".trash-step-7-0123456789abcdef").mkdir()
    before = state_of(root)
    document = program.json("checkpoint", "prune", root, "--keep", "1", "--keep-every", "200")
    assert document["done"] is False and state_of(root) == before
    assert [entry["step"] for entry in document["remove"]] == [100]
    assert [entry["step"] for entry in document["stay"]] == [200, 400]
    assert [entry["name"] for entry in document["leftovers"]] == ["step-300", ".trash-step-7-0123456789abcdef"]
    text = program.run("checkpoint", "prune", root, "--keep", "1").stdout
    assert "2 checkpoints would go" in text and "--yes" in text and "step-300" in text and state_of(root) == before
    assert program.run("checkpoint", "prune", root).returncode == 2
    assert program.run("checkpoint", "prune", root, "--keep", "0").returncode == 2
    text = program.run("checkpoint", "prune", root, "--keep", "1", "--keep-every", "200", "--yes").stdout
    assert "removed 1 of 1" in text
    assert sorted(path.name for path in root.iterdir()) == [".trash-step-7-0123456789abcdef", "step-200", "step-300", "step-400"]
    assert program.json("checkpoint", "verify", root, "--all")["good"] is True


def test_prune_leaves_what_holds_other_files_and_says_so(program, root):
    (root / "step-100" / "notes.txt").write_text("mine")
    result = program.run("checkpoint", "prune", root, "--keep", "2", "--yes", "--json")
    assert result.returncode == 1 and "notes.txt" in result.stderr
    removed = {entry["step"]: entry["error"] for entry in json.loads(result.stdout)["remove"]}
    assert removed[200] is None and "notes.txt" in removed[100]["text"]
    assert (root / "step-100" / "COMMIT").exists() and not (root / "step-200").exists()


def test_a_stock_dcp_directory_is_told(program, root):
    (root / "step-500").mkdir()
    (root / "step-500" / ".metadata").write_bytes(b"pickled")
    (root / "step-500" / "__0_0.distcp").write_bytes(b"zipped")
    document = program.json("checkpoint", "ls", root)
    steps = by_step(document)
    assert steps[500]["stock_dcp"] and not steps[500]["durable"] and not steps[400]["stock_dcp"]
    assert document["latest"] == 400
    lines = {line.split()[0]: line for line in program.run("checkpoint", "ls", root).stdout.splitlines()}
    assert lines["step-500"].endswith("stock DCP checkpoint (torch.distributed.checkpoint)")
    for words in ([root, "--step", "500"], [root / "step-500"]):
        error = program.error("checkpoint", "show", *words)
        assert "stock checkpoint of torch.distributed.checkpoint" in error["text"] and "checkpoint import" in error["hint"]
    program.json("checkpoint", "prune", root, "--keep", "1", "--yes")
    assert (root / "step-500" / "__0_0.distcp").exists()


def test_drain_makes_the_latest_durable_on_the_lower_tier(program, folder, root):
    lower = folder / "lower"
    lower.mkdir()
    document = program.json("checkpoint", "drain", root, lower)
    assert (document["step"], document["was_durable"], document["bytes_resumed"]) == (400, False, 0)
    assert document["bytes"] == sum(path.stat().st_size for path in (root / "step-400").glob("*.safetensors"))
    assert program.json("checkpoint", "verify", lower)["good"] is True
    assert program.run("checkpoint", "diff", root, lower, "--step", "400").returncode == 0
    assert program.json("checkpoint", "drain", root, lower)["was_durable"] is True
    assert "durable already" in program.run("checkpoint", "drain", root, lower).stdout
    assert "step-100" in program.run("checkpoint", "drain", root, lower, "--step", "100", "--max-rate", "100MB").stdout
    assert sorted(by_step(program.json("checkpoint", "ls", lower))) == [100, 400]


def test_drain_refuses_what_is_wrong_or_of_another_save(program, folder, root):
    lower = folder / "lower"
    lower.mkdir()
    flip(root / "step-400" / "node-0.0.1.safetensors", 2000)
    error = program.error("checkpoint", "drain", root, lower)
    assert error["code"] == "corrupt" and "step-400/node-0.0.1.safetensors" in error["text"]
    assert program.json("checkpoint", "ls", lower)["latest"] is None
    write_checkpoint(lower, 300, tensors(1), (1, 1), {}, save_id="f" * 16)
    assert "--replace" in program.error("checkpoint", "drain", root, lower, "--step", "300")["hint"]
    assert program.json("checkpoint", "drain", root, lower, "--step", "300", "--replace")["epoch"] == 2
    assert program.run("checkpoint", "diff", root, lower, "--step", "300").returncode == 0
    assert program.error("checkpoint", "drain", root, root)["code"] == "invalid argument"
    assert program.error("checkpoint", "drain", root, lower, "--step", "7")["code"] == "not found"
