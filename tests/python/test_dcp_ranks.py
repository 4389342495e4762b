# SPDX-License-Identifier: Apache-2.0
"""infercluster.dcp by several ranks, in real processes. `make dcp` runs the whole matrix."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
import torch.distributed as dist
from rank_process import RankProcess

_stores: list[dist.TCPStore] = []
WORKER = pathlib.Path(__file__).parent / "dcp_worker.py"
WORLDS = "1,2,3,4,7"


def run(root: pathlib.Path, world: int, worlds: str, actions: list[str]) -> list[list[Any]]:
    """What each action came to, by rank."""
    # Lives in this process, so that no rank's death or limits harm it; each job has a fresh one.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    common = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TEST_STORE": str(store.port), "OMP_NUM_THREADS": "1"}
    processes = [
        RankProcess(WORKER, [str(root), worlds, *actions], {**common, "RANK": str(rank), "WORLD_SIZE": str(world)})
        for rank in range(world)
    ]
    results = []
    for process in processes:
        output, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-6000:]
        results.append([json.loads(line) for line in output.splitlines()])
    return results


def test_the_drop_in_by_seven_ranks(tmp_path: pathlib.Path) -> None:
    actions = [f"matrix:4:{WORLDS}", "matrix:7:3", "cached:3", "async:2", "fails:4:2", "dtype:2", "fsdp:4:3", "installed:2"]
    actions += ["sharded:3"]
    results = run(tmp_path, 7, WORLDS, actions)
    by_action = [[of_rank[i] for of_rank in results] for i in range(len(actions))]
    assert [found for found, _ in by_action[0]] == [[]] * 7
    assert by_action[0][0][1] == 15
    assert [found for found, _ in by_action[1]] == [[]] * 7
    assert by_action[2] == [[]] * 7
    assert by_action[3] == [[]] * 7
    causes = by_action[4]
    assert causes[:4] == [causes[0]] * 4 and len(causes[0]) == 1, causes
    assert causes[0][0].startswith("[2] ") and "File too large" in causes[0][0] and "node-2.0.2" in causes[0][0]
    assert causes[4:] == [[]] * 3
    for said in by_action[5][:2]:
        assert len(said) == 1
        assert "model.plain (saved as torch.float32, wanted as torch.float16)" in said[0]
        assert "model.rows (saved as torch.float32, wanted as torch.bfloat16)" in said[0]
    assert by_action[6] == [[]] * 7
    assert by_action[7:] == [[[]] * 7] * 2


def test_a_process_of_its_own_saves(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, 2, "2", ["processes:2"]) == [[[]], [[]]]


@pytest.mark.skipif("INFERCLUSTER_DCP_MATRIX" not in os.environ, reason="`make dcp` runs it")
def test_every_world_by_every_world(tmp_path: pathlib.Path) -> None:
    actions = [f"matrix:{WORLDS}:{WORLDS}", "cached:7", "async:7", "fails:7:6", "dtype:7", "fsdp:7:2", "fsdp:2:7", "installed:7"]
    results = run(tmp_path, 7, WORLDS, actions)
    for of_rank in results:
        (found, _), *rest = of_rank
        assert found == []
        assert [rest[i] for i in (0, 1, 4, 5, 6)] == [[]] * 5
    assert results[0][0][1] == 75
    assert len({json.dumps(of_rank[3]) for of_rank in results}) == 1
