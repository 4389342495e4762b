# SPDX-License-Identifier: Apache-2.0
"""Our host reads from the target of an unmodified Linux (nvmet-tcp), in a virtual machine that the script
linux-nvme-peer.sh in the folder INFERCLUSTER_PEERS starts.

Skipped without that folder, or where the machine was not built (linux-nvme-peer.sh build).
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release")) / "bin" / "infercluster"
MACHINES = pathlib.Path(os.environ.get("PEER_DIR", "/var/tmp/linux-nvme-peer"))
NQN = "nqn.2024-01.test.peer:sub0"
BLOCK = 512  # of the virtual machine's disk, and so of the namespace
BYTES = 20 << 20
DIGESTS = ([], ["--header-digest"], ["--data-digest"], ["--header-digest", "--data-digest"])


@pytest.fixture(scope="module")
def script() -> pathlib.Path:
    path = pathlib.Path(os.environ.get("INFERCLUSTER_PEERS", "")) / "linux-nvme-peer.sh"
    if "INFERCLUSTER_PEERS" not in os.environ or not path.exists():
        pytest.skip("INFERCLUSTER_PEERS names no folder with linux-nvme-peer.sh")
    if shutil.which("qemu-system-x86_64") is None or not MACHINES.exists():
        pytest.skip("the virtual machine is not here: run linux-nvme-peer.sh build")
    return path


def two_free_ports() -> int:
    """The first of two in a row, which the script wants; below those that the kernel gives out by itself."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


class Nvmet:
    """A virtual machine with nvmet-tcp over a file of this machine."""

    def __init__(self, script: pathlib.Path, disk: pathlib.Path, inline: int):
        self.script, self.disk, self.inline = script, disk, inline
        self.port = two_free_ports()
        self.start()

    @property
    def url(self) -> str:
        return f"nvme-tcp://127.0.0.1:{self.port}/{NQN}?nsid=1"

    def start(self) -> None:
        started = subprocess.run(["bash", self.script, "target", "--port", str(self.port), "--file", self.disk, "--inline", str(self.inline)],
                                 capture_output=True, text=True, timeout=280, check=False)
        assert started.returncode == 0, started.stderr

    def signal(self, number: int) -> None:
        os.kill(int((MACHINES / f"target-{self.port}" / "pid").read_text()), number)

    def stop(self) -> None:
        subprocess.run(["bash", self.script, "stop", "--port", str(self.port)], capture_output=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("nvmet") / "disk"
    path.write_bytes(random.Random(11).randbytes(BYTES))
    return path


@pytest.fixture
def own_disk(disk, tmp_path) -> pathlib.Path:
    """A copy: a virtual machine locks its disk."""
    return pathlib.Path(shutil.copy(disk, tmp_path / "disk"))


@pytest.fixture(scope="module", params=[1024, 8192, 16384])
def nvmet(request, script, disk):
    machine = Nvmet(script, disk, request.param)
    yield machine
    machine.stop()


def read(nvmet: Nvmet, first: int, count: int, output, *options) -> subprocess.CompletedProcess:
    return subprocess.run([PROGRAM, "initiator", "read", nvmet.url, "--first-block", str(first), "--bytes", str(count), "-o", output, *options],
                          capture_output=True, timeout=240, check=False)


def test_every_size_with_every_kind_of_digest(nvmet, disk):
    content = disk.read_bytes()
    place = random.Random(nvmet.inline)
    for digests in DIGESTS:
        for size in (BLOCK, 4096, 8192, 128 << 10, 1 << 20, (3 << 20) + 77):
            first = place.randrange((BYTES - size) // BLOCK)
            result = read(nvmet, first, size, "-", *digests)
            assert result.returncode == 0, result.stderr
            assert result.stdout == content[first * BLOCK : first * BLOCK + size], (first, size, digests)


def test_a_stopped_machine_that_goes_on_loses_no_read(nvmet, disk):
    process = subprocess.Popen([PROGRAM, "initiator", "read", nvmet.url, "--first-block", "0", "--bytes", str(BYTES), "-o", "-", "--data-digest",
                                "--timeout-ms", "2000", "--deadline-ms", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    content = process.stdout.read(1)  # it stands in the middle, since the pipe is full
    nvmet.signal(signal.SIGSTOP)
    said = []

    def go_on_when_it_is_noticed() -> None:
        said.append(process.stderr.readline())
        nvmet.signal(signal.SIGCONT)

    watcher = threading.Thread(target=go_on_when_it_is_noticed)
    watcher.start()
    while piece := process.stdout.read(1 << 20):
        content += piece
    watcher.join()
    assert process.wait(timeout=120) == 0, said
    process.communicate()
    assert b"the connection is lost" in said[0]
    assert content == disk.read_bytes()


def test_a_target_that_takes_no_data_in_capsules_is_told_apart(script, own_disk):
    machine = Nvmet(script, own_disk, 0)
    try:
        refused = read(machine, 0, BLOCK, "-")
        assert refused.returncode == 1 and b"param_inline_data_size" in refused.stderr, refused.stderr
    finally:
        machine.stop()


def test_a_restart_is_another_namespace_and_a_closed_port_is_named(script, disk, own_disk):
    machine = Nvmet(script, own_disk, 16384)
    try:
        process = subprocess.Popen([PROGRAM, "initiator", "read", machine.url, "--first-block", "0", "--bytes", str(BYTES), "-o", "-",
                                    "--deadline-ms", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        content = process.stdout.read(1)
        machine.stop()
        closed = read(machine, 0, BLOCK, "-")
        assert closed.returncode == 1 and b"Nobody listens" in closed.stderr, closed.stderr
        machine.start()
        rest, errors = process.communicate(timeout=240)
        assert process.returncode == 1 and b"the namespace is another one now" in errors, errors
        assert disk.read_bytes().startswith(content + rest)
        assert read(machine, 0, BLOCK, "-").stdout == disk.read_bytes()[:BLOCK]
    finally:
        machine.stop()
