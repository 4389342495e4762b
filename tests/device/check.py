# SPDX-License-Identifier: Apache-2.0
"""The device check, which run.sh starts: stages in order, each with its share of the time, and one JSON document that is
written anew after each. Against the double of the driver it runs the same programs on little data, and says only whether
they passed: no figure taken with the double is a speed."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "bench" / "load")]

import machine  # noqa: E402  bench/load
import measure  # noqa: E402
from budget import Budget, Failed, OutOfTime, Skipped  # noqa: E402

SECONDS = 445  # of run.sh's 460, from its start
# Seconds that each stage may take; what one does not need, the last one gets: it measures until the time is over.
SHARES = {"facts": 20, "tests": 80, "data": 90, "python": 90, "correct": 40, "checkpoint": 100}
CHECKPOINT_SECONDS = 90  # kept for the checkpoint's stage, which goes before "measure"
STATE_BYTES = 8 << 30  # on the device, and twice in memory
MODEL_BYTES = 8 << 30
DOUBLE_BYTES = 24 << 20
CORRECT_BYTES = 256 << 20


class Check:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.pack: pathlib.Path = arguments.pack.resolve()
        self.budget = Budget(arguments.started + SECONDS)
        # Programs run there: cuFile leaves a log where it is started.
        self.data = pathlib.Path(tempfile.mkdtemp(prefix="device-check-", dir=arguments.data.resolve()))
        self.double = True  # until facts say otherwise: no figure is shown before
        self.device: dict[str, Any] = {}
        self.python_path: pathlib.Path | None = None
        self.skipped: list[str] = []
        self.document: dict[str, Any] = {
            "format": 1, "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": _commit(self.pack), "machine": machine.describe(self.data), "stages": {}, "skipped": self.skipped,
        }  # fmt: skip

    def environment(self) -> dict[str, str]:
        kept = ("INFERCLUSTER_LIBCUDA", "INFERCLUSTER_LIBCUFILE", "INFERCLUSTER_GPU_DOUBLE")
        names = {name: value for name, value in os.environ.items() if not name.startswith("INFERCLUSTER_") or name in kept}
        # The test programs take the double unless they are told of a driver.
        names.setdefault("INFERCLUSTER_LIBCUDA", _driver())
        if "INFERCLUSTER_LIBCUFILE" not in names and (cufile := _cufile()):
            names["INFERCLUSTER_LIBCUFILE"] = cufile
        names["INFERCLUSTER_PAGE_CACHE"] = "bypass"
        if self.python_path is not None:
            names["PYTHONPATH"] = str(self.python_path)
        return names

    def program(self, name: str, *arguments: str, most: float = 1e9) -> Any:
        """The JSON document that a program of the pack prints."""
        done = self.budget.run([str(self.pack / "bin" / name), *arguments], self.environment(), self.data, most)
        if done.status != 0:
            raise Failed(f"{name} {arguments[0]}: {done.why}")
        return json.loads(done.stdout)

    def python(self, *arguments: str, most: float = 1e9) -> Any:
        if self.python_path is None:
            raise Skipped("the extension module is not built")
        done = self.budget.run([sys.executable, str(HERE / "contestant.py"), *arguments], self.environment(), self.data, most)
        if done.status == 3:
            raise Skipped(done.why)
        if done.status != 0:
            raise Failed(f"{arguments[0]}: {done.why}")
        return json.loads(done.stdout.splitlines()[-1])

    # Stages.

    def facts(self) -> None:
        self.device = self.program("device_limits", "facts")
        self.double = self.device["double"]
        try:
            self.device["driver"] = pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        except OSError:
            self.device["driver"] = "unknown"
        self.document["device"] = self.device
        self.document["doctor"] = self.program("infercluster", "doctor", str(self.data), "--json")["findings"]

    def tests(self) -> None:
        """The suites of loads to a device and of checkpoints of one; on a real driver without what only the double can show."""
        suites = {
            "load_test": "*ToDevice*:DeviceLoad.*" + (":Gds*" if self.double else ""),
            "checkpoint_test": "State/CheckpointerTest*OnDevice:State/Restore*OnDevice" + (":DeviceState.*" if self.double else ""),
        }
        total: dict[str, Any] = {"ran": 0, "skipped": 0, "failed": []}
        self.document["tests"] = total
        for name, chosen in suites.items():
            report = self.data / "tests.json"
            report.unlink(missing_ok=True)
            command = [str(self.pack / "bin" / name), f"--gtest_filter={self.arguments.tests or chosen}", f"--gtest_output=json:{report}"]
            done = self.budget.run(command, self.environment() | {"INFERCLUSTER_TEST_DIR": str(self.data)}, self.data)
            if not report.exists():
                raise Failed(f"{name}: {done.why}")
            cases = [case for suite in json.loads(report.read_text())["testsuites"] for case in suite["testsuite"]]
            failed = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
            skipped = sum(case.get("result") == "SKIPPED" for case in cases)
            total["ran"] += len(cases) - skipped
            total["skipped"] += skipped
            total["failed"] += failed
            if failed or done.status != 0:
                raise Failed(f"{name}: {len(failed)} of {len(cases)} failed: {', '.join(failed[:5])} {done.why if not failed else ''}")
        if total["ran"] == 0:
            raise Failed("no test ran")

    def write_data(self) -> None:
        size = self.arguments.bytes or (DOUBLE_BYTES if self.double else MODEL_BYTES)
        free = min(shutil.disk_usage(self.data).free // 2, self.device["device_bytes"] // 2)
        self.program("infercluster", "synth", str(self.data / "correct"), "--bytes", str(min(CORRECT_BYTES, size, free)), "--json")
        if free < size:
            self.skipped.append(f"a model of {size} bytes: there is room for {free}")
        self.program("infercluster", "synth", str(self.data / "model"), "--bytes", str(min(size, free)), "--shards", "4", "--json")

    def build_python(self) -> None:
        if self.arguments.python_path:
            self.python_path = self.arguments.python_path.resolve()
            return
        done = self.budget.run([sys.executable, str(HERE / "extension.py"), str(self.pack)], dict(os.environ), ROOT)
        if done.status != 0:
            raise Skipped(done.why)
        self.python_path = pathlib.Path(done.stdout.strip())

    def correct(self) -> None:
        self.document["correct"] = self.python("correct", str(self.data / "correct"))

    def checkpoint(self) -> None:
        """How long the save of a state on the device holds its caller up, beside the copies to pinned memory alone."""
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        wanted = DOUBLE_BYTES if self.double else STATE_BYTES
        room = min(self.device["device_bytes"] // 2, available // 3, shutil.disk_usage(self.data).free // 3)
        if room < wanted:
            self.skipped.append(f"a state of {wanted} bytes: there is room for {room}")
        folder = self.data / "checkpoints"
        folder.mkdir()
        try:
            found = self.program("device_stall", str(folder), str(min(wanted, room)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.document["checkpoint"] = found
        if not found["double"]:
            print(f"  stall {found['stall_seconds']:.3f} s, {found['stall_over_copy']} of the copy to pinned memory; queued {found['queued_stall_seconds']:.4f} s")

    def measure(self) -> None:
        model = self.data / "model"
        if not (model / "model.safetensors.index.json").exists():
            raise Skipped("there is no model to load")
        files = sorted(map(str, model.glob("*.safetensors")))
        measure.run(self, str(model), files)

    def run(self) -> int:
        stages: dict[str, Callable[[], None]] = {
            "facts": self.facts, "tests": self.tests, "data": self.write_data, "python": self.build_python,
            "correct": self.correct, "checkpoint": self.checkpoint, "measure": self.measure,
        }  # fmt: skip
        for name, stage in stages.items():
            reserve = CHECKPOINT_SECONDS if name not in ("checkpoint", "measure") else 0
            self.budget.stage(min(SHARES.get(name, 1e9), self.budget.ends - time.time() - reserve))
            self.document["stages"][name] = self._outcome(name, stage)
            self._write()
            if name == "facts" and self.document["stages"][name] != "passed":
                break  # no GPU that answers
        outcomes = self.document["stages"].values()
        passed = not any(outcome.startswith("failed") for outcome in outcomes)
        self.document["passed"] = passed
        self._write()
        for line in self.skipped:
            print(f"skipped: {line}")
        print(f"device check: {'passed' if passed else 'FAILED'}; {self.arguments.out}")
        return 0 if passed else 1

    def _outcome(self, name: str, stage: Callable[[], None]) -> str:
        try:
            stage()
            outcome = "passed"
        except Skipped as reason:
            outcome = f"skipped: {reason}"
        except OutOfTime:
            outcome = "skipped: its time was over"
        except (Failed, OSError, ValueError, KeyError) as error:
            outcome = f"failed: {error}"
        if outcome.startswith("skipped"):
            self.skipped.append(f"{name}: {outcome.partition(': ')[2]}")
        print(f"{name}: {outcome}", flush=True)
        return outcome

    def _write(self) -> None:
        out: pathlib.Path = self.arguments.out
        scratch = out.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.document, indent=1) + "\n")
        os.replace(scratch, out)


def _commit(pack: pathlib.Path) -> str:
    try:
        return (pack / "commit").read_text().strip()
    except OSError:
        return machine.commit()


def _driver() -> str:
    """The library, also where containers mount it outside of the loader's path."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        for folder in ("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"):
            if os.path.exists(f"{folder}/libcuda.so.1"):
                return f"{folder}/libcuda.so.1"
    return "libcuda.so.1"


def _cufile() -> str | None:
    """The library of NVIDIA's Python packages, where the system has none of its own."""
    for folder in map(pathlib.Path, sys.path):
        for path in sorted(folder.glob("nvidia/*/lib/libcufile.so.0")):
            return str(path)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "device-check.json", help="the JSON document")
    parser.add_argument("--started", type=float, default=time.time(), help="when the check began, in seconds of the epoch")
    parser.add_argument("--pack", type=pathlib.Path, default=ROOT / "build" / "device", help="what pack.sh made; or a build folder")
    parser.add_argument("--python-path", type=pathlib.Path, help="a built package, in the place of one that is built here")
    parser.add_argument("--data", type=pathlib.Path, help="where the models are written (a disk, not memory)")
    parser.add_argument("--bytes", type=int, help="size of the model that is timed (8 GiB)")
    parser.add_argument("--tests", help="a gtest filter")
    arguments = parser.parse_args()
    if arguments.data is None:
        arguments.data = ROOT / "build"
    arguments.data.mkdir(parents=True, exist_ok=True)
    check = Check(arguments)
    try:
        return check.run()
    finally:
        shutil.rmtree(check.data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
