# SPDX-License-Identifier: Apache-2.0
"""What a load does to the process around it: threads, signals, fork, the GIL."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import write_file

SLOW_FILE_BYTES = 1 << 30


def test_importing_starts_no_thread_and_loads_no_framework(python: object) -> None:
    program = """
import os, sys
import infercluster, infercluster.safetensors
assert len(os.listdir("/proc/self/task")) == 1, os.listdir("/proc/self/task")
assert not {"torch", "numpy", "ml_dtypes"} & set(sys.modules)
maps = open("/proc/self/maps").read()
assert "libcuda" not in maps and "libcufile" not in maps
"""
    python(program)  # type: ignore[operator]


def test_no_thread_is_left_behind(repository: pathlib.Path, python: object) -> None:
    program = """
import os, sys
import numpy
before = len(os.listdir("/proc/self/task"))
import infercluster
os.environ["INFERCLUSTER_PAGE_CACHE"] = "bypass"
for _ in range(3):
    infercluster.load(sys.argv[1], framework="np")
    list(infercluster.stream(sys.argv[1], framework="np"))
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert int(python(program, repository, OPENBLAS_NUM_THREADS="1").stdout) <= 1  # type: ignore[operator]


def test_other_threads_run_while_bytes_move(tmp_path: pathlib.Path, backend: str) -> None:
    import threading

    import infercluster

    path = tmp_path / "f"
    write_file(path, {"t": ("U8", [256 << 20], bytes(256 << 20))})
    stop, count = threading.Event(), 0

    def work() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    worker = threading.Thread(target=work)
    worker.start()
    before = count
    infercluster.load(path, framework="np")
    ran = count - before
    stop.set()
    worker.join()
    # Within one switch interval (5 ms) a thread that is kept from the GIL would count nothing further.
    assert ran > 1000


FORK = """
import os, sys
import infercluster
tensor = infercluster.load(sys.argv[1], framework="np")["layers.0.odd"]
stream = infercluster.stream(sys.argv[1], framework="np")
next(stream)
child = os.fork()
if child == 0:
    status = 1
    try:
        for call in (lambda: infercluster.load(sys.argv[1], framework="np"), lambda: next(stream)):
            try:
                call()
            except RuntimeError as error:
                assert "fork" in str(error), error
            else:
                sys.exit("a call in the child succeeded")
        assert tensor.sum() >= 0  # what was loaded before stays readable
        status = 0
    finally:
        sys.stdout.flush()
        sys.exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(list(stream)) > 0
assert len(infercluster.load(sys.argv[1], framework="np")) == 15
print("parent fine")
"""


def test_a_forked_child_gets_an_error_and_the_parent_goes_on(
    repository: pathlib.Path, backend: str, python: object
) -> None:
    done = python(FORK, repository)  # type: ignore[operator]
    assert done.stdout == "parent fine\n", done.stderr


INTERRUPTED = """
import gc, os, sys, time
import infercluster
memory = None
if sys.argv[2] == "load":
    call = lambda: infercluster.load(sys.argv[1], framework="np", memory="4MiB")
elif sys.argv[2] == "stream":
    call = lambda: [None for _ in infercluster.stream(sys.argv[1], framework="np", memory="1200MiB")]
try:
    print("ready", flush=True)
    while True:
        call()
except KeyboardInterrupt:
    print("interrupted", time.time(), flush=True)
gc.collect()
time_left = time.monotonic() + 10
threads = lambda: len(os.listdir("/proc/self/task"))
while threads() > int(sys.argv[3]) and time.monotonic() < time_left:
    infercluster.wait_for_page_cache(0.01)
small = infercluster.load(sys.argv[4], framework="np")
print("still works", len(small), flush=True)
"""


@pytest.mark.parametrize("what", ["load", "stream"])
def test_ctrl_c_ends_a_load_and_leaves_the_process_well(
    tmp_path: pathlib.Path, repository: pathlib.Path, what: str, backend: str
) -> None:
    path = tmp_path / "f"
    with open(path, "wb") as file:
        header = b'{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (SLOW_FILE_BYTES, SLOW_FILE_BYTES)
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SLOW_FILE_BYTES)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, path, what, "99", repository],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    # Loads follow each other without a pause: whenever the signal comes, one is running.
    sent = time.time()
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    lines = out.splitlines()
    assert process.returncode == 0, errors
    assert lines[0].startswith("interrupted") and lines[1] == "still works 15", (lines, errors)
    assert float(lines[0].split()[1]) - sent < 5


def test_ctrl_c_by_default_ends_the_program(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    with open(path, "wb") as file:
        header = b'{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (SLOW_FILE_BYTES, SLOW_FILE_BYTES)
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SLOW_FILE_BYTES)
    program = "import infercluster, sys\nprint('ready', flush=True)\nwhile True:\n    infercluster.load(sys.argv[1], framework='np')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors


def test_exit_during_a_stream_and_with_tensors_alive(repository: pathlib.Path, backend: str, python: object) -> None:
    program = """
import sys, threading
import infercluster
kept = infercluster.load(sys.argv[1], framework="np")
stream = infercluster.stream(sys.argv[1], framework="np")
first = next(stream)
threading.Thread(target=lambda: list(infercluster.stream(sys.argv[1], framework="np")), daemon=True).start()
"""
    assert python(program, repository).stderr == ""  # type: ignore[operator]


BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2].split(","):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in sys.argv[2].split(",") else real(name, package)
import infercluster
loaded = infercluster.load(sys.argv[1])
print(type(loaded["layers.0.bias"]).__module__, loaded["layers.0.bias"].dtype)
import infercluster.safetensors.numpy
print(sorted(infercluster.safetensors.numpy.load_file(sys.argv[1] + "/model-00001-of-00003.safetensors"))[0])
print(infercluster.SafetensorError.__module__)
"""


def test_numpy_suffices(repository: pathlib.Path, python: object) -> None:
    out = python(BLOCKED, repository, "torch,safetensors").stdout.splitlines()  # type: ignore[operator]
    assert out == ["numpy bfloat16", "layers.0.bias", "infercluster.safetensors"]
    out = python(BLOCKED, repository, "nothing").stdout.splitlines()  # type: ignore[operator]
    assert out[0] == "torch torch.bfloat16" and out[2].startswith("safetensors")


DISABLED = """
import sys
import infercluster, infercluster.safetensors, safetensors
assert infercluster.safetensors.safe_open is safetensors.safe_open
loaded = infercluster.load(sys.argv[1], slices={"*.weight": infercluster.Shard(0, 1, 8)}, names=["*.weight", "*.bias"])
assert loaded.report["backend"] == "safetensors"
assert {name: tuple(tensor.shape) for name, tensor in loaded.items() if ".0." in name} == {"layers.0.weight": (128, 2048), "layers.0.bias": (333,)}
assert dict(infercluster.stream(sys.argv[1])).keys() == infercluster.open(sys.argv[1]).keys()
with infercluster.safetensors.patch():
    assert safetensors.safe_open.__module__ != "infercluster.safetensors._open"
import numpy
part = numpy.zeros((2, 3), numpy.uint8)
assert infercluster.load(sys.argv[1], into={"layers.1.odd": part}, slices={"layers.1.odd": slice(1, 3)})["layers.1.odd"] is part
print(part.tobytes().hex(), loaded["layers.0.bias"].view(__import__("torch").uint8).numpy().tobytes().hex())
"""


def test_disable_takes_the_stock_package(repository: pathlib.Path, python: object) -> None:
    import infercluster

    out = python(DISABLED, repository, INFERCLUSTER_DISABLE="1").stdout.split()  # type: ignore[operator]
    loaded = infercluster.load(repository, framework="np")
    assert out == [loaded["layers.1.odd"][1:3].tobytes().hex(), loaded["layers.0.bias"].tobytes().hex()]


def test_a_child_of_a_process_that_only_imported_may_load(repository: pathlib.Path, python: object) -> None:
    program = """
import os, sys
import infercluster, infercluster.safetensors.numpy
child = os.fork()
if child == 0:
    assert len(infercluster.load(sys.argv[1], framework="np")) == 15
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(infercluster.load(sys.argv[1], framework="np")) == 15
"""
    python(program, repository)  # type: ignore[operator]


REFUSED = """
import ctypes, logging, struct, sys
import infercluster

# A seccomp filter: io_uring_setup gives EPERM, as under a container's default profile.
instructions = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(instructions), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0

logging.basicConfig(format="%(name)s %(levelname)s %(message)s")
for _ in range(3):
    loaded = infercluster.load(sys.argv[1], framework="np")
print(loaded.report["backend"], len(loaded), bool(loaded.report["backend_reason"]))
"""


def test_io_uring_refused_is_one_warning_through_logging(repository: pathlib.Path, python: object) -> None:
    done = python(REFUSED, repository, INFERCLUSTER_BACKEND="auto")  # type: ignore[operator]
    assert done.stdout == "threads 15 True\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("infercluster WARNING ") and "io_uring" in lines[0], done.stderr


PEAK = """
import sys
import numpy
import infercluster
def resident(figure):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))  # explicit huge pages count apart
    return sum(int(lines.get(name, "0").split()[0]) for name in (figure, "HugetlbPages")) * 1024
infercluster.load(sys.argv[2], framework="np")
before = resident("VmRSS")  # not its peak: imports have one of their own
loaded = infercluster.load(sys.argv[1], framework="np")
print(resident("VmHWM") - before - loaded.report["bytes"], loaded.report["bytes"])
"""


def test_four_processes_hold_the_tensors_and_little_more(
    tmp_path: pathlib.Path, repository: pathlib.Path, backend: str
) -> None:
    path = tmp_path / "f"
    write_file(path, {f"t{i}": ("U8", [32 << 20], bytes(32 << 20)) for i in range(8)})
    command = [sys.executable, "-c", PEAK, str(path), str(repository)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        beyond, tensors = map(int, out.split())
        assert tensors == 256 << 20 and -(16 << 20) < beyond < 64 << 20


FEW_DESCRIPTORS = """
import resource, sys
import numpy, infercluster
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
for _ in range(3):
    loaded = infercluster.load(sys.argv[1], framework="np")
    assert {tensor.tobytes() for tensor in loaded.values()} == {b"abc"}
    assert len(list(infercluster.stream(sys.argv[1], framework="np"))) == len(loaded)
print(len(loaded))
"""


def test_a_load_needs_one_descriptor_for_each_shard_and_little_more(
    tmp_path: pathlib.Path, backend: str, python: object
) -> None:
    for index in range(600):
        write_file(tmp_path / f"{index:03}.safetensors", {f"t{index}": ("U8", [3], b"abc")})
    for direct in ("auto", "always"):
        done = python(FEW_DESCRIPTORS, tmp_path, 700, INFERCLUSTER_DIRECT=direct)  # type: ignore[operator]
        assert done.stdout == "600\n"
    refused = python(FEW_DESCRIPTORS, tmp_path, 500, check=False)  # type: ignore[operator]
    assert "OSError" in refused.stderr and "500 files open" in refused.stderr and "ulimit -n" in refused.stderr
