# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint costs at scale. Writes bench/results/scale.jsonl and prints tables.

1. The planner and the commit protocol, run for all ranks of a Llama 3.1 405B training job in one process: what is timed and counted
   is the code that each rank runs, all but the bytes and the waiting.
2. A model of nodes, networks and storage, held against real saves and restores on this machine.
3. What that model says of the MLPerf Storage checkpoint sizes, for a spec (--spec) of nodes and storage.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import sys

from load import machine
from load.tables import table
from scale import check, model

RESULTS = machine.ROOT / "bench" / "results" / "scale.jsonl"
WORLDS = (8, 64, 512, 4096, 16384)
MLPERF = ((8, 105e9), (64, 912e9), (512, 5.29e12), (1024, 18e12))
RATIO_MAX = 2.0  # predicted to measured, either way: beyond it the check has failed
MIB, KIB = 1 << 20, 1 << 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default=",".join(map(str, WORLDS)), help="of " + ", ".join(map(str, WORLDS)))
    parser.add_argument("--spec", type=pathlib.Path, default=pathlib.Path(__file__).parent / "scale" / "cluster.json", help="of nodes and storage")
    parser.add_argument("--ranks", default="1,2,4", help="of the real runs (1,2,4)")
    parser.add_argument("--mib", type=int, default=512, help="size of the real runs' checkpoint (512)")
    parser.add_argument("--data", type=pathlib.Path, default=machine.ROOT / "bench" / "data", help="where the real runs save to")
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS, help=f"file of results, written anew ({RESULTS.name})")
    return parser.parse_args()


def planner_tables(rows: list[dict]) -> str:
    times = [[str(r["world"]), "x".join(map(str, r["parallelism"])), str(r["chunks"]), f"{r['s_per_chunk'] * 1e6:.2f}", f"{r['rank_s_median'] * 1e3:.2f}",
              f"{r['rank_s_max'] * 1e3:.2f}", f"{r['coordinator_s'] * 1e3:.1f}", f"{r['reuse_s'] * 1e3:.2f}", f"{r['balance']:.3f}"] for r in rows]
    costs = [[str(r["world"]), f"{r['rank_bytes_peak'] / KIB:.0f}", f"{r['coordinator_bytes_peak'] / MIB:.1f}",
              f"{r['rank_new']['messages']} / {r['rank_again']['messages']}", f"{r['coordinator_new']['messages']} / {r['coordinator_again']['messages']}",
              f"{r['rank_new']['received'] / KIB:.1f} / {r['rank_again']['received'] / KIB:.1f}", f"{r['coordinator_new']['received'] / KIB:.0f}",
              f"{r['commit_bytes'] / KIB:.0f}", f"{r['index_bytes_max'] / KIB:.0f}", f"{r['index_bytes'] / MIB:.0f}", f"{r['index_parse_s']:.1f}"] for r in rows]
    opening = [[str(r["world"]), f"{r['index_bytes'] / MIB:.0f}", f"{r['index_parse_s']:.1f}", f"{r['index_heap_bytes'] / MIB:.0f}",
                f"{r['own_indexes_mean']:.0f} / {r['own_indexes_max']}", *(f"{r[what] * r['own_indexes_max'] / r['world'] / by:.2f}"
                for what, by in (("index_bytes", MIB), ("index_parse_s", 1), ("index_heap_bytes", MIB)))] for r in rows]
    return "\n".join((
        "== planning (processor time) ==",
        table(["ranks", "PPxDPxTP", "chunks", "us/chunk", "rank ms", "rank ms max", "rank 0 ms", "plan stands, ms", "most/mean bytes"], times),
        "== what it takes (new plan / plan that stands) ==",
        table(["ranks", "rank KiB peak", "rank 0 MiB peak", "messages of a rank", "of rank 0", "KiB received", "by rank 0", "COMMIT KiB", "index KiB",
               "indexes MiB", "all parsed, s"], costs),
        "== what opening it takes a rank: all of it; what it saved itself ==",
        table(["ranks", "MiB", "s", "MiB held", "own: indexes / most", "MiB", "s", "MiB held"], opening)))


def main() -> int:
    arguments = parse()
    common = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": machine.commit(),
              "machine": machine.describe(arguments.data if arguments.data.exists() else machine.ROOT)}
    try:
        spec = model.read_spec(arguments.spec)
        rows = [{**common, **row} for row in check.program("scale_planner", *arguments.worlds.split(","))]
        print(planner_tables(rows), flush=True)
        parse_bandwidth = max(row["index_bytes"] / row["index_parse_s"] for row in rows)
        compared, runs = check.compare(arguments.data, [int(n) for n in arguments.ranks.split(",")], arguments.mib, parse_bandwidth)
    except (model.SpecError, check.RunError) as error:
        print(f"scale: {error}", file=sys.stderr)
        return 1
    print("== the model against this machine ==")
    print(table(["ranks", "MiB", "what", "predicted s", "measured s", "predicted/measured"],
                [[str(c.ranks), f"{c.size / MIB:.0f}", c.what, f"{c.predicted_s:.3f}", f"{c.measured_s:.3f}", f"{c.ratio:.2f}"] for c in compared]))
    spec = dataclasses.replace(spec, exchange=dataclasses.replace(spec.exchange, index_parse_bandwidth=parse_bandwidth))
    predictions = []
    for ranks, size in MLPERF:
        save, restore = model.predict_save(spec, ranks, size), model.predict_restore(spec, ranks, size)
        predictions.append({"ranks": ranks, "bytes": size, "save": dataclasses.asdict(save), "restore": dataclasses.asdict(restore)})
    print(f"== MLPerf Storage sizes, predicted for {arguments.spec.name} ({spec.name}) ==")
    print(table(["ranks", "GB", "stall s", "save s", "GB/s", "by", "restore s", "of it opening", "GB/s"],
                [[str(p["ranks"]), f"{p['bytes'] / 1e9:.0f}", f"{p['save']['stall_s']:.2f}", f"{p['save']['seconds']:.1f}",
                  f"{p['bytes'] / 1e9 / p['save']['seconds']:.0f}", p["save"]["busiest"], f"{p['restore']['seconds']:.1f}",
                  f"{p['restore']['stall_s']:.1f}", f"{p['bytes'] / 1e9 / p['restore']['seconds']:.0f}"] for p in predictions]))
    rows += [{**common, "benchmark": "scale-check", "load_average": os.getloadavg()[0], **dataclasses.asdict(c), "ratio": c.ratio} for c in compared]
    rows += [{**common, "benchmark": "scale-check-spec", **run} for run in runs]
    rows += [{**common, "benchmark": "scale-model", "spec": dataclasses.asdict(spec), **p} for p in predictions]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"results: {arguments.output}")
    odd = [c for c in compared if not 1 / RATIO_MAX <= c.ratio <= RATIO_MAX]
    for c in odd:
        print(f"scale: the model is off by more than {RATIO_MAX:g}: {c.what} by {c.ranks} ranks: {c.ratio:.2f}", file=sys.stderr)
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
