# SPDX-License-Identifier: Apache-2.0
"""Runs contestants against one repository: each in a process of its own, interleaved, with a page cache that is proven."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys

from load import data, page_cache
from load.keeper import Keeper

LIMIT_PROGRAM = data.PROGRAM.with_name("load_limit")
CHILD = pathlib.Path(__file__).with_name("contestant.py")
RUN_TIMEOUT_S = 900
COLD_AT_MOST = 0.001
WARM_AT_LEAST = 0.999

LIMIT, FIO = "limit", "fio"
PYTHON_OURS = ["infercluster-uring", "infercluster-threads"]
PROGRAM_OURS = ["infercluster-cli-uring", "infercluster-cli-threads"]
PEERS = ["safetensors-load_file", "safetensors-pread", "runai-model-streamer", "fastsafetensors", "torch.load-mmap"]
EVERYONE = [LIMIT, FIO, *PYTHON_OURS, *PROGRAM_OURS, *PEERS]

# What a calibration chooses from: the strategies that were best on some machine or other.
_MIB = 1 << 20
LIMIT_CANDIDATES = {
    "cold": [
        f"--prefault ahead --helpers 1 --step {4 * _MIB} --block {4 * _MIB} --depth 16",
        f"--prefault ahead --helpers 2 --step {4 * _MIB} --block {8 * _MIB} --depth 8",
        f"--prefault ahead --helpers 1 --step {4 * _MIB} --block {_MIB} --depth 32",
        f"--prefault ahead --helpers 1 --step {2 * _MIB} --block {2 * _MIB} --depth 16 --window {256 * _MIB}",
        f"--prefault first --helpers 2 --step {4 * _MIB} --block {4 * _MIB} --depth 16",
        f"--prefault none --threads 2 --block {4 * _MIB} --depth 16",
    ],
    "warm": [
        f"--engine pread --direct 0 --prefault none --threads {os.cpu_count()} --block {2 * _MIB}",
        f"--engine pread --direct 0 --prefault none --threads {2 * (os.cpu_count() or 1)} --block {2 * _MIB}",
        f"--engine pread --direct 0 --prefault none --threads {8 * (os.cpu_count() or 1)} --block {2 * _MIB}",
        f"--engine pread --direct 0 --prefault inline --threads {os.cpu_count()} --block {2 * _MIB}",
        f"--engine pread --direct 0 --prefault none --threads {os.cpu_count()} --block {16 * _MIB}",
    ],
}


class InvalidRun(Exception):
    """The page cache was not in the state that the run is about, or the contestant failed."""


@dataclasses.dataclass
class Run:
    """One load. `checksum` covers names, dtypes, shapes and every byte; None where the consumer cannot see the tensors."""

    load_seconds: float
    bytes: int
    checksum_seconds: float | None = None
    checksum: str | None = None
    tensors: int | None = None
    maps: bool = False
    peak_rss: int | None = None
    version: str = ""
    detail: dict = dataclasses.field(default_factory=dict)

    @property
    def total_seconds(self) -> float | None:
        return None if self.checksum_seconds is None else self.load_seconds + self.checksum_seconds


def environment(name: str) -> dict[str, str]:
    """Ours run with defaults, but for the backend that the contestant's name says."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("INFERCLUSTER_", "RUNAI_", "SAFETENSORS_"))}
    if name in PYTHON_OURS + PROGRAM_OURS:
        kept["INFERCLUSTER_BACKEND"] = name.rpartition("-")[2]
    return kept


