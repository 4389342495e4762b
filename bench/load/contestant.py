# SPDX-License-Identifier: Apache-2.0
"""One load by one contestant, in a process of its own. usage: contestant.py NAME FOLDER TORCH_FILE FILE...

The time of the load runs from before the call until every tensor can be used; imports come before it, for all alike. Then the
consumer reads every byte of every tensor, by one routine for all, timed on its own. Prints "ready", waits for a line on standard
input, loads, and prints one JSON object on the last line.
"""

import importlib.metadata
import json
import resource
import sys
import time

import torch
import xxhash


def load_infercluster(folder, torch_file, files):
    import infercluster

    def load():
        loaded = infercluster.load(folder, framework="pt")
        return loaded, dict(loaded.items())

    return load


def load_safetensors(folder, torch_file, files):
    from safetensors.torch import load_file

    def load():
        tensors = {}
        for path in files:
            tensors.update(load_file(path))
        return None, tensors

    return load


def load_safetensors_pread(folder, torch_file, files):
    from safetensors import safe_open

    def load():
        tensors = {}
        for path in files:
            with safe_open(path, framework="pt", backend="pread") as opened:
                for name in opened.keys():
                    tensors[name] = opened.get_tensor(name)
        return None, tensors

    return load


def load_runai(folder, torch_file, files):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(files)
            return None, dict(streamer.get_tensors())

    return load


def load_fastsafetensors(folder, torch_file, files):
    from fastsafetensors import SafeTensorsFileLoader

    def load():
        loader = SafeTensorsFileLoader(None, device="cpu", nogds=True)
        loader.add_filenames({0: files})
        buffers = loader.copy_files_to_device()
        return (loader, buffers), {name: buffers.get_tensor(name) for name in loader.get_keys()}

    return load


def load_torch(folder, torch_file, files):
    return lambda: (None, torch.load(torch_file, mmap=True, weights_only=True))


# Name: how it loads, and the package whose version is printed.
CONTESTANTS = {
    "infercluster-uring": (load_infercluster, "infercluster"),
    "infercluster-threads": (load_infercluster, "infercluster"),
    "safetensors-load_file": (load_safetensors, "safetensors"),
    "safetensors-pread": (load_safetensors_pread, "safetensors"),
    "runai-model-streamer": (load_runai, "runai-model-streamer"),
    "fastsafetensors": (load_fastsafetensors, "fastsafetensors"),
    "torch.load-mmap": (load_torch, "torch"),
}


def checksum(tensors) -> str:
    """The same for any order of the tensors, so that each contestant's bytes are read in the order in which it gave them."""
    total = 0
    for name, tensor in tensors.items():
        digest = xxhash.xxh3_64(tensor.reshape(-1).view(torch.uint8).numpy())
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total += digest.intdigest()
    return f"{total % 2**64:016x}"


def is_mapped(tensors) -> bool:
    """Whether the largest tensor lies in a mapping of a file rather than in private memory."""
    address = max(tensors.values(), key=lambda tensor: tensor.nbytes).data_ptr()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            span, _, _, _, inode, *path = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if begin <= address < end:
                # Private memory in explicit huge pages has an inode too, of hugetlbfs.
                return inode != "0" and path[:1] != ["/anon_hugepage"]
    return False


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "source tree"


def report_of(keep) -> dict:
    """Our own report, where there is one: which backend and mode really ran, and where the time went."""
    report = getattr(keep, "report", None)
    if report is None:
        return {}
    read = report.get if isinstance(report, dict) else lambda key: getattr(report, key, None)
    files = read("files") or []
    modes = sorted({file["mode"] if isinstance(file, dict) else file.mode for file in files})
    waited = read("waited")
    if waited is not None and not isinstance(waited, dict):
        waited = {cause: getattr(waited, cause) for cause in ("storage", "memory", "verify", "other")}
    return {"backend": read("backend"), "modes": modes, "waited": waited}


def finish_background(name: str) -> None:
    """Ours fills the page cache behind a load. A server that has loaded its weights lives on, so this process does until that is done."""
    if name.startswith("infercluster"):
        import infercluster

        infercluster.wait_for_page_cache(None)


def main() -> int:
    name, folder, torch_file, *files = sys.argv[1:]
    prepare, package = CONTESTANTS[name]
    try:
        load = prepare(folder, torch_file, files)
    except ImportError as error:
        print(json.dumps({"missing": f"{package}: {error}"}))
        return 0
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.perf_counter()
    keep, tensors = load()
    loaded = time.perf_counter()
    found = checksum(tensors)
    checked = time.perf_counter()
    print(json.dumps({
        "load_seconds": loaded - begin,
        "checksum_seconds": checked - loaded,
        "checksum": found,
        "tensors": len(tensors),
        "bytes": sum(tensor.nbytes for tensor in tensors.values()),
        "maps": is_mapped(tensors),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "version": version(package),
        **report_of(keep),
    }), flush=True)
    finish_background(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
