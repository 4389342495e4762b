# SPDX-License-Identifier: Apache-2.0
"""infercluster.Checkpointer in one process."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import math
import pathlib
import random
import resource
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import infercluster
from infercluster import Checkpointer
from infercluster._checkpoint import values
from infercluster.safetensors import safe_open


class Colour(enum.Enum):
    RED = 1


def equal(one: Any, other: Any) -> bool:
    """In value and type."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


PLAIN = [
    None, True, False, 0, -1, 2**53, -(2**200), 0.1, -0.0, 5e-324, math.inf, -math.inf, math.nan, 1 + 2j, "", "Zürich",
    "\udc80", b"", b"\x00\xff", bytearray(b"ab"), [], [1, [2, (3,)]], (), ("a", None), {}, {"a": {1: "b"}, 2: None},
    {(1, "x"): b"y"}, {1, 2}, frozenset({"a"}), collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1]),
    np.float32(0.1), np.int64(-5), np.bool_(True), np.datetime64("2026-12-02"), torch.bfloat16, torch.device("cpu"),
    torch.Size([2, 3]), Colour.RED, decimal.Decimal("0.10"), datetime.date(2026, 12, 2), range(3), slice(1, None),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:30])
def test_plain_values_come_back_equal_in_value_and_type(value: Any) -> None:
    text = json.dumps(values.encode(value, values.no_leaf))
    assert equal(values.decode(json.loads(text), values.no_stored), value)


def test_a_value_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\$later.*newer"):
        values.decode({"$later": 1}, values.no_stored)


def test_what_cannot_be_pickled_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match=r'"data.hook" is a function'):
            checkpointer.save(1, {"data": {"hook": lambda: None}})
        assert checkpointer.steps() == []


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_training_state_comes_back(tmp_path: pathlib.Path) -> None:
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    state = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 7, "seen": 2**80,
        "rng": {"torch": torch.get_rng_state(), "python": random.getstate()}, "best": None,
        "numpy": np.arange(6, dtype=np.float16).reshape(2, 3),
    }  # fmt: skip
    other_model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
    other_optimizer = torch.optim.AdamW(other_model.parameters())
    other_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(other_optimizer, 10)
    into = {
        "model": other_model, "optimizer": other_optimizer, "scheduler": other_scheduler, "step": 0, "seen": 0,
        "rng": {"torch": torch.zeros_like(torch.get_rng_state()), "python": None}, "best": 1.5,
        "numpy": np.zeros((2, 3), np.float16),
    }  # fmt: skip
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load(into) is None
        save = checkpointer.save(7, state, wait=True)
        assert save.status == "durable"
        assert checkpointer.load(into) == 7
    for name in ("step", "seen", "rng", "best", "numpy"):
        assert equal(into[name], state[name]), name
    assert equal(dict(other_model.state_dict()), dict(model.state_dict()))
    assert equal(other_optimizer.state_dict(), optimizer.state_dict())
    assert equal(other_scheduler.state_dict(), scheduler.state_dict())


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.float8_e4m3fn,
    torch.float8_e5m2,
]  # fmt: skip


def test_every_dtype_and_odd_shape(tmp_path: pathlib.Path) -> None:
    generator = torch.Generator().manual_seed(3)
    state: dict[str, Any] = {}
    for dtype in DTYPES:
        for shape in ((), (0,), (3,), (2, 0, 3), (5, 7)):
            elements = math.prod(shape) * dtype.itemsize
            raw = torch.randint(0, 2 if dtype is torch.bool else 255, (elements,), dtype=torch.uint8, generator=generator)
            state[f"{dtype}{shape}"] = raw.view(dtype).view(shape) if elements else torch.empty(shape, dtype=dtype)
    state["ml"] = np.arange(6).astype(ml_dtypes.bfloat16)
    into = {name: tensor * 0 if name == "ml" else torch.zeros_like(tensor) for name, tensor in state.items()}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        assert checkpointer.load(into) == 0
    for name, tensor in state.items():
        if name == "ml":
            assert (into[name] == tensor).all()
        else:
            one, other = (t.reshape(-1).view(torch.uint8) for t in (tensor, into[name]))
            assert torch.equal(one, other), name


