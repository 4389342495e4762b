# SPDX-License-Identifier: Apache-2.0
"""One load to a GPU through Python, in a process of its own. usage: contestant.py NAME FOLDER FILE...

The time runs from before the call until every tensor is there and the device is idle; imports and the CUDA context come
before it, for all alike. Prints one JSON object. Exit status 3: what it needs is not installed, with the reason on standard
error. `correct` loads in every way, compares each byte with a load to the host, and takes no time.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

DEVICE = "cuda:0"


class NotHere(Exception):
    """What a contestant needs is not installed."""


def cuda_torch() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise NotHere("torch is not installed") from error
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise NotHere(f"torch {torch.__version__} has no CUDA device")
    return torch


def ready() -> Callable[[], None]:
    """Makes the context; returns what waits for the device. Without such a torch, loads return when all is there."""
    try:
        torch = cuda_torch()
    except NotHere:
        core = importlib.import_module("infercluster._core")
        ready.kept = core.allocate_on_device(0, 256)  # type: ignore[attr-defined]
        return lambda: None
    torch.empty(1, device=DEVICE)
    torch.cuda.synchronize()
    return lambda: torch.cuda.synchronize()


def infercluster(folder: str, files: list[str]) -> Callable[[], dict[str, Any]]:
    package = importlib.import_module("infercluster")
    return lambda: dict(package.load(folder, device=DEVICE).items())


def per_file(module: str) -> Callable[[str, list[str]], Callable[[], dict[str, Any]]]:
    def make(folder: str, files: list[str]) -> Callable[[], dict[str, Any]]:
        cuda_torch()
        try:
            load_file = importlib.import_module(module).load_file
        except ImportError as error:
            raise NotHere(f"{module} is not installed") from error
        return lambda: {name: tensor for path in files for name, tensor in load_file(path, device=DEVICE).items()}

    return make


def fastsafetensors(folder: str, files: list[str]) -> Callable[[], dict[str, Any]]:
    cuda_torch()
    try:
        package = importlib.import_module("fastsafetensors")
    except ImportError as error:
        raise NotHere("fastsafetensors is not installed") from error

    def load() -> dict[str, Any]:
        loader = package.SafeTensorsFileLoader(package.SingleGroup(), DEVICE, nogds=True)
        loader.add_filenames({0: files})
        buffer = loader.copy_files_to_device()
        fastsafetensors.kept = (loader, buffer)  # type: ignore[attr-defined]  # tensors are views of it
        return {name: buffer.get_tensor(name) for name in loader.get_keys()}

    return load


CONTESTANTS = {
    "infercluster": infercluster,
    "infercluster_load_file": per_file("infercluster.safetensors.torch"),
    "safetensors": per_file("safetensors.torch"),
    "fastsafetensors": fastsafetensors,
}


def bytes_on_host(tensor: Any) -> bytes:
    if hasattr(tensor, "cpu"):
        torch = importlib.import_module("torch")
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    array = tensor if hasattr(tensor, "tobytes") else tensor.numpy()
    result: bytes = array.tobytes()
    return result


def correct(folder: str) -> dict[str, Any]:
    package = importlib.import_module("infercluster")
    host = {name: bytes_on_host(tensor) for name, tensor in package.load(folder, framework="np").items()}
    compared = 0

    def compare(way: str, name: str, tensor: Any) -> None:
        nonlocal compared
        if bytes_on_host(tensor) != host[name]:
            raise AssertionError(f"{way}: wrong bytes in {name}")
        compared += len(host[name])

    loaded = dict(package.load(folder, device=DEVICE).items())
    assert set(loaded) == set(host)
    for _ in range(2):
        for name, tensor in loaded.items():
            compare("load", name, tensor)
        package.load(folder, device=DEVICE, into=loaded)  # in place: sleep and reload
    seen = set()
    with package.stream(folder, device=DEVICE, memory="64MiB") as arriving:
        for name, tensor in arriving:
            compare("stream", name, tensor)
            seen.add(name)
            del tensor
    assert seen == set(host)
    shard = package.Shard(0, 1, 4)
    matrices = [name for name, tensor in loaded.items() if len(tensor.shape) == 2][:8]
    part = {name: shard for name in matrices}
    on_host = package.load(folder, framework="np", names=matrices, slices=part)
    for name, tensor in package.load(folder, device=DEVICE, names=matrices, slices=part).items():
        host[name] = bytes_on_host(on_host[name])
        compare("slice", name, tensor)
    return {"compared_bytes": compared, "ways": ["load", "into", "stream", "slice"]}


def main() -> int:
    name, folder, *files = sys.argv[1:]
    if name == "correct":
        ready()
        print(json.dumps(correct(folder)))
        return 0
    try:
        load = CONTESTANTS[name](folder, files)
    except NotHere as error:
        print(error, file=sys.stderr)
        return 3
    finish = ready()
    started = time.perf_counter()
    tensors = load()
    finish()
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "bytes": sum(int(tensor.nbytes) for tensor in tensors.values())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