def execute(command: list[str], env: dict[str, str], keeper: Keeper, waits: bool = False) -> dict:
    """Runs a program that prints one JSON document, alone or as its last line. One that `waits` first writes the line "ready",
    and begins when it reads a line: until then the keeper holds the memory."""
    name = pathlib.Path(command[0]).name
    with contextlib.ExitStack() as stack:
        if not waits:
            keeper.start_feeding()
        stack.callback(keeper.stop_feeding)
        try:
            process = stack.enter_context(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                           stderr=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            before = ""
            if waits and (before := process.stdout.readline()) == "ready\n":
                keeper.start_feeding()
            output, errors = process.communicate("go\n" if waits else None, timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise InvalidRun(f"{name}: no result after {RUN_TIMEOUT_S} s") from error
        except OSError as error:
            raise InvalidRun(f"{command[0]}: {error.strerror}") from error
    if process.returncode != 0:
        last = (errors.strip() or output.strip()).splitlines()[-1:]
        raise InvalidRun(f"{name} gave exit status {process.returncode}: {' '.join(last)}")
    text = (output if before == "ready\n" else before + output).strip()
    for candidate in (text, text[text.find("{"):], text.splitlines()[-1] if text else ""):
        with contextlib.suppress(json.JSONDecodeError):
            return json.loads(candidate)
    raise InvalidRun(f"{command[0]}: printed no JSON")


def run_limit(repository: data.Repository, parameters: str, keeper: Keeper) -> Run:
    found = execute([str(LIMIT_PROGRAM), *parameters.split(), *repository.files], environment(LIMIT), keeper)
    return Run(found["seconds"], found["bytes"], detail={"parameters": parameters})


def run_fio(repository: data.Repository, keeper: Keeper) -> Run:
    """fio's figure beside the limit's: into one small buffer that it reuses, so it populates no memory. The buffer is of transparent
    huge pages; fio itself knows only explicit ones, which would have to be reserved, and stay so when the bench is killed."""
    command = ["fio", "--name=cold", "--filename=" + ":".join(repository.files), "--file_service_type=sequential", "--rw=read", "--bs=1m",
               "--iodepth=32", "--direct=1", "--ioengine=io_uring", "--iomem=malloc", "--readonly", "--output-format=json"]
    read = execute(command, {**environment(FIO), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, keeper)["jobs"][0]["read"]
    return Run(read["io_bytes"] / read["bw_bytes"], read["io_bytes"])


def run_program(repository: data.Repository, name: str, keeper: Keeper) -> Run:
    found = execute([str(data.PROGRAM), "load", str(repository.folder), "--json", "--quiet"], environment(name), keeper)
    detail = {"backend": found["backend"], "modes": sorted({file["mode"] for file in found["files"]}), "waited": found["waited"]}
    return Run(found["seconds"], found["bytes"], tensors=found["tensors"], peak_rss=found["peak_host_bytes"], detail=detail)


def run_python(repository: data.Repository, name: str, keeper: Keeper) -> Run:
    command = [sys.executable, str(CHILD), name, str(repository.folder), str(repository.torch_file), *repository.files]
    found = execute(command, environment(name), keeper, waits=True)
    if "missing" in found:
        raise InvalidRun("not installed: " + found["missing"])
    detail = {key: found[key] for key in ("backend", "modes", "waited") if found.get(key)}
    return Run(found["load_seconds"], found["bytes"], found["checksum_seconds"], found["checksum"], found["tensors"], found["maps"],
               found["peak_rss"], found["version"], detail)


class Bench:
    """Runs of every contestant on one repository in one state of the page cache ("cold" or "warm")."""

    def __init__(self, repository: data.Repository, state: str, contestants: list[str], keeper: Keeper, seed: int) -> None:
        self.repository = repository
        self.state = state
        self.keeper = keeper
        self.contestants = [name for name in contestants if not (name == FIO and state == "warm")]
        self.runs: dict[str, list[Run]] = {name: [] for name in self.contestants}
        self.invalid: dict[str, list[str]] = {name: [] for name in self.contestants}
        self.limit_parameters = LIMIT_CANDIDATES[state][0]
        self._random = random.Random(seed)

    def prepare(self, name: str) -> None:
        files = [str(self.repository.torch_file)] if name == "torch.load-mmap" else self.repository.files
        if self.state == "cold":
            left = page_cache.drop(files)
            if left > COLD_AT_MOST:
                raise InvalidRun(f"{left:.1%} of the files would not leave the page cache")
        else:
            found = page_cache.fill(files)
            if found < WARM_AT_LEAST:
                raise InvalidRun(f"only {found:.1%} of the files are in the page cache")
        self.keeper.hold()

    def run_once(self, name: str) -> Run:
        self.prepare(name)
        if name == LIMIT:
            return run_limit(self.repository, self.limit_parameters, self.keeper)
        if name == FIO:
            return run_fio(self.repository, self.keeper)
        if name in PROGRAM_OURS:
            return run_program(self.repository, name, self.keeper)
        return run_python(self.repository, name, self.keeper)

    def calibrate(self, rounds: int) -> None:
        """Chooses the limit's strategy: the best median of a few interleaved runs of each candidate."""
        seconds: dict[str, list[float]] = {parameters: [] for parameters in LIMIT_CANDIDATES[self.state]}
        for _ in range(rounds):
            for parameters in self._shuffled(list(seconds)):
                self.prepare(LIMIT)
                with contextlib.suppress(InvalidRun):  # a strategy that the kernel refuses is not a candidate
                    seconds[parameters].append(run_limit(self.repository, parameters, self.keeper).load_seconds)
        usable = {parameters: statistics.median(found) for parameters, found in seconds.items() if found}
        if not usable:
            raise InvalidRun(f"{LIMIT_PROGRAM} runs with no strategy")
        self.limit_parameters = min(usable, key=lambda parameters: usable[parameters])

    def run(self, rounds: int) -> None:
        for number in range(rounds):
            for name in self._shuffled(self.contestants):
                if self.invalid[name] and not self.runs[name]:
                    continue  # it cannot be run here: once is enough to say so
                try:
                    self.runs[name].append(self.run_once(name))
                except InvalidRun as error:
                    self.invalid[name].append(str(error))
            print(f"{self.repository.name} {self.state}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)

    def disagreements(self) -> list[str]:
        """Contestants whose tensors were not, in names, dtypes, shapes and bytes, those of most."""
        sums = [(name, run.checksum) for name, runs in self.runs.items() for run in runs if run.checksum is not None]
        if not sums:
            return []
        agreed = statistics.mode(found for _, found in sums)
        return sorted({name for name, found in sums if found != agreed})

    def failures(self) -> list[str]:
        """Contestants without which the bench says nothing: ours and the limit. Peers may be missing."""
        return [f"{name}: {self.invalid[name][0]}" for name in self.contestants
                if name not in [FIO, *PEERS] and not self.runs[name] and self.invalid[name]]

    def _shuffled(self, names: list[str]) -> list[str]:
        return self._random.sample(names, len(names))


def second_loads(repository: data.Repository, name: str, keeper: Keeper) -> tuple[Run, float, Run]:
    """A cold load, the residency that its process left, and a load after it; each with the consumer's checksum."""
    left = page_cache.drop(repository.files)
    if left > COLD_AT_MOST:
        raise InvalidRun(f"{left:.1%} of the files would not leave the page cache")
    keeper.hold()
    first = run_python(repository, name, keeper)
    kept = page_cache.residency(repository.files)
    keeper.hold()
    return first, kept, run_python(repository, name, keeper)
