# SPDX-License-Identifier: Apache-2.0
"""infercluster.Checkpointer by several ranks, in real processes: over torch.distributed, and by the environment."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest
import torch.distributed as dist
from rank_process import RankProcess

_stores: list[dist.TCPStore] = []
WORKER = pathlib.Path(__file__).parent / "checkpoint_worker.py"


def start(
    root: pathlib.Path, world: int, group: str, actions: list[str] | list[list[str]], environment: dict[str, str] | None = None
) -> list[RankProcess]:
    # Lives in this process, so that no rank's death or limits harm it; each job has a fresh one.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    _stores.append(store)
    by_rank = [action if isinstance(action, list) else actions for action in (actions * world)[:world]]
    common = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "TEST_STORE": str(store.port), "OMP_NUM_THREADS": "1", **(environment or {})}
    return [
        RankProcess(WORKER, [str(root), group, *by_rank[rank]], {**common, "RANK": str(rank), "WORLD_SIZE": str(world)})
        for rank in range(world)
    ]


def answers(process: RankProcess, code: int = 0) -> list[Any]:
    output, errors = process.communicate(timeout=180)
    assert process.returncode == code, errors
    return [json.loads(line) for line in output.splitlines()]


def run(
    root: pathlib.Path, world: int, group: str, actions: list[str] | list[list[str]], environment: dict[str, str] | None = None
) -> list[list[Any]]:
    """What each action came to, by rank."""
    return [answers(process) for process in start(root, world, group, actions, environment)]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "checkpoints"


def values(results: list[list[Any]]) -> list[list[Any]]:
    for of_rank in results:
        assert all("value" in answer for answer in of_rank), of_rank
    return [[answer["value"] for answer in of_rank] for of_rank in results]


def by_action(results: list[list[Any]]) -> list[list[Any]]:
    return [list(of_action) for of_action in zip(*values(results), strict=True)]


def test_save_by_four_and_load_by_other_worlds(root: pathlib.Path) -> None:
    saved = values(run(root, 4, "torch", ["load:5", "save:5", "load:5", "steps"]))
    assert saved == [[[None, [], 0], None, [5, [], rank], [5]] for rank in range(4)]
    for world in (3, 1):
        loaded = values(run(root, world, "torch", ["load:5", "load:5:5"]))
        # What a rank alone had, such as the state of its random numbers, comes back to it.
        assert loaded == [[[5, [], rank], [5, [], rank]] for rank in range(world)]


def test_ranks_by_the_environment_need_no_torch(root: pathlib.Path) -> None:
    loaded = values(run(root, 3, "env", ["save:1", "load:1", "save:2", "load:2", "steps"]))
    assert [of_rank[1] for of_rank in loaded] == [[1, [], rank] for rank in range(3)]
    assert [of_rank[4] for of_rank in loaded] == [[1, 2]] * 3
    for world in (1, 2, 7):
        assert values(run(root, world, "env", ["load:2"])) == [[[2, [], rank if rank < 3 else 0]] for rank in range(world)]
    assert sorted(path.name for path in root.iterdir() if not path.name.startswith(".")) == ["step-1", "step-2"]


def test_one_rank_that_cannot_write_fails_all_with_one_cause(root: pathlib.Path) -> None:
    results = run(root, 4, "torch", ["save:1", "limit:2:1024", "save:2", "unlimit", "steps", "save:3", "save:4", "load:4"])
    failures = [of_rank[2] for of_rank in results]
    assert {failure["error"] for failure in failures} == {"OSError"}
    assert {failure["errno"] for failure in failures} == {27}
    assert len({failure["text"] for failure in failures}) == 1
    assert "rank 2: " in failures[0]["text"] and "step-2/" in failures[0]["text"]
    assert [of_rank[4]["value"] for of_rank in results] == [[1]] * 4
    assert all("value" in answer for of_rank in results for answer in of_rank[5:]), results
    assert [of_rank[7]["value"][:2] for of_rank in results] == [[4, []]] * 4


def test_a_state_that_one_rank_cannot_save_fails_all(root: pathlib.Path) -> None:
    results = run(root, 2, "torch", ["bad:1", "save:1", "load:1"])
    assert "rank 1: TypeError" in results[0][0]["text"] and '"hook" is a function' in results[0][0]["text"]
    assert "hook" in results[1][0]["text"]
    assert [of_rank[2]["value"][:2] for of_rank in results] == [[1, []]] * 2


def test_a_load_that_one_rank_cannot_do_fails_all(root: pathlib.Path) -> None:
    results = run(root, 2, "torch", ["save:1", "mistake:1", "load:1"])
    assert all("rank 1: TensorNotFoundError" in of_rank[1]["text"] for of_rank in results), results
    assert all("nothing" in of_rank[1]["text"] for of_rank in results)
    assert [of_rank[2]["value"][:2] for of_rank in results] == [[1, []]] * 2


def test_a_rank_that_died_ends_the_save_of_the_others(root: pathlib.Path) -> None:
    processes = start(root, 3, "env", ["save:1", "die:1", "begin:2", "steps"], {"TEST_TIMEOUT": "3"})
    survivors = [answers(processes[rank]) for rank in (0, 2)]
    answers(processes[1], -9)
    for of_rank in survivors:
        assert of_rank[2]["error"] == "TimeoutError" and "rank 1" in of_rank[2]["text"]
        assert of_rank[3]["value"] == [1]
    loaded = values(run(root, 3, "env", ["load:1", "save:2", "steps"]))
    assert [of_rank[2] for of_rank in loaded] == [[1, 2]] * 3


def test_different_steps_are_refused_on_all(root: pathlib.Path) -> None:
    for (answer,) in run(root, 2, "env", [["save:1"], ["save:2"]]):
        assert answer["error"] == "ValueError" and "rank 1 saves step 2, and rank 0 step 1" in answer["text"]


@pytest.mark.parametrize("group", ["torch", "env"])
def test_what_ranks_of_a_node_want_is_read_once_among_them(root: pathlib.Path, group: str) -> None:
    run(root, 4, group, ["wide:1"])
    ((_, unique, received),) = values(run(root, 1, "env", ["share:1"]))[0]
    assert received == 0
    for world in (4, 3):
        of_ranks = [of_rank[0] for of_rank in values(run(root, world, group, ["share:1"]))]
        assert [names for names, _, _ in of_ranks] == [["same", "step", "part"]] * world
        assert sum(read for _, read, _ in of_ranks) == unique
        assert all(read > 0 and received > 0 for _, read, received in of_ranks)


def test_ranks_read_the_indexes_that_they_need(root: pathlib.Path) -> None:
    run(root, 7, "env", ["wide:1"])
    sizes = [path.stat().st_size for path in (root / "step-1").glob("*.index.json")]
    # As many as saved it: its own index, and those of who wrote what all hold. Where they want more than they saved: all.
    for index_bytes, with_more in zip(*by_action(run(root, 7, "env", ["indexed:1", "indexed:1:more"])), strict=True):
        assert index_bytes[0] == with_more[0] == []
        assert min(sizes) <= index_bytes[1] <= sum(sizes) - 4 * min(sizes)  # two tensors are held by all
        assert with_more[1] == sum(sizes)
    for of_rank in values(run(root, 3, "env", ["indexed:1"])):
        assert of_rank == [[[], sum(sizes)]]


def test_ranks_may_read_each_for_itself(root: pathlib.Path) -> None:
    run(root, 2, "env", ["wide:1"])
    for of_rank in values(run(root, 2, "env", ["share:1"], {"INFERCLUSTER_RESTORE_SHARED": "0"})):
        assert of_rank[0][0] == ["same", "step", "part"] and of_rank[0][2] == 0


def test_ranks_may_want_different_names(root: pathlib.Path) -> None:
    run(root, 2, "env", ["wide:1"])
    one, other = values(run(root, 2, "env", [["share:1:same"], ["share:1:same:step"]]))
    assert one[0][0] == ["same"] and other[0][0] == ["same", "step"]
    (alone,) = values(run(root, 1, "env", ["share:1:same:step"]))[0]
    assert one[0][1] + other[0][1] == alone[1]


def test_a_damaged_block_is_the_same_error_on_all(root: pathlib.Path) -> None:
    run(root, 2, "env", ["wide:1"])
    for path in (root / "step-1").glob("*.safetensors"):
        damaged = bytearray(path.read_bytes())
        damaged[-100] ^= 1
        path.write_bytes(damaged)
    ((one,), (other,)) = run(root, 2, "env", ["share:1"])
    assert one == other and "checksum differs" in one["text"] and one["text"].count("rank ") == 1, one
