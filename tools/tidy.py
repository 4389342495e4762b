#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: tools/tidy.py BUILD_DIRECTORY FILE ...

Runs clang-tidy over these files of BUILD_DIRECTORY's compile_commands.json, on every core, and fails when one has a finding. A file that was
clean is not read again until its text, a header's or the settings change: BUILD_DIRECTORY/clean has one empty file per clean translation unit,
named by the SHA-256 of all that clang-tidy would read.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

# In tests, a clear line is worth more than an allocation, and the sizes are small. Their paths are walked by running them, under sanitizers;
# the analyzer would take half of the whole time to walk those of the test framework's macros.
RELAXED_IN_TESTS = (
    "-clang-analyzer-*",
    "-performance-inefficient-vector-operation",
    "-performance-inefficient-string-concatenation",
    "-bugprone-implicit-widening-of-multiplication-result",
)


def is_test(path: str) -> bool:
    return path.endswith(("_test.cc", "_test_helpers.cc"))


def key_of(entry: dict, settings: bytes) -> str:
    command = shlex.split(entry["command"])
    output = command.index("-o")
    del command[output : output + 2]
    command.remove("-c")
    # Comments (NOLINT) and definitions of macros are findings' business too.
    text = subprocess.run([*command, "-E", "-C", "-dD"], cwd=entry["directory"], capture_output=True)
    if text.returncode != 0:
        return ""
    everything = settings + entry["command"].encode() + text.stdout
    return hashlib.sha256(everything.replace(os.getcwd().encode(), b".")).hexdigest()  # the same in every clone


def check(build: pathlib.Path, entry: dict, settings: bytes) -> tuple[bool, str]:
    key = key_of(entry, settings)
    clean = build / "clean" / key
    if key and clean.exists():
        return True, ""
    command = ["clang-tidy", "-p", str(build), "--quiet"]
    if is_test(entry["file"]):
        command.append("--checks=" + ",".join(RELAXED_IN_TESTS))
    result = subprocess.run([*command, entry["file"]], capture_output=True, text=True)
    if result.returncode == 0:
        if key:
            clean.touch()
        return True, ""
    return False, result.stdout + "".join(line for line in result.stderr.splitlines(True) if "generated." not in line)


def main() -> int:
    build = pathlib.Path(sys.argv[1])
    entries = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}
    wanted = [entries[path] for path in map(os.path.abspath, sys.argv[2:]) if path in entries]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    settings = version + pathlib.Path(".clang-tidy").read_bytes() + pathlib.Path(__file__).read_bytes()
    (build / "clean").mkdir(exist_ok=True)
    workers = int(os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or os.cpu_count() or 1)
    found = 0
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for clean, text in pool.map(lambda entry: check(build, entry, settings), wanted):
            if not clean:
                found += 1
                print(text, flush=True)
    print(f"lint: clang-tidy: {len(wanted)} files, {found} with findings")
    return 1 if found else 0


sys.exit(main())
