# SPDX-License-Identifier: Apache-2.0
"""infercluster.Checkpointer with a fast tier above its root."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest

import infercluster
from test_checkpoint_ranks import answers, run, start, values


def state_of(seed: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {"w": generator.random((300, 1000)), "name": f"run {seed}", "odd": generator.integers(0, 255, 65_537, dtype=np.uint8)}


def empty() -> dict[str, Any]:
    return {"w": np.zeros((300, 1000)), "name": "", "odd": np.zeros(65_537, dtype=np.uint8)}


def holds(into: dict[str, Any], seed: int) -> bool:
    expected = state_of(seed)
    return all(np.array_equal(into[name], expected[name]) for name in expected)


def tier_of(checkpointer: infercluster.Checkpointer) -> tuple[str, str]:
    report = checkpointer.last_load
    assert report is not None
    return report["tier"], report["notice"]


def steps_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("step-"))


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "root"


@pytest.fixture
def fast(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "fast"


def test_a_save_is_durable_on_both_tiers_and_loads_from_the_nearest(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        save = checkpointer.save(5, state_of(5))
        save.wait(tier="fast")
        assert save.report["tiers"]["fast"] == "durable"
        save.wait()
        report = save.report
        assert save.status == "durable" and report["tiers"] == {"fast": "durable", "root": "durable"}
        assert report["notice"] == "" and report["bytes_drained"] == report["bytes"] > 0
        assert 0 < report["fast_seconds"] <= report["durable_seconds"]
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 5)
        assert tier_of(checkpointer) == ("fast", "")
        into = empty()
        assert checkpointer.load(into, step=5) == 5 and holds(into, 5)
        with pytest.raises(FileNotFoundError):
            checkpointer.load(into, step=6)
        assert checkpointer.steps() == [5]
    # The root's is a checkpoint by itself.
    shutil.rmtree(fast)
    with infercluster.Checkpointer(root) as checkpointer:
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 5)
        assert tier_of(checkpointer) == ("root", "")


def test_a_lost_fast_tier_is_told_and_the_root_is_read(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        checkpointer.save(5, state_of(5), wait=True)
    shutil.rmtree(fast)
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 5)
        tier, notice = tier_of(checkpointer)
        assert tier == "root" and "no fast tier has this step" in notice
        checkpointer.save(6, state_of(6), wait=True)
        assert checkpointer.load(into) == 6 and holds(into, 6)
        assert tier_of(checkpointer) == ("fast", "")


def test_each_tier_keeps_as_many_as_it_is_asked_to(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, keep=3, tiers=[infercluster.Tier(fast, keep=2)]) as checkpointer:
        for step in range(1, 7):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        assert steps_in(root) == ["step-4", "step-5", "step-6"]
        assert steps_in(fast / "rank-0") == ["step-5", "step-6"]
        into = empty()
        for step, tier in ((4, "root"), (5, "fast"), (6, "fast")):
            assert checkpointer.load(into, step=step) == step and holds(into, step)
            assert tier_of(checkpointer)[0] == tier


def test_a_step_saved_again_replaces_it_on_both_tiers(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        checkpointer.save(5, state_of(5), wait=True)
        with pytest.raises(ValueError, match="saved already"):
            checkpointer.save(5, state_of(50))
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 5) and tier_of(checkpointer)[0] == "fast"
        checkpointer.save(5, state_of(51), exists="replace").wait(tier="fast")
        assert checkpointer.load(into) == 5 and holds(into, 51)
        checkpointer.wait()
        assert checkpointer.load(into) == 5 and holds(into, 51) and tier_of(checkpointer)[0] == "fast"
    with infercluster.Checkpointer(root) as checkpointer:
        assert checkpointer.load(into) == 5 and holds(into, 51)


def test_what_another_save_replaced_at_the_root_is_not_read_from_the_fast_tier(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        checkpointer.save(5, state_of(5), wait=True)
    with infercluster.Checkpointer(root) as checkpointer:  # a job without the tier
        checkpointer.save(5, state_of(55), wait=True, exists="replace")
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 55)
        assert tier_of(checkpointer)[0] == "root"


def test_mistakes_in_tiers_are_named(root: pathlib.Path, fast: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="a list of one path"):
        infercluster.Checkpointer(root, tiers=str(fast))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one is possible"):
        infercluster.Checkpointer(root, tiers=[fast, fast])
    with pytest.raises(ValueError, match="same folder"):
        infercluster.Checkpointer(root, tiers=[root])
    with pytest.raises(FileNotFoundError, match="mount this node's storage"):
        infercluster.Checkpointer(root, tiers=[fast / "not" / "there"])
    assert infercluster.Checkpointer(root, tiers=[]).save(1, state_of(1), wait=True).report["tiers"] == {"root": "durable"}
    assert not os.path.exists(fast)


def test_what_the_fast_tier_damaged_is_read_from_the_root(root: pathlib.Path, fast: pathlib.Path) -> None:
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        checkpointer.save(5, state_of(5), wait=True)
        (segment,) = (fast / "rank-0" / "step-5").glob("*.safetensors")
        content = bytearray(segment.read_bytes())
        content[-100] ^= 1
        segment.write_bytes(content)
        into = empty()
        assert checkpointer.load(into) == 5 and holds(into, 5)
        tier, notice = tier_of(checkpointer)
        assert tier == "root" and "checksum differs" in notice and str(segment) in notice


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_killed_in_the_drain_have_it_done_by_the_next_job(root: pathlib.Path, fast: pathlib.Path, nodes: int) -> None:
    place = {"TEST_FAST": f"{fast}-RANK" if nodes == 2 else str(fast)}
    first = values(run(root, 2, "env", ["wide:1", "share:1", "tier"], place))
    assert [of_rank[1][0] for of_rank in first] == [["same", "step", "part"]] * 2
    assert [of_rank[2][0] for of_rank in first] == ["fast" if nodes == 1 else "root"] * 2
    ranks = start(root, 2, "env", ["fast:2", "die:0"], {**place, "TEST_RATE": "2MiB"})
    assert answers(ranks[0], -9) == [{"value": "fast"}]
    ranks[1].kill()
    ranks[1].communicate(60)
    with infercluster.Checkpointer(root) as checkpointer:
        assert checkpointer.steps() == [1]
    again = values(run(root, 2, "env", ["share:2", "tier", "steps"], place))
    for rank, (shared, tier, steps) in enumerate(again):
        assert shared[0] == ["same", "step", "part"], rank
        assert tier[0] == ("fast" if nodes == 1 else "root") and (tier[1] == "") == (nodes == 1)
        assert nodes == 1 or steps == [1, 2]
    assert values(run(root, 1, "env", ["share:2:same", "steps"]))[0][1] == [1, 2]


def test_pages_that_did_not_change_are_whole_on_the_root(root: pathlib.Path, fast: pathlib.Path) -> None:
    pool, generations = np.zeros((16, 1024), np.float32), np.zeros(16, np.uint64)
    pages = infercluster.Pages({"k": pool}, generations, {identity: identity for identity in range(16)})

    def write(slots: list[int], content: float) -> None:
        with pages.writing(slots):
            pool[slots] = content

    write(list(range(16)), 1)
    with infercluster.Checkpointer(root, tiers=[fast]) as checkpointer:
        checkpointer.save(1, {"kv": pages}, wait=True)
        write([3], 2)
        save = checkpointer.save(2, {"kv": pages}, wait=True)
        assert save.report["referred"] == 15
    shutil.rmtree(fast)
    pool[:] = 0
    with infercluster.Checkpointer(root) as checkpointer:
        assert checkpointer.load({"kv": pages}) == 2
    assert [float(pool[slot, 7]) for slot in range(16)] == [2.0 if slot == 3 else 1.0 for slot in range(16)]
