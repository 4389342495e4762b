# SPDX-License-Identifier: Apache-2.0
"""Real weights: loaded, verified, compared bit for bit with the reference; then a cold load, timed. Exit status 1 on any mismatch."""

import json
import statistics
import subprocess
import sys

from load import data, harness, page_cache, tables
from load.keeper import Keeper

DATA = data.ROOT / "build" / "demo"
SYNTHETIC_BYTES = 1 << 30
SYNTHETIC_SHARDS = 4
ROUNDS = 3
_GIB = 2**30


class DemoError(Exception):
    """A step failed, or two loaders disagree."""


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def program(*arguments: str, keeper: Keeper) -> None:
    """Runs ours from the root of the tree, with its output shown."""
    print("$ infercluster " + " ".join(arguments), flush=True)
    keeper.hold()
    keeper.start_feeding()
    status = subprocess.run([str(data.PROGRAM), *arguments], cwd=data.ROOT, check=False).returncode
    keeper.stop_feeding()
    if status != 0:
        raise DemoError(f"infercluster {arguments[0]} gave exit status {status}")


def compare(repository: data.Repository) -> None:
    """Every tensor of both loaders: name, dtype, shape and bits. Floating point is compared as bytes: NaN equals itself here."""
    import infercluster
    import torch
    from safetensors.torch import load_file

    reference = {}
    for path in repository.files:
        reference.update(load_file(path))
    ours = infercluster.load(str(repository.folder), framework="pt")
    if set(ours) != set(reference):
        raise DemoError(f"{repository.name}: the names differ: {sorted(set(ours) ^ set(reference))[:5]}")
    for name, expected in reference.items():
        found = ours[name]
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            raise DemoError(f"{repository.name}: {name}: expected {expected.dtype} {tuple(expected.shape)}, "
                            f"found {found.dtype} {tuple(found.shape)}")
        if not torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)):
            raise DemoError(f"{repository.name}: {name}: the bytes differ from the reference's")
    size = sum(tensor.nbytes for tensor in reference.values())
    print(f"{len(reference)} tensors, {size:,} bytes: each equals the reference safetensors' in name, dtype, shape and every bit")


def real_model(package: str) -> None:
    version, _ = data.REAL_MODELS[package]
    step(f"A real model: the PyPI package {package} {version}")
    repository = data.real(DATA, package)
    keeper = Keeper(2 * repository.bytes)
    folder = str(repository.folder.relative_to(data.ROOT))
    program("seal", folder, "--quiet", keeper=keeper)
    program("load", folder, "--verify", keeper=keeper)
    keeper.close()
    compare(repository)


def cold_rows(repository: data.Repository) -> tuple[list[list[str]], set[str]]:
    """Interleaved cold loads: the program's, and the package's beside the stock one's, every byte used by one routine for both."""
    contestants = {"infercluster load": "infercluster-cli-uring", "Python: infercluster.load": "infercluster-uring",
                   "Python: safetensors load_file": tables.LOAD_FILE}
    runs: dict[str, list[harness.Run]] = {title: [] for title in contestants}
    keeper = Keeper(2 * repository.bytes + _GIB)
    bench = harness.Bench(repository, "cold", list(contestants.values()), keeper, seed=1)
    for _ in range(ROUNDS):
        for title, name in contestants.items():
            runs[title].append(bench.run_once(name))
    keeper.close()
    rows = []
    for title, found in runs.items():
        run = min(found, key=lambda one: abs(one.load_seconds - statistics.median(each.load_seconds for each in found)))
        used = "-" if run.total_seconds is None else f"{statistics.median(each.total_seconds or 0 for each in found):.3f}"
        waited = ", ".join(f"{cause} {seconds:.3f}" for cause, seconds in (run.detail.get("waited") or {}).items())
        rows.append([title, f"{run.bytes:,}", f"{run.load_seconds:.3f}", f"{run.bytes / run.load_seconds / _GIB:.2f}", used,
                     "mapped" if run.maps else "+".join(run.detail.get("modes", [])), waited or ("reads when used" if run.maps else "-")])
    return rows, {run.checksum for found in runs.values() for run in found if run.checksum is not None}


def cold_load() -> None:
    step("A cold load: 1 GiB in the layout of a Llama model, dropped from the page cache before each run")
    repository = data.synthetic(DATA, SYNTHETIC_BYTES, SYNTHETIC_SHARDS)
    page_cache.drop(repository.files)
    report = subprocess.run([str(data.PROGRAM), "load", str(repository.folder), "--json", "--quiet"], capture_output=True, text=True, check=False)
    if report.returncode != 0:
        raise DemoError(f"infercluster load gave exit status {report.returncode}: {report.stderr.strip()}")
    for file in json.loads(report.stdout)["files"]:
        print(f"{file['path'].rpartition('/')[2]}: {file['mode']} ({file['reason']})")
    rows, checksums = cold_rows(repository)
    print(f"\nMedians of {ROUNDS} interleaved runs, each in a process of its own, on memory that the machine holds ready for all alike:\n")
    print(tables.table(["load", "bytes", "seconds", "GiB/s", "+ every byte used", "mode", "where the time went (seconds)"], rows))
    if len(checksums) != 1:
        raise DemoError("the loaders' tensors differ")
    print("\nAll loaders gave the same names, dtypes, shapes and bytes.")


def main() -> int:
    try:
        for package in data.REAL_MODELS:
            real_model(package)
        cold_load()
    except (DemoError, data.DataError, harness.InvalidRun) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print("\nThe demo is done. `make bench` compares more loaders, cold and warm, with the machine's limit.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
