# SPDX-License-Identifier: Apache-2.0
"""What FSDP2 over tensor parallelism saves is planned by its placements, and comes back whole."""

from __future__ import annotations

import json
import os
import pathlib

import fsdp_worker
import torch
import torch.distributed as dist
from rank_process import RankProcess

import infercluster


def test_fsdp_over_tensor_parallelism_comes_back_whole(tmp_path: pathlib.Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TEST_STORE": str(store.port), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "4"}
    root = tmp_path / "checkpoints"
    ranks = [
        RankProcess(fsdp_worker.__file__, [str(root)], {**environment, "RANK": str(rank)})
        for rank in range(4)
    ]
    for rank in ranks:
        output, errors = rank.communicate(timeout=180)
        assert rank.returncode == 0, errors
        cuts = json.loads(output)
        assert cuts["columns0"] == [[1, 0], [0, 0]], "tensor parallelism cuts first"
        assert cuts["rows0"] == [[0, 0], [1, 1]]
    whole = fsdp_worker.whole_state()
    loaded = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    with infercluster.Checkpointer(root) as checkpointer:
        assert checkpointer.load(loaded) == 1
    for name, tensor in whole.items():
        assert torch.equal(loaded[name], tensor), name
