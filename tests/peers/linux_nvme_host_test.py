# SPDX-License-Identifier: Apache-2.0
"""An unmodified Linux host reads from our target: its own driver and nvme-cli, in a virtual machine (guest.py).

Skipped where there is none.
"""

import hashlib
import json
import pathlib
import random
import re
import subprocess

import pytest
from guest import DMESG_CHECK, HERE, HOST_NQN, PROGRAM, Machine, clean

BLOCK = 4096
NQN = "nqn.2026-01.io.test:pool"
SIZES = {"small": 12345, "whole": 8 * BLOCK, "large": 5_000_000}


class Target:
    """A running `infercluster target`."""

    def __init__(self, machine: Machine, objects: list[pathlib.Path], state: pathlib.Path, port: int = 0):
        command = [*machine.enter, PROGRAM, "target", "--listen", f"{HERE}:{port}", "--allow", HOST_NQN, "--state", state, "--nqn", NQN, "--json"]
        for path in objects:
            command += ["--object", path]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        document = ""
        for line in self.process.stdout:
            document += line
            if line.startswith("}"):
                break
        self.said = json.loads(document)
        self.port = int(self.said["address"].rpartition(":")[2])

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()


@pytest.fixture
def objects(tmp_path):
    content = random.Random(5)
    paths = {}
    for name, size in SIZES.items():
        paths[name] = tmp_path / name
        paths[name].write_bytes(content.randbytes(size))
    return paths


@pytest.fixture
def target(machine, tmp_path, objects):
    target = Target(machine, list(objects.values()), tmp_path / "state")
    yield target
    target.stop()


def digest_commands(target: Target, label: str) -> str:
    """Reads every object whole, once around the page cache and once through it, and says "LABEL NAME SHA256" for each."""
    lines = []
    for item in target.said["objects"]:
        for way in ("iflag=direct", ""):
            lines.append(f"echo {label} {pathlib.Path(item['path']).name} $(dd if=/dev/nvme0n1 bs={BLOCK} skip={item['first_block']} "
                         f"count={item['blocks']} {way} 2>/dev/null | head -c {item['bytes']} | sha256sum)")
    return "\n".join(lines) + "\n"


def check_digests(output: str, label: str, objects: dict[str, pathlib.Path]) -> None:
    for name, path in objects.items():
        expected = hashlib.sha256(path.read_bytes()).hexdigest()
        found = re.findall(rf"^{label} {name} (\w+)", output, re.MULTILINE)
        assert found == [expected, expected], (label, name)


def connect(target: Target, options: str = "") -> str:
    # The namespace's device comes a moment after the connection.
    return (f"nvme connect -t tcp -a {HERE} -s {target.port} -n {target.said['nqn']} {options} || echo FAILED connect {options}\n"
            "for i in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done\n")


def test_linux_discovers_connects_reads_and_is_refused_a_write(machine, target, objects):
    nqn = target.said["nqn"]
    commands = f"nvme discover -t tcp -a {HERE} -s {target.port}\n"
    for label, options in (("plain", ""), ("header", "--hdr-digest"), ("data", "--data-digest"), ("both", "--hdr-digest --data-digest"),
                           ("noflow", "--disable-sqflow")):
        commands += connect(target, options) + digest_commands(target, label) + f"nvme disconnect -n {nqn}\n"
    commands += connect(target) + "nvme list\n"
    first = target.said["objects"][0]["first_block"]
    commands += f"dd if=/dev/zero of=/dev/nvme0n1 bs={BLOCK} count=1 seek={first} oflag=direct; echo write ended with $?\n"
    # Past the object's end, buffered: zeros, and no error.
    last = target.said["objects"][0]
    commands += (f"echo behind $(dd if=/dev/nvme0n1 bs={BLOCK} skip={last['first_block'] + last['blocks']} count=64 2>&1 | "
                 "tr -d '\\0' | grep -c 'error')\n")
    commands += "echo edge $(dd if=/dev/nvme0n1 bs=1M count=4 2>/dev/null | tr -d '\\0' | wc -c)\n"
    commands += f"nvme disconnect -n {nqn}\n" + DMESG_CHECK
    output = machine.run(commands)
    assert f"subnqn:  {nqn}" in output
    assert clean(output), output[-4000:]
    for label in ("plain", "header", "data", "both", "noflow"):
        check_digests(output, label, objects)
    assert re.search(r"/dev/nvme0n1 .*InferCluster", output)
    assert "Operation not permitted" in output and "write ended with 1" in output
    assert "behind 0" in output and re.search(r"^edge 0$", output, re.MULTILINE)


@pytest.fixture
def guest(machine):
    """A virtual machine that stays; calling it runs commands there and returns what they said."""
    machine.start()

    def run(commands: str) -> str:
        result = machine.control(commands)
        return result.stdout + result.stderr

    yield run
    machine.stop()


def test_a_connected_host_survives_a_restart_and_never_reads_old_addresses_as_new_ones(machine, guest, tmp_path, objects):
    state = tmp_path / "state"
    target = Target(machine, list(objects.values()), state)
    nqn, before = target.said["nqn"], target.said["objects"]
    output = guest(connect(target) + digest_commands(target, "before"))
    assert "FAILED" not in output
    check_digests(output, "before", objects)
    target.stop()
    # The same identity and addresses: the host connects anew by itself, and goes on.
    again = Target(machine, list(objects.values()), state, target.port)
    assert (again.said["nqn"], again.said["objects"]) == (nqn, before)
    output = guest("echo 3 >/proc/sys/vm/drop_caches\n" + digest_commands(again, "again"))
    check_digests(output, "again", objects)
    again.stop()
    # Its state is lost, and there is another namespace, by its UUID and its
    # addresses. What the host still asks of the old one is an error, never other bytes.
    state.unlink()
    lost = Target(machine, [objects["whole"]], state, target.port)
    assert lost.said["uuid"] != again.said["uuid"]
    first = before[0]["first_block"]
    output = guest(f"timeout 20 dd if=/dev/nvme0n1 bs={BLOCK} skip={first} count=1 iflag=direct 2>/dev/null | sha256sum\n"
                   f"timeout 20 nvme disconnect -n {nqn}; true\n")
    assert hashlib.sha256(b"").hexdigest() in output, output
    lost.stop()
