# SPDX-License-Identifier: Apache-2.0
"""Measures reads over NVMe/TCP on loopback: our host from our target, beside bare sockets that carry the same sizes and do nothing else
(bench/nvme/bare.cc). Writes bench/results/DATE-nvme.jsonl and prints tables with ratios.

Latency is that of 4 KiB reads, one at a time; the bare one answers a request of a command's size by a header and 4 KiB. Throughput is that of
1 MiB reads; the bare one sends headers and 1 MiB one way, without requests. Objects lie on tmpfs: in sealed memory, whose pages are sent from
where they lie, and as a file, which is read into buffers. Loopback copies what a network card would fetch, so zero-copy is judged by the
target's counters.
"""

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator

from load import data, machine, tables

BARE = data.PROGRAM.with_name("nvme_bare")
RESULTS = machine.ROOT / "bench" / "results"
MIB = 1 << 20
GIB = 1 << 30
LATENCY_MOST = 1.5  # of the bare p50
THROUGHPUT_LEAST = 0.9  # of the bare stream
PER_CONNECTION = 8  # reads at a time
DIGESTS = {"none": [], "header": ["--header-digest"], "data": ["--data-digest"], "both": ["--header-digest", "--data-digest"]}


class Failed(Exception):
    """A program gave no result."""


def cpu_of(process: subprocess.Popen) -> float:
    """Seconds, user and system, of all its threads so far."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_client(command: list[str], server: subprocess.Popen) -> dict:
    """Its JSON, with the CPU seconds of both sides."""
    before = cpu_of(server)
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None and client.stderr is not None
    text, errors = client.stdout.read(), client.stderr.read()
    _, status, used = os.wait4(client.pid, 0)
    client.returncode = os.waitstatus_to_exitcode(status)
    if client.returncode != 0:
        raise Failed(f"{' '.join(command)}: {errors.strip()}")
    return {**json.loads(text), "client_cpu_s": used.ru_utime + used.ru_stime, "server_cpu_s": cpu_of(server) - before}


@contextlib.contextmanager
def ended(process: subprocess.Popen) -> Iterator[subprocess.Popen]:
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


class Target:
    """`infercluster target` with one object, and reads of it."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process = process
        text = ""
        assert process.stdout is not None
        for line in process.stdout:
            text += line
            with contextlib.suppress(json.JSONDecodeError):
                found = json.loads(text)
                break
        else:
            raise Failed(f"the target does not start: {text}")
        self.url = f"nvme-tcp://{found['address']}/{found['nqn']}"
        self.range = found["objects"][0]

    def read(self, size: int, reads: int, connections: int, depth: int, digests: str) -> dict:
        command = [str(data.PROGRAM), "initiator", "bench", self.url, "--first-block", str(self.range["first_block"]), "--bytes",
                   str(self.range["bytes"]), "--size", str(size), "--reads", str(reads), "--queues", str(connections), "--depth", str(depth),
                   "--json", *DIGESTS[digests]]
        return run_client(command, self.process)

    def stop(self) -> dict:
        """What it counted."""
        self.process.terminate()
        text, _ = self.process.communicate()
        return json.loads(text)["served"]


