# SPDX-License-Identifier: Apache-2.0
"""The package is typed, and a strict consumer of it passes the type checker."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import infercluster

ROOT = pathlib.Path(__file__).resolve().parents[2]

CONSUMER = """
from typing import Any
import infercluster
from infercluster.safetensors import safe_open, patch
from infercluster.safetensors.torch import load_file

def main(path: str) -> float:
    loaded = infercluster.load(path, names=["a", "b*"], slices={"a": infercluster.Shard(0, 1, 8), "b*": (slice(0, 3), slice(None))}, memory="1GiB")
    report: infercluster.Report = loaded.report
    modes: list[str] = [file["mode"] for file in report["files"]]
    seconds: float = report["waited"]["storage"]
    tensor: Any = loaded["a"]
    together = infercluster.load(path, group="world", names=infercluster.experts(path, 0, 2, placement="round_robin"))
    seconds += together.report["group"]["bytes_received"]
    with infercluster.stream(path, latency_target=0.02) as stream:
        for name, part in stream:
            print(name.upper(), part, stream.progress[0])
    with infercluster.open(path, framework="np") as handle:
        info = handle.info("a")
        print(info.dtype.lower(), info.shape[0] + info.nbytes)
    with patch(), safe_open(path, framework="pt") as file:
        names: list[str] = file.keys()
        print(file.get_slice(names[0]).get_shape()[0], load_file(path)["a"].sum())
    return seconds + len(modes) + len(tensor)
"""

WRONG = """
import infercluster
loaded = infercluster.load(3, memory=b"1")
loaded.report["no such key"]
"""


def mypy(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={ROOT / 'pyproject.toml'}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


def test_a_strict_consumer_and_the_package_itself(tmp_path: pathlib.Path) -> None:
    consumer, wrong = tmp_path / "consumer.py", tmp_path / "wrong.py"
    consumer.write_text(CONSUMER)
    wrong.write_text(WRONG)
    done = mypy(str(consumer), str(ROOT / "python" / "infercluster"))
    assert done.returncode == 0, done.stdout
    done = mypy(str(wrong))
    assert done.stdout.count("error:") == 3, done.stdout


def test_the_package_says_that_it_is_typed() -> None:
    assert infercluster.__file__ is not None
    assert (pathlib.Path(infercluster.__file__).parent / "py.typed").exists()
