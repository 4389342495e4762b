# SPDX-License-Identifier: Apache-2.0
"""Holds the model against real runs on this machine: its spec from a probe of bare speeds, then saves and restores by 1 to 4 processes."""

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

from scale import model

MIB = 1 << 20


class RunError(RuntimeError):
    pass


def program(name: str, *arguments: str) -> list[dict]:
    """The lines of JSON that one of our programs prints."""
    build = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build" / "release"))
    command = [str(build / "bin" / name), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RunError(f"{' '.join(command)}: {getattr(error, 'stderr', '') or error}") from error
    return [json.loads(line) for line in done.stdout.splitlines()]


def latency(one: float, many: float, request: int) -> float:
    """What a request takes beyond its share of the bandwidth, by the rates of one at a time and of many."""
    return max(0.0, request / one - request / many)


def local_spec(probes: list[dict], round_s: float, index_parse_bandwidth: float, ranks: int) -> model.Spec:
    """One node, and its disk as the only target: by the best of some probes, as whatever disturbs one only slows it."""
    best = {name: max(probe[name] for probe in probes) for name in ("copy", "checksum", "write_one", "write_many", "read_one", "read_many")}
    write, read = max(best["write_one"], best["write_many"]), max(best["read_one"], best["read_many"])
    small = min(probe["small_file_s"] for probe in probes)
    return model.Spec(
        "this machine",
        model.Node(ranks, os.cpu_count() or 1, best["copy"], best["checksum"], 1e15, 0.0),
        model.Storage(1, write, read, latency(best["write_one"], write, model.WRITE_REQUEST),
                      latency(best["read_one"], read, model.READ_REQUEST), 1, min(probe["sync_s_many"] for probe in probes), small),
        model.Exchange(round_s, 0.0, index_parse_bandwidth))


@dataclasses.dataclass(frozen=True)
class Comparison:
    ranks: int
    size: int
    what: str
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s


def measured(run: dict, what: str) -> float:
    """The slowest rank of the fastest repetition."""
    return min(max(times) for times in zip(*(rank[what] for rank in run["of_ranks"])))


def compare(data: pathlib.Path, ranks_of_runs: list[int], mib: int, index_parse_bandwidth: float) -> tuple[list[Comparison], list[dict]]:
    """The probes are taken around the runs that they are to predict."""
    found, specs = [], []
    for ranks in ranks_of_runs:
        folder = data / f"scale-{os.getpid()}"
        folder.mkdir(parents=True)
        try:
            probes = program("scale_runs", "probe", str(folder), str(mib))
            (run,) = program("scale_runs", "run", str(folder), str(ranks), str(mib))
            probes += program("scale_runs", "probe", str(folder), str(mib))
        finally:
            shutil.rmtree(folder)
        spec = local_spec(probes, max(rank["round_s"] for rank in run["of_ranks"]), index_parse_bandwidth, ranks)
        save, restore = model.predict_save(spec, ranks, run["bytes"]), model.predict_restore(spec, ranks, run["bytes"])
        for what, seconds, key in (("save", save.seconds, "durable"), ("stall", save.stall_s, "stall"), ("restore", restore.seconds, "restore")):
            found.append(Comparison(ranks, run["bytes"], what, seconds, measured(run, key)))
        specs.append({"ranks": ranks, "spec": dataclasses.asdict(spec), "run": run})
    return found, specs