def test_views_are_saved_in_logical_order_and_size(tmp_path: pathlib.Path) -> None:
    base = torch.arange(24, dtype=torch.float32)
    large = torch.arange(10_000_000, dtype=torch.float32)
    tied = torch.randn(40, 50)
    state = {
        "transposed": base.view(4, 6).t(), "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "slice": large[:10], "expanded": torch.tensor([1.0, 2.0]).expand(30, 2), "overlap_a": base[:16],
        "overlap_b": base[8:], "tied_a": tied, "tied_b": tied, "strided": base[::3], "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
        "negated": torch.randn(3, dtype=torch.complex64).conj().imag, "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
        "reversed": np.arange(5)[::-1],
    }  # fmt: skip
    into = {
        name: np.zeros(tensor.shape, tensor.dtype) if isinstance(tensor, np.ndarray)
        else torch.zeros(tensor.shape, dtype=tensor.dtype)
        for name, tensor in state.items()
    }  # fmt: skip
    into["transposed"] = torch.zeros(4, 6).t()  # filled where it lies
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, wait=True)
        assert checkpointer.load(into) == 1
    for name, tensor in state.items():
        assert equal(into[name], tensor.resolve_conj() if isinstance(tensor, torch.Tensor) else tensor), name
    assert into["transposed"].stride() == (1, 6)
    logical = sum(tensor.nbytes if isinstance(tensor, np.ndarray) else tensor.numel() * tensor.element_size() for tensor in state.values())
    (segment,) = tmp_path.glob("step-1/*.safetensors")
    assert logical < segment.stat().st_size < logical + 4096
    with safe_open(segment, "pt") as opened:
        assert torch.equal(opened.get_tensor("tied_b"), tied)


def test_segments_open_in_the_stock_package(tmp_path: pathlib.Path) -> None:
    stock = pytest.importorskip("safetensors.torch")
    state = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, state, wait=True)
    (segment,) = tmp_path.glob("step-1/*.safetensors")
    assert equal(dict(sorted(stock.load_file(segment).items())), state)


@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float16, torch.int64])
def test_another_dtype_is_refused_unless_a_cast_is_asked_for(tmp_path: pathlib.Path, wanted: torch.dtype) -> None:
    saved = torch.tensor([1.0, 2.5, -3.0])
    into = {"good": torch.zeros(2), "weight": torch.zeros(3, dtype=wanted)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"good": torch.ones(2), "weight": saved}, wait=True)
        with pytest.raises(ValueError, match=r"weight \(saved as F32, wanted as \w+\).*cast=True"):
            checkpointer.load(into)
        assert not into["good"].any()  # nothing was changed
        assert checkpointer.load(into, cast=True) == 1
    assert torch.equal(into["weight"], saved.to(wanted))


def test_another_shape_is_refused_also_with_a_cast(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"weight": torch.zeros(3, 4)}, wait=True)
        with pytest.raises(ValueError, match=r"weight \(saved with the shape \[3, 4\], wanted \[4, 3\]\)"):
            checkpointer.load({"weight": torch.zeros(4, 3)}, cast=True)


