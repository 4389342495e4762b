# SPDX-License-Identifier: Apache-2.0
"""Python tests can drive the double: its libraries load, plans are taken and refused, memory can be looked at."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import gpu_double

PROGRAM = """
import ctypes, os
import gpu_double

control = gpu_double.Control()
cuda = ctypes.CDLL(os.environ["INFERCLUSTER_LIBCUDA"])
ctypes.CDLL(os.environ["INFERCLUSTER_LIBCUFILE"])
count, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value == 3
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 2) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(100)) == 0
assert control.counter("allocated_bytes:2") == 100 and control.counter("contexts_created:0") == 0
assert control.is_poison(address.value, 100)
control.hold()
assert cuda.cuMemsetD8Async(address, ctypes.c_ubyte(7), ctypes.c_size_t(100), None) == 0
assert set(control.read(address.value, 100)) <= set(range(0xA0, 0xB0))
control.release()
control.finish()
assert control.read(address.value, 100) == b"\\x07" * 100
try:
    control.read(address.value, 101)
    raise SystemExit("read over the end")
except ValueError:
    pass
control.set_plan("cuMemFree:1=CUDA_ERROR_LAUNCH_FAILED")
assert cuda.cuMemFree_v2(address) == 719
try:
    control.set_plan("cuMemFrei:1=2")
    raise SystemExit("took nonsense for a plan")
except ValueError as error:
    assert "cuMemFrei:1=2" in str(error)
control.reset()
assert control.counter("live") == 0
"""


def test_python_drives_the_double(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    python(PROGRAM, **gpu_double.environment("devices=3"))
