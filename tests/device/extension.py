# SPDX-License-Identifier: Apache-2.0
"""Builds the extension module for the Python that runs this, from python/bindings and the core's archive of a pack."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]


class CannotBuild(Exception):
    """What is missing on this machine, or what the compiler said."""


def _compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise CannotBuild(errors[0] if errors else done.stderr.strip()[-300:])


def build(pack: pathlib.Path) -> pathlib.Path:
    """Returns the folder to put into PYTHONPATH: a copy of the package with its extension module."""
    try:
        import nanobind
    except ImportError:
        raise CannotBuild("nanobind is not installed") from None
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    include = pathlib.Path(sysconfig.get_path("include"))
    if compiler is None:
        raise CannotBuild("there is no C++ compiler")
    if not (include / "Python.h").exists():
        raise CannotBuild(f"{include}/Python.h is not there")
    folder = pack / "python"
    module = folder / "infercluster" / ("_core" + sysconfig.get_config_var("EXT_SUFFIX"))
    if module.exists():
        return folder  # of an earlier check; pack.sh removes it
    nano = pathlib.Path(nanobind.include_dir()).parent
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "python" / "infercluster", folder / "infercluster", ignore=shutil.ignore_patterns("_core*.so", "__pycache__"))
    objects = folder / "objects"
    objects.mkdir()
    flags = ["-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-w"]
    for path in (include, nano / "include", nano / "ext" / "robin_map" / "include", ROOT / "src", ROOT / "include"):
        flags += ["-isystem" if "nanobind" in str(path) else "-I", str(path)]
    sources = [*sorted((ROOT / "python" / "bindings").glob("*.cc")), nano / "src" / "nb_combined.cpp"]
    made = [str(objects / f"{source.stem}.o") for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = [[compiler, *flags, "-c", str(source), "-o", target] for source, target in zip(sources, made, strict=True)]
        list(pool.map(_compile, commands))
    lib = pack / "lib"
    shared = [str(path) for path in sorted(lib.glob("*.so*"))]
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../../lib"
    _compile([compiler, "-shared", "-o", str(module), *made, str(lib / "libinfercluster_core.a"), *shared, rpath, "-ldl", "-pthread"])
    return folder


if __name__ == "__main__":
    try:
        print(build(pathlib.Path(sys.argv[1])))
    except CannotBuild as reason:
        sys.exit(f"{reason}")