def test_missing_and_unexpected_names_are_listed_at_once(tmp_path: pathlib.Path) -> None:
    into = {"a": torch.zeros(1), "x": torch.zeros(1), "y": {"z": 1}}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"a": torch.ones(1), "b": torch.ones(1), "c": 2}, wait=True)
        with pytest.raises(KeyError, match=r"does not have: x, y.z\. .*strict=False"):
            checkpointer.load(into)
        with pytest.raises(KeyError, match=r"has more than there is a place for: b, c\. .*strict=False"):
            checkpointer.load({"a": torch.zeros(1)})
        assert checkpointer.load(into, strict=False) == 1
        assert into["a"].item() == 1 and into["y"]["z"] == 1
        only_b = {"a": torch.zeros(1), "b": torch.zeros(1), "c": 0}
        assert checkpointer.load(only_b, only=["b"]) == 1
        assert (only_b["a"].item(), only_b["b"].item(), only_b["c"]) == (0, 1, 0)


def test_a_tensor_is_no_plain_value(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"a": torch.ones(1), "b": 3}, wait=True)
        with pytest.raises(ValueError, match=r"a \(saved as a tensor, wanted as a int\), b \(saved as a plain value"):
            checkpointer.load({"a": 1, "b": torch.ones(1)})


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.eye(3).to_sparse(), r'"w" is a tensor of layout torch.sparse_coo'),
        (torch.zeros(2, device="meta"), r'"w" is on the meta device'),
        (torch.zeros(2, dtype=torch.complex128), r'"w" has the dtype torch.complex128.*view_as_real'),
        (np.arange(3, dtype=">i4"), r'"w" is big-endian'),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(tmp_path: pathlib.Path, tensor: Any, message: str) -> None:
    with Checkpointer(tmp_path) as checkpointer, pytest.raises(TypeError, match=message):
        checkpointer.save(1, {"w": tensor})


def test_bad_arguments(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="keep is -1"):
        Checkpointer(tmp_path, keep=-1)
    with pytest.raises(ValueError, match='arena_bytes is "much"'):
        Checkpointer(tmp_path, arena_bytes="much")
    with pytest.raises(ValueError, match="init_process_group"):
        Checkpointer(tmp_path, group="world")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        Checkpointer(tmp_path / "file")
    with Checkpointer(tmp_path) as checkpointer:
        for step in (-1, 1.5, "1", True):
            with pytest.raises(ValueError, match="step is"):
                checkpointer.save(step, {})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="exists is"):
            checkpointer.save(1, {}, exists="maybe")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="the state is a list"):
            checkpointer.save(1, [1])
        with pytest.raises(ValueError, match='the name "a.b"'):
            checkpointer.save(1, {"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)})
        with pytest.raises(FileNotFoundError):
            checkpointer.load({}, step=3)
    with pytest.raises(ValueError, match="closed"):
        checkpointer.save(1, {})


def test_saved_are_the_values_at_the_call(tmp_path: pathlib.Path) -> None:
    tensor = torch.zeros(32 << 20)
    with Checkpointer(tmp_path, max_write_rate="1GiB") as checkpointer:
        for step in (1, 2):
            tensor.fill_(step)
            checkpointer.save(step, {"t": tensor, "step": step})
            tensor.fill_(-1)
        checkpointer.wait()
        for step in (1, 2):
            into = {"t": tensor, "step": 0}
            assert checkpointer.load(into, step=step) == step
            assert bool((tensor == step).all()) and into["step"] == step


def test_twenty_saves_leave_memory_where_it_was(tmp_path: pathlib.Path) -> None:
    state = {"t": torch.ones(16 << 20, dtype=torch.uint8)}
    peaks = []
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        for step in range(20):
            checkpointer.save(step, state)
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[-1] - peaks[2] < 8 << 10  # KiB


def test_a_failed_save_is_told_by_wait_and_by_the_next_save(tmp_path: pathlib.Path) -> None:
    state = {"t": torch.ones(4096)}
    resource_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, state, wait=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource_limits[1]))
    try:
        failing = checkpointer.save(2, state)
        with pytest.raises(OSError, match=r"rank 0: .*step-2/") as told:
            failing.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, resource_limits)
    assert failing.status == "failed"
    assert told.value.errno == 27  # EFBIG
    with pytest.raises(OSError, match="step-2/"):
        checkpointer.save(3, state)
    checkpointer.save(4, state, wait=True)
    assert checkpointer.steps() == [1, 4]
    checkpointer.close()


