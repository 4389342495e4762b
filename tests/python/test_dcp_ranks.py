# SPDX-License-Identifier: Apache-2.0
"""infercluster.dcp by several ranks, in real processes. `make dcp` runs the whole matrix."""

from __future__ import annotations

import json
import os
import pathlib
import signal
from typing import Any

import pytest
import torch.distributed as dist
from rank_process import RankProcess

_stores: list[dist.TCPStore] = []
WORKER = pathlib.Path(__file__).parent / "dcp_worker.py"
WORLDS = "1,2,3,4,7"


def run(
    root: pathlib.Path, world: int, worlds: str, actions: list[str], codes: dict[int, int] | None = None
) -> list[list[Any]]:
    """What each action came to, by rank. `codes`: of the ranks that end otherwise than with 0."""
    # Lives in this process, so that no rank's death or limits harm it; each job has a fresh one.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    common = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TEST_STORE": str(store.port), "OMP_NUM_THREADS": "1"}
    processes = [
        RankProcess(WORKER, [str(root), worlds, *actions], {**common, "RANK": str(rank), "WORLD_SIZE": str(world)})
        for rank in range(world)
    ]
    results = []
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=900)
        assert process.returncode == (codes or {}).get(rank, 0), errors[-6000:]
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


def check_shared(of_ranks: list[dict[str, Any]], loaded_by: int) -> None:
    """Each byte is read once in a node, and all there is has been read."""
    assert all(of_rank["whole"][0] == [] for of_rank in of_ranks)
    unique = of_ranks[0]["whole"][1]["bytes_read"]
    assert of_ranks[0]["whole"][1]["node_bytes_read"] == unique
    for way in ("plain", "forgetful", "batches", "nodes"):
        wrong = [of_rank[way][0] for of_rank in of_ranks[:loaded_by]]
        assert wrong == [[]] * loaded_by, way
        reports = [of_rank[way][1] for of_rank in of_ranks[:loaded_by]]
        of_node = 2 if way == "nodes" else loaded_by
        nodes = [reports[first : first + of_node] for first in range(0, loaded_by, of_node)]
        for node in nodes:
            read = sum(report["bytes_read"] for report in node)
            assert {report["node_bytes_read"] for report in node} == {read}, way
            assert {report["node_ranks"] for report in node} == {len(node)}, way
            # A node of some ranks wants a part of the rows; blocks are whole, so batches may meet in one.
            assert read <= unique + (64 << 10) * (10 if way == "batches" else 0), way
            assert len(nodes) > 1 or read >= unique, way
            sharing = len(node) > 1 and way != "batches"  # those are small, and one rank may get all of them
            assert not sharing or all(report["bytes_received"] > 0 for report in node), way


def test_ranks_of_a_node_read_each_byte_once_and_fail_together(tmp_path: pathlib.Path) -> None:
    actions = ["shared:4:4", "shared:4:3", "shared:3:4", "loads_fail:3", "dies:2"]
    results = run(tmp_path, 4, "3,4", actions, {2: -signal.SIGBUS})
    for action, loaded_by in enumerate((4, 3, 4)):
        check_shared([of_rank[action] for of_rank in results], loaded_by)
    planner, nodes, damage = results[0][3]
    assert all(of_rank[3] == [planner, nodes, damage] for of_rank in results)
    assert planner == {str(rank): "rank 3: ValueError: no memory for it" for rank in range(4)}
    assert nodes == {str(rank): "rank 3: ValueError: no memory for it" for rank in (2, 3)}
    assert sorted(damage) == ["0", "1", "2", "3"] and len(set(damage.values())) == 1
    assert "checksum differs" in damage["0"] and damage["0"].count("rank ") == 1
    died = {results[rank][4] for rank in (0, 1, 3)}
    assert len(died) == 1 and "the process of rank 2 ended while the ranks of its node restored together" in died.pop()


def test_a_process_of_its_own_saves(tmp_path: pathlib.Path) -> None:
    assert run(tmp_path, 2, "2", ["processes:2"]) == [[[]], [[]]]


@pytest.mark.skipif("INFERCLUSTER_DCP_MATRIX" not in os.environ, reason="`make dcp` runs it")
def test_every_world_by_every_world(tmp_path: pathlib.Path) -> None:
    actions = [f"matrix:{WORLDS}:{WORLDS}", "cached:7", "async:7", "fails:7:6", "dtype:7", "fsdp:7:2", "fsdp:2:7", "installed:7"]
    shared = [(7, 4), (7, 7), (2, 7), (4, 2), (3, 1)]
    results = run(tmp_path, 7, WORLDS, actions + [f"shared:{saved_by}:{loaded_by}" for saved_by, loaded_by in shared])
    for i, (_, loaded_by) in enumerate(shared):
        check_shared([of_rank[len(actions) + i] for of_rank in results], loaded_by)
    for of_rank in results:
        (found, _), *rest = of_rank
        assert found == []
        assert [rest[i] for i in (0, 1, 4, 5, 6)] == [[]] * 5
    assert results[0][0][1] == 75
    assert len({json.dumps(of_rank[3]) for of_rank in results}) == 1
