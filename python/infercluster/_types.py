# SPDX-License-Identifier: Apache-2.0
"""What loads are asked and what they report, as types."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Union

Source = Union[str, "os.PathLike[str]"]
Framework = Literal["pt", "torch", "np", "numpy"]
Verify = Literal["auto", "always", "never"]


class FileReport(TypedDict):
    path: str
    bytes: int  # wanted of this file
    mode: str  # "direct", "buffered", "resident", or "none" when nothing of it was read
    reason: str
    verification: str  # "seal", "sha256", or "unverified: WHY"


class Waited(TypedDict):
    """Seconds that the load waited, by cause."""

    storage: float
    memory: float
    verify: float
    other: float


class GroupReport(TypedDict):
    """One rank's part in a load by a group: of `bytes`, what came from other ranks, and what it sent to them."""

    rank: int
    world: int
    rounds: int
    bytes_received: int
    bytes_sent: int


class _Report(TypedDict):
    bytes: int
    tensors: int
    seconds: float
    gib_per_s: float  # 0: none to show, as the GPU is a double for tests
    backend: str
    backend_reason: str
    peak_host_bytes: int
    working_bytes: int
    files: list[FileReport]
    waited: Waited
    moved_bytes: int  # by the host
    device_copies: int  # from the host's ring to a device; adjacent tensors go as one
    device_copy_bytes: int
    gds_bytes: int  # of bytes_read: by GPUDirect Storage, without passing through host memory
    bytes_read: int
    requests: int
    retries: int
    page_cache_fill_bytes: int
    donated_blocks: int
    notices: list[str]


class Report(_Report, total=False):
    """What happened in a load, and where its time went."""

    group: GroupReport  # with group= only


class TensorInfo(NamedTuple):
    dtype: str  # the format's name, such as "BF16"
    shape: tuple[int, ...]  # elements; of F4, the tensor object's last dimension is half as long
    nbytes: int
    file: str


@dataclass(frozen=True)
class Shard:
    """One rank's part of a dimension: pieces of ceil(n / world), as torch.chunk cuts; the last ranks may get fewer or
    none."""

    dim: int
    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ValueError(f"rank {self.rank} is not one of {self.world} ranks")
        if self.dim < 0:
            raise ValueError(f"dim is {self.dim}; expected 0 or more")


Slice = slice | tuple[slice, ...] | Shard
Slices = Mapping[str, Slice]
Names = str | Sequence[str]
Into = Mapping[str, Any]


class SaveReport(TypedDict):
    """What happened in a save, and where its time went."""

    step: int
    epoch: int  # of this step: grows with every replacement
    bytes: int  # that this rank writes
    referred: int  # tensors that it need not write: its last checkpoint has them
    bytes_referred: int  # their bytes
    bytes_copied: int  # of files that were referred to, and that the file system did not link
    link_refusal: str  # why not; empty: it did. Where it never will, later saves write everything
    stall_seconds: float  # that save() took
    arena_wait_seconds: float  # of it: until earlier saves had left an arena, and it was there
    agree_seconds: float  # of it: until all ranks had agreed
    copy_seconds: float  # of it
    write_seconds: float  # this rank's files, fsyncs included; behind the caller's back
    durable_seconds: float  # from the call until the commit
    throttled_seconds: float  # that its threads gave way to foreground reads of this node, together
    lowest_rate: float  # bytes per second that this went down to since the checkpointer opened; 0: not
    requests_cut: int  # to 1 MiB, for the same reason
    direct: bool  # the page cache was left out
    layout: str  # how this rank's segment lies on a parallel file system; empty: on no such one
    plan_reused: bool
    waves: int  # copies that the state took; more than one: it was larger than an arena
    tiers: dict[str, str]  # "fast" (where there is one) and "root": "pending", "durable", "failed"; "fast" also "left out"
    notice: str  # why the fast tier was left out; empty: it was not
    fast_seconds: float  # from the call until it was durable on the fast tier
    tier_wait_seconds: float  # of the stall: until earlier saves had left the fast tier for the root
    drain_seconds: float  # that the way from the fast tier to the root took
    bytes_drained: int  # by this rank


class LoadReport(TypedDict):
    """What this rank read in a Checkpointer.load, or through infercluster.dcp.Reader."""

    bytes: int  # of all that was loaded
    bytes_read: int  # by this rank from storage: whole checksum blocks, each once
    bytes_received: int  # read by other ranks of the node, for this one too
    node_ranks: int  # that shared their reads
    node_bytes_read: int  # by all of them together
    index_bytes: int  # of the indexes that this rank read to know where all is; in none of the others
    segments: int  # that this rank opened
    seconds: float
    tier: str  # "fast" or "root"
    notice: str  # why it was not the fast tier, where there is one; or that a newer step was lost with it
