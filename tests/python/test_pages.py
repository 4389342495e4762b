# SPDX-License-Identifier: Apache-2.0
"""infercluster.Pages: a server's pages, saved while it serves."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import infercluster
from infercluster import Checkpointer, Pages
from infercluster._checkpoint import convert

SLOTS = 16
PAGE = (4, 256)  # elements
PAGE_BYTES = 2 * 4 * 256 * 4  # of both pools


class Server:
    """Two pools; each element of a page is the number of its content."""

    def __init__(self, ids: Mapping[Any, int] | None = None, slots: int = SLOTS) -> None:
        self.k = torch.zeros(slots, *PAGE)
        self.both = np.zeros((2, slots, *PAGE), np.float32)  # as engines lay it out: pages along the second dimension
        self.generations = np.zeros(slots, np.uint64)
        self.pages = Pages({"k": self.k, "v": self.both[1]}, self.generations, ids)

    def write(self, slot: int, content: float) -> None:
        with self.pages.writing([slot]):
            self.k[slot] = content
            self.both[1, slot] = content

    def contents(self) -> dict[Any, float]:
        """By id; refuses pages that are not of one content."""
        found = {}
        for identity, slot in self.pages.ids.items():
            values = np.unique(np.concatenate([self.k[slot].numpy().ravel(), self.both[1, slot].ravel()]))
            assert len(values) == 1, (identity, values)
            found[identity] = float(values[0])
        return found


def filled(ids: Mapping[Any, int] | None = None) -> Server:
    server = Server(ids)
    for identity, slot in server.pages.ids.items():
        server.write(slot, 100.0 + int(identity))
    return server


def test_pages_come_back_by_id_into_other_slots(tmp_path: pathlib.Path) -> None:
    server = filled({7: 3, 9: 0, 1: 15})
    other = Server({1: 2, 9: 5, 7: 6}, slots=8)
    table = {"request": [7, 9], "free": [1]}
    into = {"kv": other.pages, "table": None, "weight": torch.zeros(3)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"kv": server.pages, "table": table, "weight": torch.ones(3)}, wait=True)
        assert checkpointer.page_ids("kv") == [1, 7, 9]
        assert checkpointer.load(into) == 1
    assert other.contents() == server.contents() == {7: 107, 9: 109, 1: 101}
    assert into["table"] == table and bool((into["weight"] == 1).all())
    assert not other.k[0].any() and other.generations.tolist() == [0, 0, 2, 0, 0, 2, 2, 0]


def test_only_changed_pages_are_written(tmp_path: pathlib.Path) -> None:
    server = filled()
    state = {"kv": server.pages}
    with Checkpointer(tmp_path) as checkpointer:
        first = checkpointer.save(1, state, wait=True).report
        assert first["referred"] == 0 and first["bytes"] > SLOTS * PAGE_BYTES
        for slot in (2, 11):
            server.write(slot, -slot)
        second = checkpointer.save(2, state, wait=True).report
        assert second["referred"] == 2 * (SLOTS - 2) and second["bytes_referred"] == (SLOTS - 2) * PAGE_BYTES
        assert 2 * PAGE_BYTES < second["bytes"] < 2 * PAGE_BYTES + 2048
        third = checkpointer.save(3, state, wait=True).report
        assert third["bytes"] == 0 and third["bytes_referred"] == SLOTS * PAGE_BYTES
        for step in (2, 3):
            other = Server()
            assert checkpointer.load({"kv": other.pages}, step=step) == step
            assert other.contents() == server.contents()


def test_the_set_of_pages_changes_between_saves(tmp_path: pathlib.Path) -> None:
    server = filled({identity: identity for identity in range(1, 8)})
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(1, {"kv": server.pages}, wait=True)
        del server.pages.ids[2]  # freed; another page gets the slot, and a third moves
        server.pages.ids[50] = 2
        server.write(2, 50)
        server.pages.ids[3] = 9
        server.write(9, 103)
        report = checkpointer.save(2, {"kv": server.pages}, wait=True).report
        assert report["bytes_referred"] == 5 * PAGE_BYTES
        assert checkpointer.page_ids("kv") == [1, 3, 4, 5, 6, 7, 50] and checkpointer.latest() == 2
        other = Server({50: 0, 4: 1, 3: 2, 1: 3, 5: 4, 6: 7, 7: 6})
        assert checkpointer.load({"kv": other.pages}) == 2
        assert other.contents() == {50: 50, 4: 104, 3: 103, 1: 101, 5: 105, 6: 106, 7: 107}
        server.pages.ids.clear()
        checkpointer.save(3, {"kv": server.pages}, wait=True)
        assert checkpointer.page_ids("kv") == []
        assert checkpointer.load({"kv": Server({}).pages}) == 3
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-3"]


def test_one_generation_of_two_slots_is_not_one_content(tmp_path: pathlib.Path) -> None:
    """The id stays, its slot is another one, and both counters say the same."""
    server = filled({1: 1, 2: 2, 3: 3})
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"kv": server.pages}, wait=True)
        server.pages.ids[1], server.pages.ids[2] = 2, 1
        assert checkpointer.save(2, {"kv": server.pages}, wait=True).report["bytes_referred"] <= PAGE_BYTES
        other = Server({1: 1, 2: 2, 3: 3})
        assert checkpointer.load({"kv": other.pages}) == 2
        assert other.contents() == {1: 102, 2: 101, 3: 103}
        twin = filled({1: 1, 2: 2, 3: 3})  # another server's numbers
        twin.write(1, -1)
        twin.generations[:] = server.generations
        assert checkpointer.save(3, {"kv": twin.pages}, wait=True).report["referred"] == 0


def test_every_page_is_one_version_while_the_server_writes(tmp_path: pathlib.Path) -> None:
    server = filled()
    stop = threading.Event()
    written = [0]

    def decode() -> None:
        while not stop.is_set():
            written[0] += 1
            server.write(written[0] % (SLOTS // 2), 1000.0 + written[0])

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        with Checkpointer(tmp_path, keep=0) as checkpointer:
            for step in range(1, 16):
                before = written[0]
                while written[0] == before:
                    pass
                checkpointer.save(step, {"kv": server.pages}, wait=True)
            stop.set()
            thread.join()
            last: dict[Any, float] = {}
            for step in checkpointer.steps():
                other = Server()
                checkpointer.load({"kv": other.pages}, step=step)
                contents = other.contents()  # asserts that K and V of each are of one version
                assert all(contents[identity] >= last.get(identity, 0) for identity in contents)
                assert [contents[identity] for identity in range(SLOTS // 2, SLOTS)] == [100.0 + i for i in range(8, 16)]
                last = contents
            assert max(last.values()) > 1000
    finally:
        stop.set()
        thread.join()


def test_a_slot_that_stays_odd_fails_by_name_and_hurts_nothing(tmp_path: pathlib.Path) -> None:
    server = filled({1: 1, 5: 5})
    with Checkpointer(tmp_path) as checkpointer:
        with server.pages.writing([5]), pytest.raises(OSError, match=r"kv/5.*generation"):
            checkpointer.save(1, {"kv": server.pages}, wait=True)
        assert checkpointer.steps() == []
        checkpointer.save(2, {"kv": server.pages}, wait=True)


def test_strict_names_what_is_missing_and_what_is_more(tmp_path: pathlib.Path) -> None:
    server = filled({1: 1, 2: 2})
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"kv": server.pages, "t": torch.ones(1)}, wait=True)
        with pytest.raises(KeyError, match=r"does not have: kv/3/k, kv/3/v\. "):
            checkpointer.load({"kv": Server({1: 1, 2: 2, 3: 3}).pages, "t": torch.ones(1)})
        with pytest.raises(KeyError, match=r"has more than there is a place for: kv/2/k, kv/2/v\. "):
            checkpointer.load({"kv": Server({1: 1}).pages, "t": torch.ones(1)})
        partial = Server({1: 0, 3: 3})
        assert checkpointer.load({"kv": partial.pages}, strict=False) == 1
        assert partial.contents() == {1: 101, 3: 0}
        one = Server({1: 0, 2: 3})
        assert checkpointer.load({"kv": one.pages, "t": torch.ones(1)}, only="kv/2") == 1
        assert one.contents() == {1: 0, 2: 102}
        with pytest.raises(ValueError, match=r"kv/1/k \(saved as F32 \[4, 256\], wanted as F32 \[4, 128\]"):
            checkpointer.load({"kv": Pages({"k": torch.zeros(2, 4, 128)}, np.zeros(2, np.uint64))}, only="kv/1*")
        with pytest.raises(ValueError, match=r"kv \(saved as pages, wanted as a int\)"):
            checkpointer.load({"kv": 3, "t": torch.ones(1)})
        with pytest.raises(ValueError, match="two pages are to be loaded into one slot"):
            checkpointer.load({"kv": Server({1: 1, 2: 1}).pages, "t": torch.ones(1)})
        with pytest.raises(KeyError, match='no pages of the name "t"'):
            checkpointer.page_ids("t")


def test_texts_are_ids_and_one_pool_needs_no_name(tmp_path: pathlib.Path) -> None:
    pool = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    pages = Pages(pool, torch.zeros(4, dtype=torch.int64), {"a/b": 1, "größe": 3})
    into = torch.zeros(4, 6, dtype=torch.bfloat16)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"adapters": pages}, wait=True)
        assert checkpointer.page_ids("adapters") == ["a/b", "größe"]
        checkpointer.load({"adapters": Pages(into, np.zeros(4, np.int64), {"größe": 0, "a/b": 2})})
        assert torch.equal(into[[0, 2]], pool[[3, 1]])
        exported = convert.read_own(str(tmp_path), None)
    assert torch.equal(exported["adapters"]["a/b"], pool[1])


def test_what_is_no_pool_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    counters = np.zeros(4, np.uint64)
    good = torch.zeros(4, 8)
    with pytest.raises(ValueError, match='the pool "k" has the shape'):
        Pages({"k": torch.zeros(4)}, counters)
    with pytest.raises(ValueError, match='each slot of the pool "k" must be contiguous'):
        Pages({"k": torch.zeros(8, 4).t()}, counters)
    with pytest.raises(ValueError, match='the pool "v" has 5 slots'):
        Pages({"k": good, "v": torch.zeros(5, 8)}, counters)
    with pytest.raises(ValueError, match="generations must be 4 numbers"):
        Pages(good, np.zeros(8, np.uint64)[::2])
    with pytest.raises(TypeError, match="uint64 or int64"):
        Pages(good, np.zeros(4, np.uint32))
    with pytest.raises(ValueError, match='expected a text without "/"'):
        Pages({"k/v": good}, counters)
    with pytest.raises(TypeError, match="int or str, and one of them alone"):
        Pages(good, counters, {1: 1, "a": 2})
    with pytest.raises(ValueError, match="slot 4 is not one of 4"):
        Pages(good, counters, {1: 4})
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(ValueError, match='"kv/x" would be taken for one of'):
        checkpointer.save(1, {"kv": Pages(good, counters), "kv/x": torch.ones(1)})


def test_verify_and_export_follow_the_references(tmp_path: pathlib.Path) -> None:
    server = filled({1: 1, 2: 2, 3: 3})
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        for step in (1, 2, 3):
            server.write(2, step)
            checkpointer.save(step, {"kv": server.pages}, wait=True)
    state = convert.read_own(str(tmp_path), 3)
    assert {identity: float(parts["v"][0, 0]) for identity, parts in state["kv"].items()} == {1: 101, 2: 3, 3: 103}
    assert infercluster.Pages is Pages


def test_two_ranks_cut_pages_or_have_their_own(tmp_path: pathlib.Path) -> None:
    worker = pathlib.Path(__file__).parent / "pages_worker.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(worker), str(tmp_path)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank in range(2)
    ]  # fmt: skip
    answers = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    for answer in answers:
        assert answer["same"] and answer["ids"] == [*range(8), *range(100, 108)]
        assert answer["referred"] == 7 + 8
        assert "rank 0 and rank 1 both hold it" in answer["refused"]