def sealed_memory(size: int) -> int:
    """The descriptor of a memfd with such content, which nobody can change any more."""
    descriptor = os.memfd_create("object", os.MFD_ALLOW_SEALING)
    piece = random.Random(1).randbytes(MIB)
    for at in range(0, size, MIB):
        os.pwrite(descriptor, piece[: min(MIB, size - at)], at)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def start_target(path: str, shards: int) -> Target:
    command = [str(data.PROGRAM), "target", "--listen", "127.0.0.1:0", "--object", path, "--json", "--shards", str(shards)]
    return Target(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


class Bench:
    def __init__(self, arguments: argparse.Namespace, memory: Target, file: Target, bare: subprocess.Popen, port: str) -> None:
        self.arguments, self.memory, self.file, self.bare, self.port = arguments, memory, file, bare, port
        self.found: dict[str, list[dict]] = {}

    def cases(self) -> dict:
        """By name: what to run, in turn."""
        pings, count = self.arguments.pings, self.arguments.count
        bare = lambda *what: run_client([str(BARE), what[0], self.port, *map(str, what[1:])], self.bare)  # noqa: E731
        cases = {
            "4KiB bare": lambda: bare("ping", 4096, pings),
            "4KiB file": lambda: self.file.read(4096, pings, 1, 1, "none"),
            "1MiB file x1": lambda: self.file.read(MIB, count, 1, PER_CONNECTION, "none"),
        }
        for digests in DIGESTS:
            cases[f"4KiB memory {digests}"] = lambda digests=digests: self.memory.read(4096, pings, 1, 1, digests)
            cases[f"1MiB memory x1 {digests}"] = lambda digests=digests: self.memory.read(MIB, count, 1, PER_CONNECTION, digests)
        for connections in self.arguments.connections:
            each = max(1, count // connections)
            cases[f"1MiB bare x{connections}"] = lambda c=connections, n=each: bare("stream", MIB, n, PER_CONNECTION, c)
            if connections > 1:
                depth = min(127, PER_CONNECTION * connections)
                cases[f"1MiB memory x{connections} none"] = lambda c=connections, d=depth: self.memory.read(MIB, count, c, d, "none")
        return cases

    def run(self) -> None:
        cases, order = self.cases(), random.Random(self.arguments.seed)
        for number in range(self.arguments.rounds):
            names = list(cases)
            order.shuffle(names)
            for name in names:
                self.found.setdefault(name, []).append(cases[name]())
            print(f"round {number + 1} of {self.arguments.rounds}", file=sys.stderr)

    def median(self, name: str, what: str) -> float:
        return statistics.median(run[what] for run in self.found[name])

    def ratios(self, one: str, other: str, what: str) -> list[float]:
        """Of each round: the machine was the same then."""
        return [a[what] / b[what] for a, b in zip(self.found[one], self.found[other], strict=True)]


def latency_table(bench: Bench) -> str:
    rows = []
    for name in sorted(name for name in bench.found if name.startswith("4KiB")):
        ratio = statistics.median(bench.ratios(name, "4KiB bare", "p50_us"))
        rows.append([name, f"{bench.median(name, 'p50_us'):.1f}", f"{bench.median(name, 'p99_us'):.1f}", f"{ratio:.2f}"])
    return tables.table(["4 KiB, one at a time", "p50 us", "p99 us", "p50 of bare"], rows)


def throughput_table(bench: Bench) -> str:
    rows = []
    for name in sorted(name for name in bench.found if name.startswith("1MiB")):
        connections = name.partition(" x")[2].partition(" ")[0]
        gib = bench.arguments.count * MIB / GIB
        rate = statistics.median(bench.ratios(name, f"1MiB bare x{connections}", "gib_per_s"))
        client, server = (bench.median(name, f"{side}_cpu_s") / gib for side in ("client", "server"))
        rows.append([name, f"{bench.median(name, 'gib_per_s'):.2f}", f"{client:.3f}", f"{server:.3f}", f"{rate:.2f}"])
    return tables.table(["1 MiB, connections", "GiB/s", "host CPU s/GiB", "target CPU s/GiB", "of bare"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="runs of each (7)")
    parser.add_argument("--pings", type=int, default=20_000, help="4 KiB reads of a run (20000)")
    parser.add_argument("--count", type=int, default=4096, help="1 MiB reads of a run (4096)")
    parser.add_argument("--bytes", type=data.parse_bytes, default=256 * MIB, help="size of the object (256MiB)")
    parser.add_argument("--connections", type=lambda text: [int(one) for one in text.split(",")], default=[1, 4, 16], help="1,4,16")
    parser.add_argument("--shards", type=int, default=os.cpu_count() or 1, help="of the target, a thread each (one per core)")
    parser.add_argument("--tmpfs", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="where the file lies (/dev/shm)")
    parser.add_argument("--output", type=pathlib.Path, help="file of results, appended to (bench/results/DATE-nvme.jsonl)")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--quick", action="store_true", help="one short round, for a test")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.pings, arguments.count, arguments.bytes = 1, 200, 64, 16 * MIB
    file = arguments.tmpfs / f"infercluster-bench-{os.getpid()}"
    memory = sealed_memory(arguments.bytes)
    try:
        with open(f"/proc/self/fd/{memory}", "rb") as source:
            file.write_bytes(source.read())
        targets = [start_target(path, arguments.shards) for path in (f"/proc/{os.getpid()}/fd/{memory}", str(file))]
        with ended(targets[0].process), ended(targets[1].process):
            with ended(subprocess.Popen([str(BARE), "serve"], stdout=subprocess.PIPE, text=True)) as bare:
                assert bare.stdout is not None
                bench = Bench(arguments, *targets, bare, bare.stdout.readline().strip())
                bench.run()
            served = targets[0].stop()
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        file.unlink(missing_ok=True)
    today = datetime.datetime.now(datetime.UTC)
    common = {"bench": "nvme", "time": today.isoformat(timespec="seconds"), "commit": machine.commit(), "machine": machine.describe(arguments.tmpfs)}
    output = arguments.output or RESULTS / f"{today:%Y-%m-%d}-nvme.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    with open(output, "a", encoding="utf-8") as lines:
        for name, runs in bench.found.items():
            lines.write(json.dumps({**common, "case": name, "bytes": arguments.bytes, "runs": runs}) + "\n")
        lines.write(json.dumps({**common, "case": "target's counters", "served": served}) + "\n")
    print(latency_table(bench), throughput_table(bench), sep="\n\n")
    latency = statistics.median(bench.ratios("4KiB memory none", "4KiB bare", "p50_us"))
    throughput = statistics.median(bench.ratios("1MiB memory x1 none", "1MiB bare x1", "gib_per_s"))
    print(f"\n4 KiB: {latency:.2f} of the bare latency (at most {LATENCY_MOST}); 1 MiB: {throughput:.2f} of the bare stream (at least"
          f" {THROUGHPUT_LEAST}). The target combined {served['digests_combined']} data digests from stored checksums without a look at the"
          f" data, and looked at {served['blocks_verified']} blocks, each once, for hosts without; {served['sends_zero_copy']} of {served['sends']} sends"
          f" were zero-copy, of which the kernel copied {served['sends_copied']}, as loopback does.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
