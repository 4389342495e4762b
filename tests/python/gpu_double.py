# SPDX-License-Identifier: Apache-2.0
"""The double of the GPU's libraries (testing/gpu_double) for Python tests: run them in a process of their own, since a
process looks for its GPU once.

    done = python(program, **gpu_double.environment("delay_us=0..2000 seed=7"))   # `python`: conftest.py's fixture

and in the program, which finds this module through PYTHONPATH:

    import gpu_double
    control = gpu_double.Control()
    assert control.counter("live") == 0
"""

from __future__ import annotations

import ctypes
import os
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "testing" / "gpu_double"


def environment(plan: str = "") -> dict[str, str]:
    """The variables that put the doubles in place of the real libraries, with a plan (fault_plan.h) from the start."""
    path = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return {
        "INFERCLUSTER_LIBCUDA": str(FOLDER / "libcuda.so.1"),
        "INFERCLUSTER_LIBCUFILE": str(FOLDER / "libcufile.so.0"),
        "INFERCLUSTER_GPU_DOUBLE": plan,
        "PYTHONPATH": path,
    }


class Control:
    """control.h's functions, in a process that was started with environment()."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["INFERCLUSTER_LIBCUDA"])
        self._library.ic_gpu_double_set_plan.restype = ctypes.c_char_p
        self._library.ic_gpu_double_counter.restype = ctypes.c_uint64
        self._library.ic_gpu_double_read.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
        self._library.ic_gpu_double_is_poison.argtypes = [ctypes.c_uint64, ctypes.c_size_t]

    def set_plan(self, text: str) -> None:
        error = self._library.ic_gpu_double_set_plan(text.encode())
        if error is not None:
            raise ValueError(error.decode())

    def counter(self, name: str) -> int:
        """An unknown name ends the process."""
        return int(self._library.ic_gpu_double_counter(name.encode()))

    def reset(self) -> None:
        self._library.ic_gpu_double_reset()

    def hold(self) -> None:
        self._library.ic_gpu_double_hold()

    def release(self) -> None:
        self._library.ic_gpu_double_release()

    def finish(self) -> None:
        self._library.ic_gpu_double_finish()

    def read(self, address: int, count: int) -> bytes:
        """Device memory as it is now, whatever is under way."""
        buffer = ctypes.create_string_buffer(count)
        if not self._library.ic_gpu_double_read(address, buffer, count):
            raise ValueError(f"{count} bytes at {address:#x} are in no allocation")
        return buffer.raw

    def is_poison(self, address: int, count: int) -> bool:
        return bool(self._library.ic_gpu_double_is_poison(address, count))
