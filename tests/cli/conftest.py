# SPDX-License-Identifier: Apache-2.0
"""The program under test."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from repositories import write_model

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Program:
    """Runs `infercluster`. A wrapper goes before it on the command line."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def run(self, *arguments, wrapper: list[str] | None = None, env: dict[str, str] | None = None, **options) -> subprocess.CompletedProcess:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("INFERCLUSTER_", "HF_", "HUGGINGFACE_"))}
        command = [*(wrapper or []), str(self.path), *map(str, arguments)]
        return subprocess.run(command, env={**environment, **(env or {})}, capture_output=True, text=True, timeout=120, check=False, **options)

    def json(self, *arguments, **options) -> dict:
        """The document of a run that must succeed."""
        result = self.run(*arguments, "--json", **options)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def error(self, *arguments, **options) -> dict:
        """The error of a run that must fail, as --json says it; checked to be on standard error too."""
        result = self.run(*arguments, "--json", **options)
        assert result.returncode == 1, (result.returncode, result.stdout, result.stderr)
        document = json.loads(result.stdout)
        assert list(document) == ["error"]
        assert document["error"]["text"] in result.stderr
        return document["error"]


@pytest.fixture(scope="session")
def program() -> Program:
    build = pathlib.Path(os.environ.get("INFERCLUSTER_BUILD", ROOT / "build" / "release"))
    path = build / "bin" / "infercluster"
    assert path.exists(), f"{path} is not there: run make build, or set INFERCLUSTER_BUILD"
    return Program(path)


@pytest.fixture
def folder():
    """A directory on a real disk that every user may enter (pytest's own are private)."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="infercluster-", dir=os.environ.get("INFERCLUSTER_TEST_DIR", "/var/tmp")))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def model(folder) -> pathlib.Path:
    return write_model(folder / "model")
