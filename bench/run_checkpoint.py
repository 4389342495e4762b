# SPDX-License-Identifier: Apache-2.0
"""Measures checkpoints of host memory: ours, our peers and the machine's limits in one go, interleaved. Writes
bench/results/DATE-checkpoint.jsonl and prints tables.

The stall is what the caller waits until it may change its state, beside the fastest parallel memcpy of the same bytes into warm memory.
The total lasts until all would outlive the machine's power, beside direct writes of the same bytes from huge pages with fsync.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys

from load import data, machine, page_cache, tables

HERE = pathlib.Path(__file__).parent / "checkpoint"
LIMIT_PROGRAM = data.PROGRAM.with_name("checkpoint_limit")
RESULTS = machine.ROOT / "bench" / "results"
OURS = "infercluster"
PEERS = ["dcp.async_save", "dcp.async_save-4-threads", "dcp.save", "dcp.save-2-threads", "dcp.save-4-threads", "torch.save",
         "safetensors-save_file", "torchsnapshot", "torch_checkpointing"]
QUICK = [OURS, "dcp.async_save", "torch.save"]
SAVES = 3  # of each process; the first brings memory and threads into being, and is told apart
COPY_THREADS = sorted({1, 2, os.cpu_count() or 1})
WRITES = [("8388608", "2"), ("8388608", "4"), ("16777216", "2")]  # block, threads
GIB = 1 << 30


class Failed(Exception):
    """A contestant or limit gave no result."""


def execute(command: list[str], waits: bool = False, environment: dict[str, str] | None = None) -> dict:
    """Runs a program whose last line is one JSON object."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **(environment or {})}
    done = subprocess.run(command, env=env, input="go\n" if waits else None, capture_output=True, text=True, timeout=900, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Failed(f"exit status {done.returncode}: {last}")
    return json.loads(lines[-1])


class Runs:
    """Seconds by contestant, and why there are none."""

    def __init__(self) -> None:
        self.stalls: dict[str, list[float]] = {}
        self.totals: dict[str, list[float]] = {}
        self.first_stalls: dict[str, list[float]] = {}
        self.detail: dict[str, dict] = {}
        self.failures: dict[str, str] = {}
        self.wrong: list[str] = []

    def add(self, name: str, stalls: list[float], totals: list[float]) -> None:
        self.stalls.setdefault(name, []).extend(stalls)
        self.totals.setdefault(name, []).extend(totals)


def run_contestant(name: str, folder: pathlib.Path, size: int, runs: Runs) -> None:
    place = folder / "run"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        found = execute([sys.executable, str(HERE / "contestant.py"), name, str(place), str(size), str(SAVES)], waits=True)
    except (Failed, subprocess.TimeoutExpired) as error:
        runs.failures[name] = str(error)
        return
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if "missing" in found:
        runs.failures[name] = "not installed: " + found["missing"]
        return
    runs.add(name, found["stalls"][1:], found["totals"][1:])
    runs.first_stalls.setdefault(name, []).append(found["stalls"][0])
    runs.detail[name] = {"version": found["version"], "report": found["report"]}
    if found["wrong"]:
        runs.wrong.append(f"WRONG BYTES: {name}: {', '.join(found['wrong'][:3])}")


def run_limits(folder: pathlib.Path, size: int, runs: Runs) -> None:
    copied = execute([str(LIMIT_PROGRAM), "copy", str(size), "2", *map(str, COPY_THREADS)])
    for threads, seconds in copied["seconds"].items():
        runs.stalls.setdefault(f"memcpy, {threads} thread(s)", []).extend(seconds)
    for block, threads in WRITES:
        written = execute([str(LIMIT_PROGRAM), "write", str(folder / "limit"), str(size), block, threads])
        runs.totals.setdefault(f"direct writes, {int(block) >> 20} MiB x {threads}, fsync", []).append(written["seconds"])
    if shutil.which("fio") is None:
        runs.failures["fio"] = "not installed"
    else:
        runs.totals.setdefault("fio: direct writes, 8 MiB x 4, fsync", []).append(run_fio(folder, size))


def run_fio(folder: pathlib.Path, size: int) -> float:
    """As in bench/load, its buffer is of transparent huge pages."""
    path = folder / "fio"
    command = ["fio", "--name=write", f"--filename={path}", "--rw=write", "--bs=8m", "--iodepth=4", f"--size={size}", "--direct=1",
               "--ioengine=io_uring", "--iomem=malloc", "--end_fsync=1", "--fallocate=posix", "--output-format=json"]
    try:
        text = subprocess.run(command, env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, capture_output=True, text=True,
                              check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Failed(f"fio: {error}") from error
    finally:
        path.unlink(missing_ok=True)
    job = json.loads(text[text.find("{"):])["jobs"][0]
    return job["write"]["runtime"] / 1e3 + job.get("sync", {}).get("lat_ns", {}).get("mean", 0) / 1e9


def best(seconds: dict[str, list[float]], is_limit) -> tuple[str, float]:
    medians = {name: statistics.median(found) for name, found in seconds.items() if is_limit(name) and found}
    name = min(medians, key=medians.get)
    return name, medians[name]


def is_copy_limit(name: str) -> bool:
    return name.startswith("memcpy")


def is_write_limit(name: str) -> bool:
    return name.startswith(("direct writes", "fio"))


def records(runs: Runs, size: int, common: dict) -> list[dict]:
    _, copy = best(runs.stalls, is_copy_limit)
    _, write = best(runs.totals, is_write_limit)
    fio = next((statistics.median(found) for name, found in runs.totals.items() if name.startswith("fio")), None)
    result = []
    for name in dict.fromkeys([*runs.stalls, *runs.totals]):
        record = {**common, "bytes": size, "contestant": name, **runs.detail.get(name, {})}
        if stalls := runs.stalls.get(name):
            record |= {"stall_s": tables.summary(stalls), "stall_of_memcpy": statistics.median(stalls) / copy}
        if totals := runs.totals.get(name):
            median = statistics.median(totals)
            record |= {"durable_s": tables.summary(totals), "speed_of_best_write": write / median, "speed_of_fio": fio and fio / median}
        if name in runs.first_stalls:
            record["first_stall_s"] = tables.summary(runs.first_stalls[name])
        result.append(record)
    return result


def _cell(record: dict, key: str, inner: str | None = None) -> str:
    value = record.get(key)
    if value is None:
        return "-"
    return f"{value[inner] if inner else value:.3f}"


def render(found: list[dict], runs: Runs, size: int) -> str:
    ours = next((record for record in found if record["contestant"] == OURS), {})
    rows = []
    for record in sorted(found, key=lambda record: record.get("durable_s", record.get("stall_s"))["median"]):
        faster = [f"{record[key]['median'] / ours[key]['median']:.2f}" if key in record and key in ours else "-"
                  for key in ("stall_s", "durable_s")]
        rows.append([record["contestant"], _cell(record, "first_stall_s", "median"), _cell(record, "stall_s", "median"),
                     _cell(record, "stall_of_memcpy"), faster[0], _cell(record, "durable_s", "median"), _cell(record, "durable_s", "iqr"),
                     _cell(record, "speed_of_fio"), faster[1], record.get("version", "limit")])
    header = ["contestant", "1st stall s", "stall s", "x memcpy", "/ ours", "durable s", "iqr", "of fio", "/ ours", "version"]
    lines = [f"== a state of {size / GIB:.2f} GiB in host memory ==", tables.table(header, rows)]
    lines += [f"skipped {name}: {why}" for name, why in runs.failures.items()]
    return "\n".join(lines) + "\n"


def drop_page_cache(folder: pathlib.Path) -> None:
    for path in folder.rglob("*.safetensors"):
        page_cache.drop([str(path)])


def reshard(folder: pathlib.Path, size: int, rounds: int, common: dict) -> list[dict]:
    """A state that 4 ranks saved, loaded by 3, cold, beside a plain cold load of as many bytes."""
    place, plain = folder / "reshard", folder / f"plain-{size}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)

    def ranks(what: str, world: int) -> list[dict]:
        processes = [
            subprocess.Popen([sys.executable, str(HERE / "resharder.py"), what, str(place), str(size)], stdout=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world)})
            for rank in range(world)
        ]
        outputs = [process.communicate(timeout=900)[0] for process in processes]
        if any(process.returncode for process in processes):
            raise Failed(f"a rank that should {what} failed")
        return [json.loads(output) for output in outputs if output.strip()]

    try:
        ranks("save", 4)
        if not plain.exists():
            subprocess.run([str(data.PROGRAM), "synth", str(plain), "--bytes", str(size), "--quiet"], check=True)
        resharded, loaded, read = [], [], 0
        for _ in range(rounds):
            drop_page_cache(place)
            answers = ranks("load", 3)
            if not all(answer["good"] for answer in answers):
                raise Failed("WRONG BYTES: resharding")
            resharded.append(max(answer["seconds"] for answer in answers))
            read = sum(answer["bytes_read"] for answer in answers)
            drop_page_cache(plain)
            loaded.append(json.loads(subprocess.run([str(data.PROGRAM), "load", str(plain), "--json", "--quiet"],
                                                    capture_output=True, text=True, check=True).stdout)["seconds"])
    finally:
        shutil.rmtree(place, ignore_errors=True)
    speed = statistics.median(loaded) / statistics.median(resharded)
    print("== a state of 4 ranks, loaded by 3, cold ==")
    print(tables.table(["what", "median s", "min..max", "GiB/s"], [
        [what, f"{statistics.median(times):.3f}", f"{min(times):.3f}..{max(times):.3f}", f"{size / GIB / statistics.median(times):.2f}"]
        for what, times in (("resharded load", resharded), ("plain load", loaded))]))
    print(f"resharding runs at {speed:.2f} of the plain load; {read / size:.3f} bytes read for each of the state\n", flush=True)
    return [{**common, "bytes": size, "contestant": "reshard 4 to 3", "load_s": tables.summary(resharded), "plain_s": tables.summary(loaded),
             "speed_of_plain_load": speed, "bytes_read_per_byte": read / size}]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="processes of each contestant (4); each saves 3 times")
    parser.add_argument("--bytes", type=data.parse_bytes, default=2 << 30, help="of the state (2GiB)")
    parser.add_argument("--contestants", help="names, comma separated; default: all of " + ", ".join([OURS, *PEERS]))
    parser.add_argument("--data", type=pathlib.Path, default=machine.ROOT / "bench" / "data" / "checkpoint", help="where to save")
    parser.add_argument("--output", type=pathlib.Path, help="file of results, appended to (bench/results/DATE-checkpoint.jsonl)")
    parser.add_argument("--no-reshard", action="store_true", help="leave the restore by other ranks out")
    parser.add_argument("--quick", action="store_true", help="64 MiB, one round, the main contestants, no file of results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.bytes, arguments.rounds = 64 << 20, 1
    arguments.names = arguments.contestants.split(",") if arguments.contestants else QUICK if arguments.quick else [OURS, *PEERS]
    if unknown := [name for name in arguments.names if name not in [OURS, *PEERS]]:
        parser.error("unknown: " + ", ".join(unknown))
    return arguments


def main() -> int:
    arguments = parse()
    started = datetime.datetime.now(datetime.timezone.utc)
    arguments.data.mkdir(parents=True, exist_ok=True)
    common = {"benchmark": "checkpoint", "date": started.isoformat(timespec="seconds"), "commit": machine.commit(),
              "machine": machine.describe(arguments.data), "load_average_before": os.getloadavg()[0]}
    runs, order = Runs(), random.Random(1)
    try:
        for _ in range(arguments.rounds):
            run_limits(arguments.data, arguments.bytes, runs)
            for name in order.sample(arguments.names, len(arguments.names)):
                run_contestant(name, arguments.data, arguments.bytes, runs)
        found = records(runs, arguments.bytes, common)
        print(render(found, runs, arguments.bytes), flush=True)
        if not arguments.no_reshard:
            found += reshard(arguments.data, arguments.bytes, arguments.rounds, common)
    except Failed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    output = arguments.output or (None if arguments.quick else RESULTS / f"{started:%Y-%m-%d}-checkpoint.jsonl")
    if output is not None:
        with open(output, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in found)
        print(f"results: {output}")
    for line in runs.wrong:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if runs.wrong or OURS in runs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
