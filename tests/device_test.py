# SPDX-License-Identifier: Apache-2.0
"""The device check (tests/device), from end to end against the driver's double: it works, and shows no figure as a speed."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release"))
DOUBLE = BUILD / "testing" / "gpu_double"
# A figure: a number with a unit of time or of speed.
SPEED = re.compile(r"\d\s*(s|ms|seconds|[KMG]i?B/s)\b|per_s|\bseconds\b|\bratios\b|\bfigures\b")

sys.path[:0] = [str(ROOT / "tests" / "device"), str(ROOT / "bench" / "load")]
import budget  # noqa: E402


def check(tmp_path: pathlib.Path, *arguments: str, **variables: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INFERCLUSTER_")}
    environment |= {"INFERCLUSTER_LIBCUDA": str(DOUBLE / "libcuda.so.1"), "INFERCLUSTER_LIBCUFILE": str(DOUBLE / "libcufile.so.0")}
    out = tmp_path / "check.json"
    command = [sys.executable, ROOT / "tests" / "device" / "check.py", "--out", out, "--pack", BUILD, "--data", tmp_path / "data",
               "--python-path", ROOT / "python", "--tests", "*OnlyEmptyTensors*ToDevice*:DeviceLoad.Columns*", *arguments]
    done = subprocess.run(list(map(str, command)), env=environment | variables, capture_output=True, text=True, timeout=300, check=False)
    return done, json.loads(out.read_text())


def test_on_the_double_it_passes_and_shows_no_speed(tmp_path):
    done, document = check(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert document["passed"] and document["device"]["double"]
    assert set(document["stages"].values()) == {"passed"}, document["stages"]
    assert document["tests"]["ran"] >= 1 and document["tests"]["failed"] == []
    assert set(document["correct"]["ways"]) == {"load", "into", "stream", "slice"} and document["correct"]["compared_bytes"] > 60 << 20
    assert {"program", "python", "pinned_loop", "limit_disk", "limit_pinned"} <= set(document["ran"])
    # What is not here is named: this torch has no CUDA.
    assert any(line.startswith("safetensors: torch") for line in document["skipped"]), document["skipped"]
    told = done.stdout + json.dumps({name: value for name, value in document.items() if name not in ("doctor", "machine", "date")})
    assert not SPEED.search(told), SPEED.search(told)
    assert list((tmp_path / "data").iterdir()) == []  # no model stays behind


@pytest.mark.parametrize(
    ("plan", "stage"),
    [("cuInit:*=CUDA_ERROR_NO_DEVICE", "facts"), ("cuMemcpyHtoDAsync:*=CUDA_ERROR_LAUNCH_FAILED", "correct")],
)
def test_a_driver_that_fails_fails_the_check_at_its_stage(tmp_path, plan, stage):
    done, document = check(tmp_path, INFERCLUSTER_GPU_DOUBLE=plan)
    assert done.returncode == 1 and not document["passed"]
    assert document["stages"][stage].startswith("failed"), document["stages"]


def test_what_the_time_does_not_allow_is_skipped_by_name(tmp_path):
    done, document = check(tmp_path, "--started", str(time.time() - 10000))
    assert document["stages"] == {"facts": "skipped: its time was over"}
    assert "facts: its time was over" in document["skipped"]


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path):
    mine = budget.Budget(time.time() + 60)
    mine.stage(1.5)
    started = time.monotonic()
    with pytest.raises(budget.OutOfTime):
        mine.run(["/bin/sh", "-c", "sleep 100 & echo $!; wait"], dict(os.environ), tmp_path)
    assert time.monotonic() - started < 30
    with pytest.raises(budget.OutOfTime):
        mine.run(["/bin/true"], dict(os.environ), tmp_path)
    mine.stage(50)
    with pytest.raises(budget.Failed, match="not ended"):  # its own time, not the stage's
        mine.run(["/bin/sleep", "100"], dict(os.environ), tmp_path, most=1.2)


class FakeCheck:
    """A check on a machine with a GPU, whose programs take given seconds."""

    SECONDS = {"never": 3.0, "infercluster": 2.0, "safetensors": 8.0, "loop": 4.0, "disk": 1.0, "pinned": 0.5}

    def __init__(self, rounds: int) -> None:
        self.double, self.skipped, self.document = False, [], {}
        self.rounds, self.budget, self.calls = rounds, self, []

    def left(self) -> float:
        return 1e9 if self.calls.count("infercluster") < 2 * self.rounds else 1.0

    def taken(self, name: str) -> dict:
        self.calls.append(name)
        if name not in self.SECONDS:
            raise (budget.Failed("no GPUDirect Storage") if name == "always" else budget.Skipped(f"{name} is not installed"))
        return {"seconds": self.SECONDS[name], "bytes": 1, "context_seconds": 0.5}

    def program(self, name: str, *words: str, most: float) -> dict:
        return self.taken(words[words.index("--gds") + 1] if "--gds" in words else words[0])

    def python(self, name: str, *words: str, most: float) -> dict:
        return self.taken(name)


def measured(tmp_path: pathlib.Path, fake: FakeCheck) -> dict:
    import measure

    (tmp_path / "a.safetensors").write_bytes(bytes(1 << 20))
    measure.run(fake, str(tmp_path), [str(tmp_path / "a.safetensors")])
    return fake.document


def test_figures_are_medians_of_interleaved_rounds_with_their_ratios(tmp_path, capsys):
    fake = FakeCheck(rounds=3)
    document = measured(tmp_path, fake)
    figures = {(figure["contestant"], figure["state"]): figure for figure in document["figures"]}
    assert figures["python", "cold"]["seconds"]["median"] == 2.0 and len(figures["python", "cold"]["seconds"]["runs"]) == 3
    # Copies: 0.5 s; disk: 1.0 s. The program's own time is less its context's.
    assert document["ratios"]["python cold"] == {"times_safetensors": 4.0, "times_pinned_loop": 2.0, "of_limit": 0.5}
    assert document["ratios"]["python warm"]["of_limit"] == 0.25
    assert document["ratios"]["program cold"] == {"times_safetensors": 3.2, "times_pinned_loop": 1.6, "of_limit": 0.4}
    assert ("limit_disk", "warm") not in figures and ("limit_pinned", "cold") not in figures
    first = fake.calls[: fake.calls.index("never", 1)]
    assert first.index("safetensors") < first.index("loop") and "fastsafetensors" in first
    assert fake.calls.count("fastsafetensors") == fake.calls.count("always") == 1  # asked once
    assert "program_gds: no GPUDirect Storage" in fake.skipped and "fastsafetensors: fastsafetensors is not installed" in fake.skipped
    assert any("the time was over" in line for line in fake.skipped)
    assert "3 runs" in capsys.readouterr().out


def test_a_contestant_of_ours_that_fails_fails_the_check(tmp_path, capsys):
    fake = FakeCheck(rounds=1)

    def broken(name: str, *words: str, most: float) -> dict:
        raise budget.Failed("wrong bytes")

    fake.python = broken
    with pytest.raises(budget.Failed, match="python: failed: wrong bytes"):
        measured(tmp_path, fake)
    assert {figure["contestant"] for figure in fake.document["figures"]} >= {"program", "limit_disk"}
