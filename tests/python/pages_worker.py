# SPDX-License-Identifier: Apache-2.0
"""One of two ranks that save pages: `python pages_worker.py ROOT`, ranks by the environment. Prints one line of JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np

import infercluster
from infercluster import Checkpointer, Pages, Part

SLOTS, HEADS = 8, 3  # heads of this rank: rank 0 has one more of the whole


def main(root: str) -> None:
    rank = int(os.environ["RANK"])
    heads = HEADS + 1 - rank
    begin = 0 if rank == 0 else HEADS + 1
    whole = (SLOTS, 2 * HEADS + 1, 16)

    def shared(content: float) -> tuple[Any, Pages, np.ndarray[Any, Any]]:
        memory = np.full((SLOTS, heads, 16), content + rank, np.float32)
        counters = np.zeros(SLOTS, np.uint64)
        part = Part(memory, shape=whole, offsets=(0, begin, 0))
        return memory, Pages(part, counters, {10 + slot: slot for slot in range(SLOTS)}), counters

    own_memory = np.full((SLOTS, 5), rank, np.int32)
    own = Pages({"x": own_memory}, np.zeros(SLOTS, np.uint64), {100 * rank + i: i for i in range(SLOTS)})
    memory, pages, _ = shared(1)
    answer: dict[str, Any] = {}
    with Checkpointer(root) as checkpointer:
        checkpointer.save(1, {"cut": pages, "own": own}, wait=True)
        with pages.writing([2]):
            memory[2] = 50 + rank
        report = checkpointer.save(2, {"cut": pages, "own": own}, wait=True).report
        answer["referred"] = report["referred"]
        answer["ids"] = checkpointer.page_ids("own")
        into_memory, into, _ = shared(0)
        theirs = np.zeros((2, 5), np.int32)
        other = Pages({"x": theirs}, np.zeros(2, np.int64), {100 * (1 - rank) + 3: 1})
        checkpointer.load({"cut": into, "own": other}, strict=False)
        answer["same"] = bool((into_memory == memory).all()) and theirs.tolist() == [[0] * 5, [1 - rank] * 5]
        try:
            checkpointer.save(3, {"own": Pages({"x": own_memory}, np.zeros(SLOTS, np.uint64))})
        except ValueError as error:
            answer["refused"] = str(error)
    assert infercluster.Part is Part
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
