# SPDX-License-Identifier: Apache-2.0
"""Runs the reference implementation's own Python tests with infercluster.safetensors in its place.

The tests come with the source distribution of safetensors 0.8.0, which is fetched when this runs; nothing of it is
kept here. What deviates stands in reference_deviations.txt, each with its reason: a deviation that is not listed, and
a listed one that passes, are failures.

    .venv/bin/python tests/python/reference_suite.py [DIR]      DIR: where to unpack; a temporary folder when left out
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "0.8.0"
TESTS = "bindings/python/tests"

# pip asks a source distribution's build backend for metadata even when it only downloads it, and the real backend
# would need a Rust compiler: this one answers without it.
BACKEND = f"""
import os
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    name = "safetensors-{VERSION}.dist-info"
    os.mkdir(os.path.join(directory, name))
    with open(os.path.join(directory, name, "METADATA"), "w") as metadata:
        metadata.write("Metadata-Version: 2.1\\nName: safetensors\\nVersion: {VERSION}\\n")
    return name
"""


class UnavailableError(Exception):
    """The source distribution cannot be fetched here."""


def fetch(folder: pathlib.Path) -> pathlib.Path:
    """Downloads and unpacks the source distribution; returns the folder with its Python tests."""
    backend = folder / "backend"
    backend.mkdir(parents=True)
    (backend / "maturin.py").write_text(BACKEND)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        ":all:",
    ]
    command += ["--no-build-isolation", "--dest", str(folder), f"safetensors=={VERSION}"]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(backend)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    archive = folder / f"safetensors-{VERSION}.tar.gz"
    if done.returncode != 0 or not archive.exists():
        raise UnavailableError(
            f"pip cannot download the source distribution of safetensors {VERSION}: {done.stderr.strip()[-400:]}"
        )
    tests = folder / f"safetensors-{VERSION}" / TESTS
    with tarfile.open(archive) as files:
        for member in files:
            path = pathlib.PurePosixPath(member.name)
            if member.isfile() and ".." not in path.parts and path.is_relative_to(tests.relative_to(folder)):
                content = files.extractfile(member)
                assert content is not None
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content.read())
    if not tests.is_dir():
        raise UnavailableError(f"the source distribution of safetensors {VERSION} holds no {TESTS}")
    return tests


def deviations() -> dict[str, str]:
    """Test, or whole file -> reason."""
    listed = {}
    for line in (HERE / "reference_deviations.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            test, _, reason = line.partition("  ")
            assert reason.strip(), f"no reason given for {test}"
            listed[test] = reason.strip()
    return listed


def run(tests: pathlib.Path, without: list[str]) -> dict[str, str]:
    """Test -> "passed", "failed" or "skipped". The tests run in a folder of their own, as they write beside
    themselves."""
    place = tests.parent / "run"
    shutil.copytree(tests, place / "tests")
    (place / "tests" / "data").mkdir(exist_ok=True)
    report = place / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "reference_shim",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(place),
        "tests",
    ]
    command += [f"--junitxml={report}", "-o", "junit_family=xunit1", *(f"--ignore={name}" for name in without)]
    environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("INFERCLUSTER_DISABLE", None)
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=900, check=False)
    (place / "output.txt").write_text(done.stdout + done.stderr)
    if not report.exists():
        raise RuntimeError(f"the reference's tests did not run: {(done.stdout + done.stderr)[-2000:]}")
    results = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        module_and_class = (case.get("classname") or "").split(".")[1:]
        name = "::".join([str(case.get("file")), *module_and_class[1:], str(case.get("name"))])
        bad = case.find("failure") is not None or case.find("error") is not None
        results[name] = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
    return results


def main(folder: pathlib.Path) -> int:
    listed = deviations()
    files = [test for test in listed if "::" not in test]
    tests = fetch(folder)
    results = run(tests, files)
    wrong = []
    for test, outcome in sorted(results.items()):
        if outcome == "failed":
            print(f"deviates: {test}: {listed.get(test, 'NOT LISTED')}")
            wrong += [] if test in listed else [test]
        elif outcome == "passed" and test in listed:
            print(f"listed as a deviation, but passes: {test}")
            wrong.append(test)
        elif outcome == "skipped":
            print(f"skipped by the suite itself: {test}")
    for file in files:
        print(f"left out: {file}: {listed[file]}")
    counts = {kind: sum(outcome == kind for outcome in results.values()) for kind in ("passed", "failed", "skipped")}
    summary = f"{counts['passed']} passed, {counts['failed']} deviate, {counts['skipped']} skipped"
    print(f"reference suite of safetensors {VERSION}: {summary}")
    if wrong:
        print((tests.parent / "run" / "output.txt").read_text()[-6000:])
    return 1 if wrong or not counts["passed"] else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(pathlib.Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(pathlib.Path(temporary)))
