# SPDX-License-Identifier: Apache-2.0
"""Case T03 and its kind: kernels, containers and mounts that refuse io_uring, direct I/O, memory, writing or privileges."""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from repositories import write_model

REFUSE = [sys.executable, str(pathlib.Path(__file__).resolve().parents[1] / "tools" / "refuse_calls.py")]


def warnings_of(result: subprocess.CompletedProcess) -> list[str]:
    return [line for line in result.stderr.splitlines() if line]


@pytest.mark.parametrize("refusal", ["EPERM", "ENOSYS"])
def test_t03_without_io_uring_threads_read_and_one_line_says_why(program, model, refusal):
    wrapper = [*REFUSE, "--uring", refusal, "--"]
    expected = program.json("load", model)
    result = program.run("load", model, "--json", wrapper=wrapper)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["backend"] == "threads" and report["backend_reason"]
    assert (report["bytes"], report["tensors"]) == (expected["bytes"], expected["tensors"])
    notices = warnings_of(result)
    assert len(notices) == 1 and "io_uring" in notices[0], notices
    assert program.run("load", model, "--backend", "uring", wrapper=wrapper).returncode == 1
    findings = {finding["subject"]: finding for finding in program.json("doctor", wrapper=wrapper)["findings"]}
    assert findings["io_uring"]["level"] == "warning" and findings["io_uring"]["remedy"]


@pytest.mark.parametrize("backend", ["uring", "threads"])
def test_l10_direct_io_refused_at_open_means_buffered_reads_and_one_notice(program, model, backend):
    program.json("seal", model)  # so that every byte is checked
    drop_from_page_cache(model)
    plain = program.json("load", model, "--backend", backend, "--page-cache", "bypass")
    if any(file["mode"] != "direct" for file in plain["files"]):
        pytest.skip(f"these files are not read directly here: {plain['files'][0]['reason']}")
    wrapper = [*REFUSE, "--direct", "EINVAL", "--"]
    drop_from_page_cache(model)
    result = program.run("load", model, "--verify", "--json", "--backend", backend, wrapper=wrapper)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {file["mode"] for file in report["files"]} == {"buffered"}
    assert report["bytes"] == plain["bytes"]
    assert {file["verification"] for file in report["files"]} == {"seal"}
    drop_from_page_cache(model)
    strict = program.error("load", model, "--direct", "always", "--backend", backend, wrapper=wrapper)
    assert str(model) in strict["text"]


def drop_from_page_cache(model: pathlib.Path) -> None:
    for path in model.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def memory_group(limit: int):
    """A fresh memory control group of this limit (v1 or v2); yields the file that takes processes."""
    for root, limit_name, available in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
                                        ("/sys/fs/cgroup", "memory.max", "/sys/fs/cgroup/cgroup.subtree_control")):
        if not os.path.exists(available):
            continue
        if root == "/sys/fs/cgroup" and "memory" not in pathlib.Path(available).read_text():
            continue
        group = pathlib.Path(root) / f"infercluster-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError as error:
            pytest.skip(f"no control group can be made: {error}")
        try:
            (group / limit_name).write_text(str(limit))
            yield group / "cgroup.procs"
        finally:
            group.rmdir()
        return
    pytest.skip("no memory controller is to be seen")


def in_group(procs: pathlib.Path) -> list[str]:
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs)]


@pytest.mark.parametrize("page_cache", ["auto", "keep"])
def test_a_memory_limit_just_above_the_model_suffices(program, folder, page_cache):
    model = write_model(folder / "model", shards=2, mib=64)
    program.json("seal", model)
    drop_from_page_cache(model)
    size = 2 * (2 * 64 * 2**20 + 4)
    with memory_group(size + 64 * 2**20) as procs:
        result = program.run("load", model, "--verify", "--json", "--page-cache", page_cache, wrapper=in_group(procs))
    assert result.returncode == 0, (result.returncode, result.stderr)
    report = json.loads(result.stdout)
    assert report["bytes"] == size
    assert page_cache == "keep" or report["page_cache_fill_bytes"] == 0, "a copy in the page cache would not fit beside the model"


def test_a_model_that_cannot_fit_is_refused_and_not_killed(program, folder):
    model = write_model(folder / "model", shards=2, mib=64)
    with memory_group(160 * 2**20) as procs:
        result = program.run("load", model, "--json", wrapper=in_group(procs))
    assert result.returncode == 1, (result.returncode, result.stderr)
    error = json.loads(result.stdout)["error"]
    assert error["code"] in ("out of memory", "too large")


CONTAINER = r"""
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
shift
exec unshare --user --map-user=1000 --map-group=1000 -- "$@"
"""


def container(model: pathlib.Path) -> list[str]:
    """Not root inside nor outside, the model read-only, 64 KiB of locked memory, io_uring refused."""
    for tool in ("unshare", "setpriv", "prlimit"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    # The filter comes first: the interpreter need not be readable to the ordinary user.
    wrapper = [*REFUSE, "--uring", "EPERM", "--", "prlimit", "--memlock=65536", "--"]
    if os.geteuid() == 0:
        wrapper += ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]
    wrapper += ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", CONTAINER, "container", str(model)]
    probe = subprocess.run([*wrapper, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"user namespaces are refused here: {probe.stderr.strip()}")
    return wrapper


def test_a_container_like_namespace_of_an_ordinary_user(program, folder):
    model = write_model(folder / "model", shards=2, mib=64)
    program.json("seal", model)
    expected = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}
    drop_from_page_cache(model)
    copied = folder / "infercluster"  # the build folder may be closed to others
    shutil.copy(program.path, copied)
    copied.chmod(0o755)
    wrapper = container(model)
    size = 2 * (2 * 64 * 2**20 + 4)
    with memory_group(size + 64 * 2**20) as procs:
        command = [*in_group(procs), *wrapper, str(copied), "load", str(model), "--verify", "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert result.returncode == 0, (result.returncode, result.stderr)
    report = json.loads(result.stdout)
    assert report["bytes"] == size and report["backend"] == "threads"
    assert {file["verification"] for file in report["files"]} == {"seal"}, "every byte was checked"
    notices = warnings_of(result)
    assert len(notices) == 1 and "io_uring" in notices[0], notices
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()} == expected

    sealing = subprocess.run([*wrapper, str(copied), "seal", str(model), "--replace", "--seal-dir", str(model / "new")], capture_output=True, text=True, timeout=120, check=False, cwd="/")
    assert sealing.returncode == 1 and "new" in sealing.stderr, "a read-only place is refused by name"
