# SPDX-License-Identifier: Apache-2.0
"""DH-HMAC-CHAP with an unmodified Linux, both ways: its host against our target, our host against its target (nvmet). Linux runs in user
mode (guest.py): Debian's own kernel is built without authentication.

Skipped where there is no such machine.
"""

import base64
import dataclasses
import hashlib
import json
import pathlib
import random
import re
import struct
import subprocess
import zlib

import pytest
from guest import GUEST, HERE, LINUX_NQN, PROGRAM, Machine, missing

BLOCK = 4096
NQN = "nqn.2026-01.io.test:pool"
HASHES = {256: 1, 384: 2, 512: 3}


def secret(hash_id: int, seed: int, size: int) -> str:
    key = random.Random(seed).randbytes(size)
    return f"DHHC-1:{hash_id:02}:{base64.b64encode(key + struct.pack('<I', zlib.crc32(key))).decode()}:"


@dataclasses.dataclass
class Keys:
    """The secrets of one host and, for it, of its target, in files as the program wants them."""

    host: str
    controller: str
    host_file: pathlib.Path
    controller_file: pathlib.Path


@pytest.fixture
def keys(tmp_path) -> dict[int, Keys]:
    made = {}
    for bits, hash_id in HASHES.items():
        host, controller = secret(hash_id, bits, bits // 8), secret(hash_id, bits + 1, bits // 8)
        files = []
        for name, text in (("host", host), ("controller", controller)):
            file = tmp_path / f"{name}-{bits}"
            file.touch(mode=0o600)
            file.write_text(text + "\n")
            files.append(file)
        made[bits] = Keys(host, controller, *files)
    return made


@pytest.fixture(scope="module")
def machine(namespace):
    if lacks := missing("uml"):
        pytest.skip(lacks)
    return Machine("uml", namespace)


def host_nqn(bits: int) -> str:
    return f"nqn.2026-01.io.test:host-{bits}"


def test_linux_hosts_prove_themselves_to_our_target(machine, keys, tmp_path):
    stored = tmp_path / "object"
    stored.write_bytes(random.Random(5).randbytes(1_000_000))
    command = [*machine.enter, PROGRAM, "target", "--listen", f"{HERE}:4420", "--nqn", NQN, "--object", stored, "--json"]
    for bits, key in keys.items():
        command += ["--dhchap-secret-file", f"{host_nqn(bits)}={key.host_file}", "--dhchap-ctrl-secret-file", f"{host_nqn(bits)}={key.controller_file}"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    document = ""
    for line in process.stdout:
        document += line
        if line.startswith("}"):
            break
    item = json.loads(document)["objects"][0]

    def connect(label: str, bits: int, options: str = "") -> str:
        return (f"echo '{label}:' connect; nvme connect -t tcp -a {HERE} -s 4420 -n {NQN} --hostnqn {host_nqn(bits)} {options} >/dev/null 2>&1; "
                f"echo '{label}:' connected $?\n")

    def read(label: str) -> str:
        return ("for i in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done\n"
                f"echo '{label}:' read $(dd if=/dev/nvme0n1 bs={BLOCK} skip={item['first_block']} count={item['blocks']} iflag=direct "
                f"2>/dev/null | head -c {item['bytes']} | sha256sum)\n")

    disconnect = f"nvme disconnect -n {NQN} >/dev/null\n"
    guest = "dmesg -c >/dev/null\n"
    for bits, key in keys.items():
        host, both = f"--dhchap-secret={key.host}", f"--dhchap-secret={key.host} --dhchap-ctrl-secret={key.controller}"
        for label, options in ((f"host-{bits}", host), (f"both-{bits}", both), (f"digests-{bits}", both + " --hdr-digest --data-digest")):
            guest += connect(label, bits, options) + read(label)
            if label.startswith("both"):
                # Linux authenticates its queues again while they are in use.
                guest += f"echo '{key.host}' >/sys/class/nvme/nvme0/dhchap_secret && sleep 0.3\n" + read("again-" + label)
            guest += disconnect + f"dmesg -c | sed 's/^/{label}: /'\n"
    guest += connect("wrong", 256, f"--dhchap-secret={keys[384].host}")
    guest += connect("wrong-name", 256, f"--dhchap-secret={keys[512].host}")
    guest += connect("wrong-target", 256, f"--dhchap-secret={keys[256].host} --dhchap-ctrl-secret={keys[384].controller}")
    guest += connect("none", 256) + "dmesg | sed 's/^/refused: /'\nls /dev/nvme0n1 2>/dev/null\ntrue\n"
    try:
        output = machine.run(guest)
    finally:
        process.terminate()
        ended = process.wait(timeout=60)
        process.stdout.close()
    assert ended == 0

    digest = hashlib.sha256(stored.read_bytes()).hexdigest()
    for bits in keys:
        for label in (f"host-{bits}", f"both-{bits}", f"again-both-{bits}", f"digests-{bits}"):
            assert f"{label}: read {digest}" in output, output[-6000:]
            if not label.startswith("again"):
                assert f"{label}: connected 0" in output
        said = "\n".join(re.findall(rf"^host-{bits}: .*", output, re.MULTILINE))
        assert f"authenticated with hash hmac(sha{bits}) dhgroup null" in said and "controller authenticated" not in said
        # Of the connection, and of the authentication while it is in use.
        assert len(re.findall(rf"^both-{bits}: .*qid 0: controller authenticated", output, re.MULTILINE)) == 2, output[-6000:]
        assert not re.search(rf"^\w+-{bits}: .*(fail|error|timeout)", output, re.MULTILINE | re.IGNORECASE), output[-6000:]
    for label in ("wrong", "wrong-name", "wrong-target", "none"):
        assert f"{label}: connected 1" in output, output[-6000:]
    assert "/dev/nvme0n1\n" not in output
    # Whoever runs the target reads who was refused and why, and no secret.
    said = (tmp_path / "log").read_text()
    assert said.count("is not authenticated") == 4, said
    assert said.count(f"{host_nqn(256)} is not authenticated: the host's secret is not the one that is configured for it") == 2
    assert "the host gave up: authentication failed" in said and "it gave no proof" in said
    assert "DHHC" not in said


@pytest.fixture(params=[16384, 0])
def nvmet(request, machine):
    """A Linux target that takes so many bytes of data in a capsule; calling it runs commands there."""
    machine.start("--size", "16", "--inline", str(request.param))

    def control(commands: str) -> str:
        result = machine.control(commands)
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
        return result.stdout

    yield control
    machine.stop()


def test_our_host_proves_itself_to_linux(machine, nvmet, keys, tmp_path):
    name = host_nqn(256)
    configuration = "cfg=/sys/kernel/config/nvmet; host=$cfg/hosts/" + name + "\n"
    digest = nvmet(configuration + f"""dd if=/dev/urandom of=/dev/ram0 bs=1M count=16 oflag=direct 2>/dev/null; sha256sum </dev/ram0
        echo 0 >$cfg/subsystems/{LINUX_NQN}/attr_allow_any_host; mkdir $host; ln -s $host $cfg/subsystems/{LINUX_NQN}/allowed_hosts/""").split()[0]

    def configure(bits: int, key: Keys) -> None:
        nvmet(configuration + f"echo 'hmac(sha{bits})' >$host/dhchap_hash; echo '{key.host}' >$host/dhchap_key; "
                              f"echo '{key.controller}' >$host/dhchap_ctrl_key")

    def read(*options) -> subprocess.CompletedProcess:
        (tmp_path / "copy").unlink(missing_ok=True)
        return subprocess.run([*machine.enter, PROGRAM, "initiator", "read", f"nvme-tcp://{GUEST}:{machine.port}/{LINUX_NQN}?nsid=1", "--host-nqn", name,
                               "--first-block", "0", "--bytes", "16MiB", "--output", tmp_path / "copy", *options],
                              capture_output=True, text=True, timeout=60, check=False)

    def reads_all(*options) -> None:
        result = read(*options)
        assert result.returncode == 0, result.stderr
        assert hashlib.sha256((tmp_path / "copy").read_bytes()).hexdigest() == digest

    def refused(*options) -> str:
        result = read(*options)
        assert result.returncode == 1 and not (tmp_path / "copy").exists()
        assert "DHHC" not in result.stderr
        return result.stderr

    # Before Linux knows a secret it asks for none: who wants its proof does not go on.
    reads_all("--dhchap-secret-file", keys[256].host_file)
    said = refused("--dhchap-secret-file", keys[256].host_file, "--dhchap-ctrl-secret-file", keys[256].controller_file)
    assert "does not ask for authentication" in said and "--dhchap-ctrl-secret-file" in said
    for bits, key in keys.items():
        configure(bits, key)
        reads_all("--dhchap-secret-file", key.host_file)
        reads_all("--dhchap-secret-file", key.host_file, "--dhchap-ctrl-secret-file", key.controller_file, "--data-digest")
    mine = keys[512]
    assert "authentication failed" in refused("--dhchap-secret-file", keys[256].host_file)
    assert "--dhchap-secret-file" in refused()
    said = refused("--dhchap-secret-file", mine.host_file, "--dhchap-ctrl-secret-file", keys[256].controller_file)
    assert "not the one that was expected" in said
    nvmet(configuration + "echo ffdhe2048 >$host/dhchap_dhgroup")
    assert "DH group to null" in refused("--dhchap-secret-file", mine.host_file)
    nvmet(configuration + "echo null >$host/dhchap_dhgroup")
    mine.host_file.chmod(0o644)
    said = refused("--dhchap-secret-file", mine.host_file)
    assert "chmod 600" in said
