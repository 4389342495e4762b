# SPDX-License-Identifier: Apache-2.0
"""A Linux host reads from our target under load: fio at many sizes and depths, two controllers at once, and what looks at every new disk.

As linux_nvme_host_test.py; what needs fio or blkid is skipped where the virtual machine was built without
(PEER_TOOLS="/usr/bin/fio /usr/sbin/blkid" linux-nvme-peer.sh build).
"""

import hashlib
import itertools
import random
import re

import pytest
from guest import ALL, DMESG_CHECK, HERE, HOST_NQN, clean
from linux_nvme_host_test import BLOCK, Target, connect

SIZE = 8 << 20
PATTERN = random.Random(3).randbytes(512) * (BLOCK // 512)  # fio takes no longer one
DIFFERENT = random.Random(4).randbytes(SIZE)


@pytest.fixture
def target(machine, tmp_path):
    """One object of equal blocks, which fio holds each block against, and one of different ones."""
    equal, different = tmp_path / "equal", tmp_path / "different"
    equal.write_bytes(PATTERN * (SIZE // BLOCK))
    different.write_bytes(DIFFERENT)
    target = Target(machine, [equal, different], tmp_path / "state")
    yield target
    target.stop()


@pytest.mark.skipif(not ALL, reason="`make peers` runs it")
def test_fio_at_every_size_and_depth(machine, target):
    if "fio" not in machine.run("command -v fio; true\n"):
        pytest.skip("the virtual machine has no fio: PEER_TOOLS=/usr/bin/fio linux-nvme-peer.sh build")
    equal, different = target.said["objects"]
    commands = connect(target, "--nr-io-queues=2")
    # What fio compares with is the first block as it came, which is compared here.
    commands += (f"dd if=/dev/nvme0n1 of=/tmp/whole bs={BLOCK} skip={equal['first_block']} count=1 iflag=direct 2>/dev/null\n"
                 "echo block $(sha256sum </tmp/whole); head -c 512 /tmp/whole >/tmp/block\n")
    # Beside it, all the time: the bytes of another object.
    commands += (f"while [ ! -e /tmp/stop ]; do dd if=/dev/nvme0n1 bs={BLOCK} skip={different['first_block']} count={SIZE // BLOCK} iflag=direct 2>/dev/null | "
                 "sha256sum >>/tmp/sums; done &\nbeside=$!\n")
    count = 0
    for way in ("read", "randread"):
        for size, depth in itertools.product(("4k", "16k", "128k", "1m"), (1, 8, 64)):
            commands += fio(equal, way, size, depth)
            count += 1
        commands += buffered_fio(equal, way)
        count += 1
    commands += f"touch /tmp/stop\nwait $beside\nsort -u /tmp/sums\nnvme disconnect -n {target.said['nqn']}\n" + DMESG_CHECK
    output = machine.run(commands)
    assert clean(output), output[-4000:]
    assert f"block {hashlib.sha256(PATTERN).hexdigest()}" in output
    assert len(re.findall(r"^fio ended with 0$", output, re.MULTILINE)) == count, output[-4000:]
    # Each time the same.
    assert re.findall(r"^([0-9a-f]{64})  -$", output, re.MULTILINE) == [hashlib.sha256(DIFFERENT).hexdigest()], output[-4000:]


def fio(item: dict, way: str, size: str, depth: int) -> str:
    return run_fio(item, f"--rw={way} --bs={size} --iodepth={depth} --direct=1 --ioengine=libaio --io_size=2M --verify=pattern "
                         f"--verify_pattern=\"'/tmp/block'\" --verify_interval={BLOCK} --verify_fatal=1")


def buffered_fio(item: dict, way: str) -> str:
    return run_fio(item, f"--rw={way} --bs=512 --direct=0 --ioengine=psync --io_size=1M")


def run_fio(item: dict, arguments: str) -> str:
    return (f"fio --name=job --filename=/dev/nvme0n1 --readonly --offset={item['first_block'] * BLOCK} --size={SIZE} {arguments} >/tmp/fio 2>&1\n"
            "code=$?; echo fio ended with $code; [ $code = 0 ] || cat /tmp/fio\n")


def test_two_controllers_at_once_and_what_looks_at_new_disks(machine, target):
    nqn = target.said["nqn"]
    # As nvme-cli does it, which by itself refuses a second one once it sees the first.
    options = f"transport=tcp,traddr={HERE},trsvcid={target.port},nqn={nqn},hostnqn={HOST_NQN},hostid={HOST_NQN[-36:]},duplicate_connect"
    one = f"echo {options} >/dev/nvme-fabrics"
    commands = f"modprobe nvme-tcp 2>/dev/null\n({one}) & first=$!\n({one}) & second=$!\n"
    commands += "wait $first || echo FAILED first\nwait $second || echo FAILED second\n"
    commands += "for i in $(seq 100); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done\n"
    commands += "echo controllers $(ls /sys/class/nvme | wc -l)\n"
    for item in target.said["objects"]:
        commands += (f"echo sum $(dd if=/dev/nvme0n1 bs={BLOCK} skip={item['first_block']} count={item['blocks']} iflag=direct 2>/dev/null | "
                     "sha256sum)\n")
    # Nothing on it looks like a file system or a partition table, at either end.
    commands += "command -v blkid >/dev/null && echo found $(blkid -p /dev/nvme0n1 2>&1) || echo no blkid\n"
    commands += "blockdev --rereadpt /dev/nvme0n1 && echo reread\necho partitions $(ls /dev/nvme0n1p* 2>/dev/null | wc -l)\n"
    commands += f"end=$(($(blockdev --getsize64 /dev/nvme0n1) / {1 << 20}))\n"
    commands += "echo end $(dd if=/dev/nvme0n1 bs=1M skip=$((end - 4)) 2>/dev/null | tr -d '\\0' | wc -c)\n"
    commands += f"nvme disconnect -n {nqn}\n" + DMESG_CHECK
    output = machine.run(commands)
    assert clean(output), output[-4000:]
    assert "controllers 2" in output
    for content in (PATTERN * (SIZE // BLOCK), DIFFERENT):
        assert f"sum {hashlib.sha256(content).hexdigest()}" in output
    assert re.search(r"^(found|no blkid)$", output, re.MULTILINE), output[-3000:]
    assert "reread" in output and "partitions 0" in output and "end 0" in output, output[-3000:]
