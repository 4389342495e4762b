# SPDX-License-Identifier: Apache-2.0
"""Exit codes, help, the one JSON document, and what each subcommand says."""

import json
import os
import pathlib
import re
import resource
import subprocess

import pytest

from repositories import pack, shard

COMMANDS = ["load", "inspect", "plan", "verify", "seal", "checkpoint", "doctor", "synth", "completion"]
MODEL_BYTES = 3 * (2 * 2**20 + 4)


def test_wrong_usage_exits_2(program, model):
    for arguments in ([], ["fly"], ["load"], ["load", model, "--backend", "magic"], ["load", model, "--memory", "much"],
                      ["load", model, "--shard", "0:8:8"], ["load", model, "--slice", "x"], ["completion", "tcsh"], ["plan", model, "--world", "0"]):
        result = program.run(*arguments)
        assert result.returncode == 2, (arguments, result.stderr)
        assert result.stderr and not result.stdout, arguments


def test_failure_exits_1_and_names_the_path(program, folder):
    for command in ("load", "inspect", "plan", "verify", "seal"):
        error = program.error(command, folder / "none")
        assert error["code"] == "not found"
        assert str(folder / "none") in error["text"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(program, command):
    result = program.run(command, "--help")
    assert result.returncode == 0
    assert f"  infercluster {command}" in result.stdout.split("Examples:")[1]


def test_version_and_environment_in_help(program):
    assert program.run("--version").stdout.startswith("infercluster 0.")
    text = program.run("--help").stdout
    for variable in ("BACKEND", "DIRECT", "PAGE_CACHE", "MEMORY", "VERIFY", "SEAL_DIR"):
        assert f"INFERCLUSTER_{variable}" in text
    for command in COMMANDS:
        assert command in text


@pytest.mark.parametrize("backend", ["uring", "threads"])
@pytest.mark.parametrize("direct", ["auto", "never"])
def test_load_reports_what_it_did(program, model, backend, direct):
    if backend == "uring" and any(finding["subject"] == "io_uring" and finding["level"] == "warning" for finding in program.json("doctor")["findings"]):
        pytest.skip("io_uring is refused on this machine")
    report = program.json("load", model, "--backend", backend, "--direct", direct)
    assert (report["bytes"], report["tensors"]) == (MODEL_BYTES, 9)
    assert report["gib_per_s"] == pytest.approx(report["bytes"] / 2**30 / report["seconds"])
    assert report["backend"] == {"uring": "io_uring", "threads": "threads"}[backend]
    assert report["bytes"] <= report["peak_host_bytes"] <= report["bytes"] + 64 * 2**20
    assert sorted(report["waited"]) == ["memory", "other", "storage", "verify"]
    assert sum(report["waited"].values()) == pytest.approx(report["seconds"], rel=0.05, abs=0.005)
    assert report["moved_bytes"] >= 0
    assert [pathlib.Path(file["path"]).name for file in report["files"]] == [shard(model, number).name for number in range(3)]
    for file in report["files"]:
        assert file["mode"] in ("direct", "buffered", "resident") and file["reason"]
        assert direct == "auto" or file["mode"] != "direct"
        assert file["bytes"] == MODEL_BYTES // 3
        assert file["verification"].startswith("unverified: ")


def test_quiet_prints_nothing_and_text_says_the_essentials(program, model):
    quiet = program.run("load", model, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    text = program.run("load", model).stdout
    assert text.startswith("loaded 9 tensors in 3 files, 6.0 MiB in ")
    assert "waited for storage" in text


def test_names_slices_and_shards_choose(program, model):
    assert program.json("load", model, "--names", "layers.1.*")["bytes"] == MODEL_BYTES // 3
    assert program.json("load", model, "--names", "layers.1.scale", "layers.2.scale")["bytes"] == 8
    assert program.json("load", model, "--shard", "0:1:4")["bytes"] == 3 * (2**19 + 4)
    assert program.json("load", model, "--names", "layers.0.weight", "--slice", "layers.0.weight=0:10,0:2")["bytes"] == 40
    assert "layers.9.weight" in program.error("load", model, "--names", "layers.9.weight")["message"]


def test_environment_gives_defaults_and_options_come_first(program, model):
    assert program.json("load", model, env={"INFERCLUSTER_BACKEND": "threads"})["backend"] == "threads"
    assert "INFERCLUSTER_DIRECT" in program.error("load", model, env={"INFERCLUSTER_DIRECT": "perhaps"})["text"]
    report = program.json("load", model, "--direct", "never", env={"INFERCLUSTER_DIRECT": "always"})
    assert all(file["mode"] != "direct" for file in report["files"])


def test_inspect_lists_tensors(program, model):
    document = program.json("inspect", model)
    assert (document["tensor_count"], document["bytes"]) == (9, MODEL_BYTES)
    assert document["dtypes"]["F32"] == {"tensors": 3, "bytes": 12}
    first = document["tensors"][0]
    assert (first["name"], first["dtype"], first["shape"]) == ("layers.0.weight", "BF16", [8192, 64])
    content = pathlib.Path(first["file"]).read_bytes()
    assert int.from_bytes(content[:8], "little") + 8 == first["offset"]
    assert "tensors" not in program.json("inspect", model, "--summary")
    text = program.run("inspect", model, "--names", "*.scale").stdout
    assert "layers.2.scale" in text and "layers.2.weight" not in text


def test_plan_divides_among_ranks(program, model):
    document = program.json("plan", model, "--world", "4", "--no-probe")
    assert [rank["rank"] for rank in document["ranks"]] == [0, 1, 2, 3]
    for rank in document["ranks"]:
        assert rank["bytes"] == 3 * (2**19 + 4)
        assert rank["bytes_read"] <= rank["bytes"] + 9 * 2 * 4096
        assert rank["memory_bytes"] >= rank["bytes"] and rank["working_bytes"] < 64 * 2**20
        assert rank["predicted_seconds"] is None
    (single,) = program.json("plan", model)["ranks"]
    assert single["predicted_seconds"] > 0
    assert single["bytes"] == program.json("load", model)["bytes"]
    (only,) = program.json("plan", model, "--world", "4", "--rank", "2", "--no-probe")["ranks"]
    assert only["rank"] == 2
    assert program.run("plan", model, "--world", "4", "--rank", "4").returncode == 1


def test_doctor_names_consequence_and_remedy(program, model):
    findings = {finding["subject"]: finding for finding in program.json("doctor", model)["findings"]}
    for subject in ("io_uring", "locked memory", "huge pages", "NUMA", "memory", "NVIDIA driver", "file system", "direct I/O", "page cache", "checksums"):
        assert subject in findings, findings.keys()
    for finding in findings.values():
        assert finding["level"] in ("good", "note", "warning") and finding["state"]
    assert "0 of 3 files sealed" in findings["checksums"]["state"]
    assert "infercluster seal" in findings["checksums"]["remedy"]
    assert "io_uring" in program.run("doctor").stdout


def test_synth_writes_what_load_reads(program, folder):
    target = folder / "synthetic"
    arguments = ("--bytes", "8MiB", "--shards", "3", "--seed", "7")
    written = program.json("synth", target, *arguments)
    assert len(written["shards"]) == 3 and abs(written["bytes"] - 8 * 2**20) < 0.01 * 8 * 2**20
    assert program.json("load", target)["bytes"] == written["bytes"]
    assert (target / "config.json").exists() and (target / "tokenizer.json").exists()
    program.json("synth", folder / "again", *arguments)
    for path in target.iterdir():
        assert path.read_bytes() == (folder / "again" / path.name).read_bytes(), path.name
    assert program.run("synth", target).returncode == 1, "a directory that is not empty is left alone"


def test_output_that_cannot_be_written_is_a_failure(program, model):
    with open("/dev/full", "w") as full:
        result = subprocess.run([program.path, "inspect", model, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert "standard output" in result.stderr


def test_bash_completion_completes(program, model, folder):
    script = program.run("completion", "bash").stdout

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        driver = f"{script}\nCOMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _infercluster; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        return subprocess.run(["bash", "-c", driver], capture_output=True, text=True, check=True, cwd=folder).stdout.split()

    assert complete("infercluster", "ver") == ["verify"]
    assert complete("infercluster", "load", "--bac") == ["--backend"]
    assert complete("infercluster", "load", "--backend", "") == ["auto", "uring", "threads"]
    assert complete("infercluster", "load", "mod") == ["model"]
    assert complete("infercluster", "completion", "f") == ["fish"]
    assert complete("infercluster", "checkpoint", "") == ["ls", "show", "verify", "diff", "prune", "drain", "import", "export"]
    assert complete("infercluster", "checkpoint", "verify", "--a") == ["--all"]
    assert complete("infercluster", "verify", "--a") == ["--allow-trailing-bytes"]
    assert complete("infercluster", "checkpoint", "export", "mod") == ["model"]
    assert complete("infercluster", "checkpoint", "export", "--format", "") == ["hf", "dcp", "torch"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_command(program, shell):
    script = program.run("completion", shell).stdout
    for command in COMMANDS:
        assert command in script
    nested = {"zsh": "'checkpoint prune')", "fish": "'__fish_seen_subcommand_from checkpoint; and __fish_seen_subcommand_from prune' -l keep-every"}
    assert nested[shell] in script


def test_json_is_one_document_even_with_odd_names(program, folder):
    path = folder / "odd.safetensors"
    path.write_bytes(pack({'quote" \\ \u00fc\n': ("U8", [1], b"x")}, {"key": "value"}))
    document = program.json("inspect", path)
    assert document["tensors"][0]["name"] == 'quote" \\ \u00fc\n'
    assert document["metadata"] == {"key": "value"}
    assert json.loads(json.dumps(document)) == document


def read_until_closed(leader: int) -> bytes:
    output = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # EIO: the other side of the terminal is closed
            break
        if not piece:
            break
        output += piece
    os.close(leader)
    return output


def test_colours_only_on_a_terminal_and_not_with_no_color(program):
    def doctor_on_terminal(no_color: str) -> bytes:
        leader, follower = os.openpty()
        with subprocess.Popen([program.path, "doctor"], stdout=follower, stderr=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": no_color}) as process:
            os.close(follower)
            output = read_until_closed(leader)
        assert process.returncode == 0
        return output

    assert b"\x1b[" in doctor_on_terminal("")
    assert b"\x1b[" not in doctor_on_terminal("1")
    assert "\x1b[" not in program.run("doctor").stdout


def test_l14_memory_is_as_small_as_the_work_and_a_budget_that_cannot_do_is_refused_with_the_figure(program, model):
    assert program.run("load", model, "--memory", "-1").returncode == 2
    assert "at least" in program.error("load", model, "--memory", "0")["text"]
    error = program.error("load", model, "--memory", "1")
    assert error["code"] == "too large"
    enough = int(re.search(r"\((\d+) bytes\)", error["text"]).group(1))
    assert program.json("load", model, "--memory", enough)["working_bytes"] <= enough
    assert program.run("load", model, "--memory", enough - 1).returncode == 1
    wide = program.json("load", model, "--memory", "2GiB")
    assert wide["peak_host_bytes"] < MODEL_BYTES + 16 * 2**20


def test_more_shards_than_the_soft_limit_of_open_files(program, folder):
    for index in range(1200):
        (folder / f"{index:04}.safetensors").write_bytes(pack({f"t{index}": ("U8", [3], b"abc")}))

    def limited(soft: int, hard: int) -> dict:
        return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))}

    for direct in ("auto", "always"):
        assert program.json("load", folder, "--direct", direct, **limited(1024, 4096))["tensors"] == 1200
    error = program.error("load", folder, **limited(1024, 1024))
    assert "Too many open files" in error["text"] and "1024" in error["text"] and "ulimit -n" in error["text"]
