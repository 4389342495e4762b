# SPDX-License-Identifier: Apache-2.0
"""Measures what a checkpoint that drains does to the reads of another process. Writes bench/results/DATE-interference.jsonl and prints a table.

The foreground is an inference server's reads (bench/interference/foreground.cc), the drain a trainer that saves without pause
(bench/interference/drain.cc). First the 99th percentile of the reads' latency alone, and beside a drain that nothing holds back. The target
lies between the two, at their geometric mean. Then the highest fixed rate of the drain at which the median of several runs meets the target
is searched by halving the interval, and at the end all are run again in turn: alone, ungoverned, at that fixed rate, governed.

What is measured is the writing: no checkpoint is removed meanwhile. On a disk that is mounted with `discard`, removing a large file holds
up everybody's reads by itself, however slowly the next one is written.
"""

import argparse
import datetime
import json
import math
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import time

from load import data, machine, tables

FOREGROUND = data.PROGRAM.with_name("interference_foreground")
DRAIN = data.PROGRAM.with_name("interference_drain")
RESULTS = machine.ROOT / "bench" / "results"
MIB = 1 << 20
PIECE = 16 * MIB
RATE_LEAST = 8 * MIB  # what the governor leaves a drain in any case
SHARE_LEAST = 0.8  # of the best fixed rate that the governed drain must reach


