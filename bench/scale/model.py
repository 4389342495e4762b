# SPDX-License-Identifier: Apache-2.0
"""Predicts how long a checkpoint takes to save and to restore, from a spec of the nodes and the storage.

A discrete-event model: requests wait in the queues of processor cores, network interfaces and storage targets, first come first
served, and each is served at that server's bandwidth. It knows no more than what bench/scale/check.py holds against real runs: no
switches, no interference, no caches, no metadata servers.
"""

import dataclasses
import heapq
import json
import math
import pathlib
from typing import Any

MIB = 1 << 20
WRITE_REQUEST = 8 * MIB
READ_REQUEST = 4 * MIB
REQUESTS_MAX = 256  # of one rank: of a larger part the requests are larger
WRITERS = 2  # threads of a rank that writes
READS = 8  # requests of a rank in flight
BLOCK = 64 << 10  # of which the index has a checksum, in 8 digits
INDEX_READERS = 16  # threads of a rank that opens a checkpoint
SHARED_FROM = 16  # indexes; of fewer one thread reads all
COMMIT_FILES = 4  # syncs one after the other until a commit record counts


class SpecError(ValueError):
    pass


@dataclasses.dataclass(frozen=True)
class Node:
    ranks: int
    cores: int
    copy_bandwidth: float  # bytes per second, of all cores together
    checksum_bandwidth: float  # of one core
    nic_bandwidth: float
    nic_latency_s: float


@dataclasses.dataclass(frozen=True)
class Storage:
    targets: int
    write_bandwidth: float  # of one target
    read_bandwidth: float
    write_latency_s: float
    read_latency_s: float
    stripes: int  # targets that a file is spread over
    sync_s: float
    small_file_s: float  # created, written, made durable


@dataclasses.dataclass(frozen=True)
class Exchange:
    round_s: float  # a round of messages, the smallest
    round_s_per_rank: float  # and what each rank adds, as rank 0 reads from all
    index_parse_bandwidth: float  # bytes per second of indexes, by one core


@dataclasses.dataclass(frozen=True)
class Spec:
    name: str
    node: Node
    storage: Storage
    exchange: Exchange


