# SPDX-License-Identifier: Apache-2.0
"""Virtual machines with an unmodified Linux, by the script linux-nvme-peer.sh in the folder INFERCLUSTER_PEERS: in QEMU (Debian's own
kernel) or in user mode (UML, which boots in a second). They see this machine through a tap device in a network namespace of their own.
"""

import contextlib
import os
import pathlib
import re
import select
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release")) / "bin" / "infercluster"
SCRIPT = pathlib.Path(os.environ.get("INFERCLUSTER_PEERS", "")) / "linux-nvme-peer.sh"
MACHINES = pathlib.Path(os.environ.get("PEER_DIR", "/var/tmp/linux-nvme-peer"))
ALL = os.environ.get("INFERCLUSTER_PEERS_ALL", "") not in ("", "0")  # `make peers`
LINUX_NQN = "nqn.2024-01.test.peer:sub0"  # of nvmet there
HOST_NQN = "nqn.2014-08.org.nvmexpress:uuid:5f1c2f0e-0000-4000-8000-00000000beef"  # of its host
HERE = "192.168.77.1"
GUEST = "192.168.77.2"
# What the kernel says of NVMe that it does not say when all is well; by a control shell, "UNCLEAN" follows.
DMESG_CHECK = "dmesg | grep -iE 'nvme.*(error|fail|timeout|warn|reset|invalid|dropping|unexpected| bad )' && echo UNCLEAN\ntrue\n"


def missing(kind: str) -> str:
    """What lacks for such machines; empty: nothing."""
    if "INFERCLUSTER_PEERS" not in os.environ or not SCRIPT.exists():
        return "INFERCLUSTER_PEERS names no folder with linux-nvme-peer.sh"
    needed = ["linux.uml", "initrd-uml.cpio"] if kind == "uml" else ["vmlinux", "initrd.cpio"]
    if not all((MACHINES / name).exists() for name in needed) or (kind == "qemu" and shutil.which("qemu-system-x86_64") is None):
        return f"the virtual machine ({kind}) is not here: run linux-nvme-peer.sh build"
    return ""


def kinds() -> list[str]:
    """The kinds to test with: the quick one, or QEMU where that is not here; both by INFERCLUSTER_PEERS_ALL."""
    if ALL:
        return ["uml", "qemu"]
    return ["qemu"] if missing("uml") and not missing("qemu") else ["uml"]


@contextlib.contextmanager
def network():
    """A network namespace with a tap device for one guest: the words before a command that is to run in it."""
    name = f"infercluster-peer-{os.getpid()}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespace can be made here: it takes iproute2 and root")
    try:
        subprocess.run(["ip", "netns", "exec", name, "sh", "-ec",
                        f"ip link set lo up; ip tuntap add tap0 mode tap; ip addr add {HERE}/24 dev tap0; ip link set tap0 up"], check=True)
        yield ["ip", "netns", "exec", name]
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


class Machine:
    """One machine of a kind at a time, in its network."""

    port = 14420 + os.getpid() % 10000  # names it; a target of its listens there

    def __init__(self, kind: str, enter: list[str]):
        self.kind, self.enter = kind, enter

    def script(self, verb: str, *arguments, timeout: float = 290) -> subprocess.CompletedProcess:
        command = [*self.enter, "bash", SCRIPT, verb, "--port", str(self.port), "--tap", "tap0", "--ip", f"{GUEST}/24"]
        command += ["--uml"] if self.kind == "uml" else []
        return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout, check=False)

    def run(self, commands: str) -> str:
        """Boots it, runs commands there, and says what they said."""
        result = self.script("run-in-guest", "--timeout", "240", commands)
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
        return result.stdout

    def start(self, *options) -> None:
        """Boots it with a target of its own (nvmet)."""
        started = self.script("target", *options)
        assert started.returncode == 0, started.stderr

    def control(self, commands: str) -> subprocess.CompletedProcess:
        for _ in range(50):
            result = self.script("ctl", commands)
            # Between two commands the guest's shell listens again in a moment.
            if "ConnectionRefusedError" not in result.stderr:
                break
        return result

    def signal(self, number: int) -> None:
        os.kill(self.pid(), number)

    def pid(self) -> int:
        return int((MACHINES / f"target-{self.port}" / "pid").read_text())

    def stop(self) -> None:
        """Returns once it is gone: another one would share its address with it."""
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(self.pid())
            try:
                assert self.script("stop", timeout=120).returncode == 0
                assert select.select([handle], [], [], 60)[0], "the machine does not end"
            finally:
                os.close(handle)


def clean(output: str) -> bool:
    return not re.search(r"FAILED|UNCLEAN", output)