class Failed(Exception):
    """A program gave no result."""


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seconds, self.pace, self.size = arguments.seconds, arguments.reads, arguments.bytes
        self.file = arguments.data / f"foreground-{arguments.file_bytes}"
        self.root = arguments.data / "drain"
        self.environment = {**os.environ, "INFERCLUSTER_LATENCY_DIR": str(arguments.data / "latency")}
        self.target_us = 0
        if not self.file.exists():
            _fill(self.file, arguments.file_bytes)

    def foreground(self) -> dict:
        command = [str(FOREGROUND), str(self.file), str(self.pace), str(self.seconds), str(self.target_us)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=10 * self.seconds + 60, check=False)
        if done.returncode != 0:
            raise Failed(f"{FOREGROUND.name}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def beside(self, how: str, rate: float = 0) -> dict:
        """`how`: "alone", or what the drain is told; see drain.cc. Adds the rate of the drain."""
        if how == "alone":
            return self.foreground()
        remove_gently(self.root)
        self.root.mkdir(parents=True)
        command = [str(DRAIN), str(self.root), str(self.size), how, str(int(rate))]
        with subprocess.Popen(command, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as drain:
            try:
                if drain.stdout.readline().strip() != "ready":
                    raise Failed(f"{DRAIN.name} is not ready")
                begin, before = time.monotonic(), _ask(drain)
                found = self.foreground()
                end, after = time.monotonic(), _ask(drain)
            finally:
                drain.kill()  # at a low rate its end would last minutes
        remove_gently(self.root)
        return {**found, "rate": (after - before) / (end - begin)}


def remove_gently(root: pathlib.Path) -> None:
    """In small pieces that are each on disk before the next goes: the run behind it must not meet a disk that is busy discarding."""
    for path in sorted(root.rglob("*.safetensors")):
        descriptor = os.open(path, os.O_WRONLY)
        for left in range(path.stat().st_size // PIECE * PIECE, -1, -PIECE):
            os.ftruncate(descriptor, left)
            os.fsync(descriptor)
        os.close(descriptor)
    shutil.rmtree(root, ignore_errors=True)


def _fill(path: pathlib.Path, size: int) -> None:
    """With bytes that no layer below can leave out."""
    with open(path.with_suffix(".part"), "wb") as file:
        for at in range(0, size, MIB):
            file.write(random.randbytes(min(MIB, size - at)))
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".part").rename(path)


def _ask(drain: subprocess.Popen) -> int:
    try:
        drain.stdin.write("\n")
        drain.stdin.flush()
    except BrokenPipeError:
        pass
    answer = drain.stdout.readline().strip()
    if not answer:
        raise Failed(f"{DRAIN.name} ended early")
    return int(answer)


class Runs:
    """Of each way to drain, in turn; the median of runs counts."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.found = bench, {}

    def add(self, how: str, rate: float = 0) -> None:
        found = self.bench.beside(how, rate)
        self.found.setdefault((how, rate), []).append(found)
        drained = f", drained {found['rate'] / MIB:.0f} MiB/s" if "rate" in found else ""
        asked = f" {rate / MIB:.0f} MiB/s" if rate else ""
        print(f"{how}{asked}: p99 {found['p99_s'] * 1e3:.2f} ms{drained}", file=sys.stderr, flush=True)

    def of(self, how: str, what: str, rate: float = 0) -> list[float]:
        return [run[what] for run in self.found[how, rate]]

    def median(self, how: str, what: str, rate: float = 0) -> float:
        return statistics.median(self.of(how, what, rate))


def search(runs: Runs, arguments: argparse.Namespace) -> float:
    """The highest rate at which the drain meets the target. A governed run stands between the probes, so that both meet the same disk."""
    low, high = RATE_LEAST, runs.median("free", "rate")
    for _ in range(arguments.steps):
        rate = math.sqrt(low * high)
        for _ in range(arguments.probes):
            runs.add("fixed", rate)
        runs.add("governed")
        if runs.median("fixed", "p99_s", rate) * 1e6 <= runs.bench.target_us:
            low = rate
        else:
            high = rate
    return low


def measure(arguments: argparse.Namespace) -> tuple[Runs, float]:
    """The runs, and the best fixed rate."""
    order = random.Random(1)
    bench = Bench(arguments)
    runs = Runs(bench)
    for _ in range(arguments.rounds):
        for how in order.sample(["alone", "free"], 2):
            runs.add(how)
    alone, free = runs.median("alone", "p99_s"), runs.median("free", "p99_s")
    bench.target_us = max(1, round(1e6 * math.sqrt(alone * free)))
    best = search(runs, arguments)
    ways = [("alone", 0), ("free", 0), ("fixed", best), ("governed", 0)]
    for _ in range(arguments.rounds):
        for how, rate in order.sample(ways, len(ways)):
            runs.add(how, rate)
    return runs, best


def records(runs: Runs, best: float, arguments: argparse.Namespace, common: dict) -> list[dict]:
    target, result = runs.bench.target_us / 1e6, []
    for (how, rate), found in runs.found.items():
        record = {**common, "how": how, "fixed_rate": rate or None, "is_best_fixed": how == "fixed" and rate == best, "target_s": target,
                  "reads_per_s": arguments.reads, "seconds": arguments.seconds, "bytes": arguments.bytes,
                  "p50_s": tables.summary([run["p50_s"] for run in found]), "p99_s": tables.summary([run["p99_s"] for run in found])}
        if how != "alone":
            record["rate"] = tables.summary([run["rate"] for run in found])
        result.append(record)
    return result


def render(runs: Runs, best: float) -> str:
    target = runs.bench.target_us / 1e6
    names = {"alone": "no drain", "free": "drain, nothing holds it back", "governed": "drain, governed"}
    rows = []
    for how, rate in [("alone", 0), ("free", 0), ("governed", 0), ("fixed", best)]:
        if (how, rate) not in runs.found:
            continue
        found = runs.of(how, "p99_s", rate)
        drained = "-" if how == "alone" else f"{runs.median(how, 'rate', rate) / MIB:.0f}"
        rows.append([names.get(how, "drain at the best fixed rate"), f"{runs.median(how, 'p50_s', rate) * 1e3:.2f}",
                     f"{statistics.median(found) * 1e3:.2f}", f"{min(found) * 1e3:.2f}..{max(found) * 1e3:.2f}",
                     f"{statistics.median(found) / target:.2f}", drained, str(len(found))])
    share = runs.median("governed", "rate") / runs.median("fixed", "rate", best) if ("fixed", best) in runs.found else math.inf
    held = runs.median("governed", "p99_s") <= target
    return "\n".join([
        f"== reads of another process while a checkpoint drains; their target: p99 of {target * 1e3:.2f} ms ==",
        tables.table(["", "p50 ms", "p99 ms", "min..max", "of target", "drained MiB/s", "runs"], rows),
        f"governed, the target is {'held' if held else 'NOT HELD'}, and the drain runs at {share:.2f} of the best fixed rate"
        f" (wanted: {SHARE_LEAST} and more)"]) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, before the search and behind it (3)")
    parser.add_argument("--steps", type=int, default=5, help="of the search for the best fixed rate (5)")
    parser.add_argument("--probes", type=int, default=3, help="runs at each of its rates (3)")
    parser.add_argument("--seconds", type=float, default=8, help="of each run (8)")
    parser.add_argument("--reads", type=float, default=200, help="that arrive each second (200)")
    parser.add_argument("--bytes", type=data.parse_bytes, default=512 * MIB, help="of a checkpoint (512MiB)")
    parser.add_argument("--file-bytes", type=data.parse_bytes, default=4 << 30, help="of the file that is read (4GiB)")
    parser.add_argument("--data", type=pathlib.Path, default=machine.ROOT / "bench" / "data" / "interference", help="where to read and save")
    parser.add_argument("--output", type=pathlib.Path, help="file of results, appended to (bench/results/DATE-interference.jsonl)")
    parser.add_argument("--quick", action="store_true", help="a second each, one round, no file of results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds = arguments.steps = arguments.probes = 1
        arguments.seconds, arguments.bytes, arguments.file_bytes = 1, 64 * MIB, 64 * MIB
    return arguments


def main() -> int:
    arguments = parse()
    started = datetime.datetime.now(datetime.timezone.utc)
    arguments.data.mkdir(parents=True, exist_ok=True)
    common = {"benchmark": "interference", "date": started.isoformat(timespec="seconds"), "commit": machine.commit(),
              "machine": machine.describe(arguments.data), "load_average_before": os.getloadavg()[0]}
    try:
        runs, best = measure(arguments)
    except (Failed, subprocess.TimeoutExpired) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(render(runs, best), flush=True)
    output = arguments.output or (None if arguments.quick else RESULTS / f"{started:%Y-%m-%d}-interference.jsonl")
    if output is not None:
        with open(output, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records(runs, best, arguments, common))
        print(f"results: {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
