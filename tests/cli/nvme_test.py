# SPDX-License-Identifier: Apache-2.0
"""`infercluster target` and `infercluster initiator`: what they say, and how they bear each other's loss."""

import json
import random
import signal
import socket
import subprocess
import threading

import pytest

BLOCK = 4096
NQN = "nqn.2026-01.io.test:pool"
SIZES = {"small": 1234, "large": 20_000_001}


class Target:
    """A running `infercluster target`, and what it said."""

    def __init__(self, program, *arguments, listen="127.0.0.1:0"):
        self.process = subprocess.Popen([program.path, "target", "--listen", listen, "--nqn", NQN, "--json", *map(str, arguments)],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        document = ""
        for line in self.process.stdout:
            document += line
            if line.startswith("}"):
                break
        assert document, self.process.communicate(timeout=60)[1]
        self.said = json.loads(document)

    @property
    def address(self) -> str:
        return self.said["address"]

    @property
    def url(self) -> str:
        return f"nvme-tcp://{self.address}/{self.said['nqn']}?nsid=1"

    def range(self, name: str) -> list[str]:
        found = next(item for item in self.said["objects"] if item["path"].endswith(name))
        return ["--first-block", str(found["first_block"]), "--bytes", str(found["bytes"])]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def io_uring(program):
    if any(finding["subject"] == "io_uring" and finding["level"] == "warning" for finding in program.json("doctor")["findings"]):
        pytest.skip("io_uring is refused on this machine, and targets need it")


@pytest.fixture
def objects(folder):
    content = random.Random(3)
    paths = {name: folder / name for name in SIZES}
    for name, path in paths.items():
        path.write_bytes(content.randbytes(SIZES[name]))
    return paths


@pytest.fixture
def start(program, io_uring, folder, objects):
    running = []

    def start_target(*arguments, **options) -> Target:
        given = [word for path in objects.values() for word in ("--object", path)]
        running.append(Target(program, *given, "--state", folder / "state", *arguments, **options))
        return running[-1]

    yield start_target
    for target in running:
        target.stop()


def test_discover_read_and_bench(program, folder, objects, start):
    target = start()
    found = program.json("initiator", "discover", f"nvme-tcp://{target.address}")
    assert {"nqn": NQN, "address": target.address, "discovery": False} in found["subsystems"]
    assert program.run("initiator", "discover", f"nvme-tcp://{target.address}").stdout.splitlines() == [target.url]
    for digests in ([], ["--header-digest", "--data-digest"]):
        for name, path in objects.items():
            copy = folder / f"{name}-copy-{len(digests)}"
            report = program.json("initiator", "read", target.url, *target.range(name), "-o", copy, "--queues", "2", *digests)
            assert copy.read_bytes() == path.read_bytes()
            assert report["bytes"] == SIZES[name]
            assert set(report["host"].values()) == {0}
    report = program.json("initiator", "bench", target.url, *target.range("large"), "--size", "64KiB", "--depth", "8", "--reads", "300")
    assert (report["reads"], report["bytes_each"]) == (300, 65536)
    assert report["p99_us"] >= report["p50_us"] > 0
    assert sorted(report["host"]) == ["connections_lost", "deadline_misses", "digest_errors", "reconnects", "retries"]


def test_what_cannot_be_says_what_to_do(program, folder, start):
    target = start("--allow", "nqn.2026-01.io.test:friend")
    place = target.range("small")
    copy = folder / "copy"
    refused = program.error("initiator", "read", target.url, *place, "-o", copy)
    assert refused["code"] == "permission denied" and "--allow" in refused["text"]
    friend = ["--host-nqn", "nqn.2026-01.io.test:friend"]
    wrong = program.error("initiator", "read", target.url.replace(":pool", ":other"), *place, "-o", copy, *friend)
    assert "NQN" in wrong["text"] and wrong["code"] == "not found"
    nsid = program.error("initiator", "read", target.url.replace("nsid=1", "nsid=2"), *place, "-o", copy, *friend)
    assert nsid["code"] == "not found" and "namespace 2" in nsid["text"]
    assert not copy.exists()
    copy.write_text("mine")
    taken = program.error("initiator", "read", target.url, *place, "-o", copy, *friend)
    assert str(copy) in taken["text"] and "another name" in taken["text"] and copy.read_text() == "mine"
    both = program.error("initiator", "read", target.url, *place, "-o", "-", *friend)
    assert "--output" in both["text"]
    nothing = program.error("initiator", "read", target.url, "--first-block", "1000000000000", "--bytes", "4096", "-o", folder / "none", *friend)
    assert nothing["code"] == "not found" and not (folder / "none").exists()
    open_to_all = program.error("target", "--listen", "0.0.0.0:0", "--object", copy)
    assert "--allow NQN" in open_to_all["text"]


def test_a_port_that_is_taken_or_closed_says_so(program, folder, objects, start):
    target = start()
    taken = program.error("target", "--listen", target.address, "--object", objects["small"])
    assert "in use" in taken["text"] and "another port" in taken["text"]
    target.stop()
    closed = program.error("initiator", "read", target.url, *target.range("small"), "-o", folder / "copy")
    assert "refused" in closed["text"] and target.address in closed["text"] and "Nobody listens" in closed["text"]


def test_a_silent_address_ends_in_time(program, folder):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nvme-tcp://127.0.0.1:{silent.getsockname()[1]}/{NQN}"
        error = program.error("initiator", "read", url, "--first-block", "0", "--bytes", "4096", "-o", folder / "copy", "--timeout-ms", "300")
    assert error["code"] == "timed out" and "stopped" in error["text"]


def copying(program, target: Target, *arguments) -> tuple[subprocess.Popen, bytes]:
    """A copy to a pipe that stands in the middle, since the pipe is full; and its first bytes."""
    process = subprocess.Popen([program.path, "initiator", "read", target.url, *target.range("large"), "-o", "-", *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    return process, process.stdout.read(1)


def test_a_target_that_stops_and_goes_on_loses_no_read(program, objects, start):
    target = start()
    process, content = copying(program, target, "--timeout-ms", "200", "--deadline-ms", "60000")
    target.process.send_signal(signal.SIGSTOP)
    said = []

    def go_on_when_it_is_noticed():
        said.append(process.stderr.readline())
        target.process.send_signal(signal.SIGCONT)

    watcher = threading.Thread(target=go_on_when_it_is_noticed)
    watcher.start()
    while piece := process.stdout.read(1 << 20):
        content += piece
    watcher.join()
    assert process.wait(timeout=60) == 0, said
    process.communicate()
    assert b"the connection is lost" in said[0]
    assert content == objects["large"].read_bytes()


def test_a_stopped_target_fails_reads_at_their_deadline(program, objects, start):
    target = start()
    process, first = copying(program, target, "--timeout-ms", "100", "--deadline-ms", "500")
    target.process.send_signal(signal.SIGSTOP)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"not done within 500 ms" in errors
    whole = objects["large"].read_bytes()
    assert whole.startswith(first + rest) and len(first + rest) < len(whole)
