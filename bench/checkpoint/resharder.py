# SPDX-License-Identifier: Apache-2.0
"""One rank that saves, or loads, its rows of a state. usage: resharder.py save|load FOLDER BYTES   (RANK and WORLD_SIZE are set)

Needs no torch. `load` prints the seconds of the load and whether every byte is right, as one line of JSON.
"""

import json
import os
import sys
import time

import infercluster
import numpy as np

ROW = 1 << 20
TENSORS = 16


def rows_of(total: int, rank: int, world: int) -> tuple[int, int]:
    size = -(-total // world)
    return min(rank * size, total), min((rank + 1) * size, total)


def main() -> int:
    what, folder, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    total = size // TENSORS // ROW
    begin, end = rows_of(total, rank, world)
    state = {}
    for number in range(TENSORS):
        memory = np.zeros((end - begin, ROW // 8), dtype=np.uint64)
        if what == "save":
            memory[:] = np.arange(begin, end, dtype=np.uint64)[:, None] * 1000 + number
            memory += np.arange(ROW // 8, dtype=np.uint64)
        else:
            memory += 1  # memory that the host has backed: the load is measured, not its first touch
        state[f"tensor{number}"] = infercluster.Part(memory, shape=(total, ROW // 8), offsets=(begin, 0))
    with infercluster.Checkpointer(folder) as checkpointer:
        if what == "save":
            checkpointer.save(1, state, wait=True)
            return 0
        started = time.perf_counter()
        checkpointer.load(state, step=1)
        seconds = time.perf_counter() - started
        read = checkpointer.last_load
    expected = np.arange(begin, end, dtype=np.uint64)[:, None] * 1000 + np.arange(ROW // 8, dtype=np.uint64)
    good = all(np.array_equal(state[f"tensor{number}"].memory, expected + number) for number in range(TENSORS))
    print(json.dumps({"seconds": seconds, "bytes_read": read["bytes_read"], "bytes": read["bytes"], "good": good}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