def test_the_events_are_three(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "infercluster"), Checkpointer(tmp_path, max_write_rate="64MiB") as checkpointer:
        save = checkpointer.save(1, {"t": torch.ones(8 << 20)})
        assert save.status == "staged"
        assert checkpointer.latest() is None
        with pytest.raises(TimeoutError, match="it goes on"):
            save.wait(timeout=0)
        save.wait()
        assert save.status == "durable"
        assert checkpointer.latest() == 1
    said = [record.message for record in caplog.records if "step 1" in record.message]
    assert [line.split(":")[1].split()[0] for line in said] == ["scheduled", "staged", "durable"]


def test_replace_and_keep(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path, keep=2, keep_every=10) as checkpointer:
        for step in (10, 11, 12, 13):
            checkpointer.save(step, {"t": torch.tensor([step])}, wait=True)
        checkpointer.wait()
        assert checkpointer.steps() == [10, 12, 13]
        with pytest.raises(ValueError, match="exists=replace"):
            checkpointer.save(12, {"t": torch.tensor([0])})
        checkpointer.save(12, {"t": torch.tensor([-12])}, exists="replace", wait=True)
        into = {"t": torch.tensor([0])}
        assert checkpointer.load(into, step=12) == 12 and into["t"].item() == -12


def test_a_damaged_byte_is_an_error(tmp_path: pathlib.Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"t": torch.ones(100_000)}, wait=True)
        (segment,) = tmp_path.glob("step-1/*.safetensors")
        with segment.open("r+b") as file:
            file.seek(200_000)
            file.write(b"\x01")
        with pytest.raises(infercluster.SafetensorError, match=r"checksum"):
            checkpointer.load({"t": torch.ones(100_000)})


PROGRAM = """
import os, signal, sys, threading
import torch, infercluster
root, what = sys.argv[1:]
checkpointer = infercluster.Checkpointer(root, max_write_rate="32MiB", group="single")
save = checkpointer.save(1, {"t": torch.ones(4 << 20)})
assert save.status == "staged"
if what == "exit": sys.exit(3)
if what == "raise": raise RuntimeError("of the program")
if what == "term": os.kill(os.getpid(), signal.SIGTERM); threading.Event().wait(60); print("went on")
if what == "own": signal.signal(signal.SIGTERM, lambda *_: os._exit(5)); os.kill(os.getpid(), signal.SIGTERM)
if what == "kill": os.kill(os.getpid(), signal.SIGKILL)
if what == "fork":
    child = os.fork()
    if child == 0: sys.exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if what == "fail":
    import resource
    save.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    checkpointer.save(2, {"t": torch.ones(1 << 20)})
"""


@pytest.mark.parametrize(
    ("what", "code", "steps"),
    [
        ("nothing", 0, [1]), ("exit", 3, [1]), ("raise", 1, [1]), ("term", -15, [1]), ("own", 5, []), ("kill", -9, []),
        ("fork", 0, [1]), ("fail", 1, [1]),
    ],
)  # fmt: skip
def test_the_end_of_the_process_with_a_save_on_its_way(
    tmp_path: pathlib.Path, what: str, code: int, steps: list[int]
) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, tmp_path, what], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert "went on" not in done.stdout
    assert ("a checkpoint was not saved" in done.stderr) == (what == "fail")
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.steps() == steps
        checkpointer.save(9, {"t": torch.ones(1)}, wait=True)  # and what was left is swept
        assert checkpointer.steps() == [*steps, 9]


def test_leaving_the_block_raises_what_nobody_was_told_of(tmp_path: pathlib.Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(OSError, match="step-1/"), Checkpointer(tmp_path) as checkpointer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            checkpointer.save(1, {"t": torch.ones(4096)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