def _part(kind: type, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise SpecError(f"{where} is missing, or no object")
    names = {field.name for field in dataclasses.fields(kind)}
    if set(values) != names:
        raise SpecError(f"{where}: missing {sorted(names - set(values))}, unknown {sorted(set(values) - names)}")
    for name, value in values.items():
        least = 0 if name.endswith(("_s", "_per_rank")) else 1
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
            raise SpecError(f"{where}.{name} is {value!r}, and must be a number from {least} on")
    return kind(**values)


def parse_spec(values: dict) -> Spec:
    unknown = set(values) - {"name", "node", "storage", "exchange"}
    if unknown or not isinstance(values.get("name"), str):
        raise SpecError(f"the spec lacks a name, or has unknown parts: {sorted(unknown)}")
    spec = Spec(values["name"], _part(Node, values.get("node"), "node"), _part(Storage, values.get("storage"), "storage"),
                _part(Exchange, values.get("exchange"), "exchange"))
    if spec.storage.stripes > spec.storage.targets:
        raise SpecError("storage.stripes is more than storage.targets")
    return spec


def read_spec(path: pathlib.Path) -> Spec:
    try:
        return parse_spec(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}") from error


class Queue:
    """Servers that take what comes, in that order."""

    def __init__(self, name: str, servers: int, bandwidth: float, latency: float = 0.0):
        self.name, self.servers, self.bandwidth, self.latency = name, servers, bandwidth, latency
        self.free = [0.0] * servers
        self.busy = 0.0

    def serve(self, now: float, size: float) -> float:
        """When a request that comes now is through."""
        begin = max(now, heapq.heappop(self.free))
        took = size / self.bandwidth
        self.busy += took
        heapq.heappush(self.free, begin + took)
        return begin + took + self.latency


@dataclasses.dataclass
class Stream:
    """Requests of one rank, some of them in flight; request i takes the way that `way(i)` says."""

    sizes: list[float]
    ways: list[list[Queue]]  # request i: ways[i % len(ways)]
    in_flight: int
    end: float = 0.0


def run(streams: list[Stream], begin: float) -> None:
    """Until all are through: each stream's `end` then says when."""
    events: list[tuple[float, int, int, int, int]] = []  # time, order, stream, request, stage
    next_request = [0] * len(streams)
    order = 0

    def start(number: int, now: float) -> None:
        nonlocal order
        request = next_request[number]
        if request < len(streams[number].sizes):
            next_request[number] += 1
            order += 1
            heapq.heappush(events, (now, order, number, request, 0))

    # In turns, as ranks that start together come.
    for turn in range(max((stream.in_flight for stream in streams), default=0)):
        for number, stream in enumerate(streams):
            stream.end = begin
            if turn < stream.in_flight:
                start(number, begin)
    while events:
        now, _, number, request, stage = heapq.heappop(events)
        stream = streams[number]
        way = stream.ways[request % len(stream.ways)]
        if stage == len(way):
            stream.end = max(stream.end, now)
            start(number, now)
            continue
        order += 1
        heapq.heappush(events, (way[stage].serve(now, stream.sizes[request]), order, number, request, stage + 1))


@dataclasses.dataclass(frozen=True)
class Prediction:
    seconds: float
    stall_s: float  # of a save: that the caller waits; of a restore: until the indexes are read
    busiest: str
    utilization: float  # of it, while bytes move


def _requests(size: float, smallest: int) -> list[float]:
    if size <= 0:
        return []
    each = max(smallest, size / REQUESTS_MAX)
    count = math.ceil(size / each)
    return [each] * (count - 1) + [size - each * (count - 1)]


def _busiest(queues: list[Queue], seconds: float) -> tuple[str, float]:
    kinds: dict[str, list[Queue]] = {}
    for queue in queues:
        kinds.setdefault(queue.name, []).append(queue)
    loads = {name: sum(q.busy for q in members) / (seconds * sum(q.servers for q in members)) for name, members in kinds.items()}
    name = max(loads, key=lambda kind: loads[kind])
    return name, loads[name]


class _Machine:
    def __init__(self, spec: Spec, ranks: int, target_bandwidth: float, target_latency: float, core_bandwidth: float):
        nodes = math.ceil(ranks / spec.node.ranks)
        self.spec, self.ranks = spec, ranks
        on_node = min(spec.node.ranks, ranks)
        self.on_node = on_node
        self.cores = [Queue("cores", min(spec.node.cores, on_node * WRITERS), core_bandwidth) for _ in range(nodes)]
        self.nics = [Queue("network", 1, spec.node.nic_bandwidth, spec.node.nic_latency_s) for _ in range(nodes)]
        self.targets = [Queue("targets", 1, target_bandwidth, target_latency) for _ in range(spec.storage.targets)]

    def of(self, rank: int) -> tuple[Queue, Queue, list[Queue]]:
        node, stripes = rank // self.spec.node.ranks, self.spec.storage.stripes
        return self.cores[node], self.nics[node], [self.targets[(rank * stripes + i) % len(self.targets)] for i in range(stripes)]

    def finish(self, streams: list[Stream], begin: float) -> tuple[float, str, float]:
        run(streams, begin)
        end = max(stream.end for stream in streams)
        return end, *_busiest(self.cores + self.nics + self.targets, max(end - begin, 1e-12))


def _round(spec: Spec, ranks: int) -> float:
    return spec.exchange.round_s + ranks * spec.exchange.round_s_per_rank


def predict_save(spec: Spec, ranks: int, size: float) -> Prediction:
    """With the plan that stands, and a snapshot arena for all of the state."""
    node, storage = spec.node, spec.storage
    machine = _Machine(spec, ranks, storage.write_bandwidth, storage.write_latency_s, node.checksum_bandwidth)
    agreed = _round(spec, ranks) + 2 * storage.small_file_s  # the directory and the mark
    staged = agreed + size / ranks * machine.on_node / node.copy_bandwidth
    streams = []
    for rank in range(ranks):
        cores, nic, targets = machine.of(rank)
        streams.append(Stream(_requests(size / ranks, WRITE_REQUEST), [[cores, nic, target] for target in targets], WRITERS))
    written, busiest, utilization = machine.finish(streams, staged)
    durable = written + storage.sync_s + 2 * storage.small_file_s  # the index, the directory
    committed = durable + 2 * _round(spec, ranks) + COMMIT_FILES * storage.small_file_s
    return Prediction(committed, staged, busiest, utilization)


def index_bytes(size: float) -> float:
    return size / BLOCK * 8  # the checksums; names and boxes add little below some thousand ranks


def predict_restore(spec: Spec, ranks: int, size: float) -> Prediction:
    """By as many ranks as saved it; each reads all indexes first."""
    node, storage = spec.node, spec.storage
    at_once = 1 / (1 / node.checksum_bandwidth + 1 / node.copy_bandwidth)
    machine = _Machine(spec, ranks, storage.read_bandwidth, storage.read_latency_s, at_once)
    indexes = index_bytes(size)
    parsers = min(INDEX_READERS, max(1, node.cores // machine.on_node)) if ranks >= SHARED_FROM else 1
    parse = indexes / (spec.exchange.index_parse_bandwidth * parsers) * max(1.0, machine.on_node / node.cores)
    fetch = max(indexes * machine.on_node / node.nic_bandwidth, indexes * ranks / (storage.targets * storage.read_bandwidth))
    opened = max(parse, fetch)
    streams = []
    for rank in range(ranks):
        cores, nic, targets = machine.of(rank)
        streams.append(Stream(_requests(size / ranks, READ_REQUEST), [[target, nic, cores] for target in targets], READS))
    done, busiest, utilization = machine.finish(streams, opened)
    return Prediction(done, opened, busiest, utilization)
