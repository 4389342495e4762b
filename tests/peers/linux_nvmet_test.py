# SPDX-License-Identifier: Apache-2.0
"""Our host reads from the target of an unmodified Linux (nvmet-tcp), in a virtual machine (guest.py).

Skipped where there is none.
"""

import pathlib
import random
import shutil
import signal
import subprocess
import threading

import pytest
from guest import DMESG_CHECK, GUEST, LINUX_NQN, PROGRAM, Machine, clean

BLOCK = 512  # of the virtual machine's disk, and so of the namespace
BYTES = 20 << 20
LINK = f"/sys/kernel/config/nvmet/ports/1/subsystems/{LINUX_NQN}"  # without it the port is closed
DIGESTS = ([], ["--header-digest"], ["--data-digest"], ["--header-digest", "--data-digest"])


class Nvmet:
    """A virtual machine with nvmet-tcp over a file of this machine."""

    def __init__(self, machine: Machine, disk: pathlib.Path, inline: int):
        self.machine, self.disk, self.inline = machine, disk, inline
        self.url = f"nvme-tcp://{GUEST}:{machine.port}/{LINUX_NQN}?nsid=1"
        self.start()

    def start(self) -> None:
        self.machine.start("--file", self.disk, "--inline", str(self.inline))

    def stop(self) -> None:
        self.machine.stop()


@pytest.fixture(scope="module")
def disk(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("nvmet") / "disk"
    path.write_bytes(random.Random(11).randbytes(BYTES))
    return path


@pytest.fixture(scope="module", params=[0, 1024, 8192, 16384])
def nvmet(request, machine, disk):
    started = Nvmet(machine, disk, request.param)
    yield started
    started.stop()


def read(nvmet: Nvmet, first: int, count: int, output, *options) -> subprocess.CompletedProcess:
    return subprocess.run([*nvmet.machine.enter, PROGRAM, "initiator", "read", nvmet.url, "--first-block", str(first), "--bytes", str(count), "-o", output, *options],
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
    # Linux says that it refuses data in capsules, and ends the connection.
    said = nvmet.machine.control(DMESG_CHECK).stdout
    assert clean(said) or nvmet.inline == 0, said


def test_a_stopped_machine_that_goes_on_loses_no_read(nvmet, disk):
    process = subprocess.Popen([*nvmet.machine.enter, PROGRAM, "initiator", "read", nvmet.url, "--first-block", "0", "--bytes", str(BYTES), "-o", "-", "--data-digest",
                                "--timeout-ms", "2000", "--deadline-ms", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    content = process.stdout.read(1)  # it stands in the middle, since the pipe is full
    nvmet.machine.signal(signal.SIGSTOP)
    said = []

    def go_on_when_it_is_noticed() -> None:
        said.append(process.stderr.readline())
        nvmet.machine.signal(signal.SIGCONT)

    watcher = threading.Thread(target=go_on_when_it_is_noticed)
    watcher.start()
    while piece := process.stdout.read(1 << 20):
        content += piece
    watcher.join()
    assert process.wait(timeout=120) == 0, said
    process.communicate()
    assert b"the connection is lost" in said[0]
    assert content == disk.read_bytes()


@pytest.mark.parametrize("nvmet", [16384], indirect=True)
def test_a_restart_is_another_namespace_and_a_closed_port_is_named(nvmet, disk):
    process = subprocess.Popen([*nvmet.machine.enter, PROGRAM, "initiator", "read", nvmet.url, "--first-block", "0", "--bytes", str(BYTES), "-o",
                                "-", "--deadline-ms", "200000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    content = process.stdout.read(1)
    nvmet.machine.control(f"rm {LINK}").check_returncode()
    closed = read(nvmet, 0, BLOCK, "-")
    assert closed.returncode == 1 and b"Nobody listens" in closed.stderr, closed.stderr
    nvmet.stop()
    nvmet.start()
    rest, errors = process.communicate(timeout=240)
    assert process.returncode == 1 and b"the namespace is another one now" in errors, errors
    assert disk.read_bytes().startswith(content + rest)
    assert read(nvmet, 0, BLOCK, "-").stdout == disk.read_bytes()[:BLOCK]
