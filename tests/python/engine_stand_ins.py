# SPDX-License-Identifier: Apache-2.0
"""Puts the stand-ins for vLLM and SGLang in the place of the packages, for a test."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
ENGINES = HERE / "engines"
SIGNATURES = {name: json.loads((HERE / "signatures" / f"{name}.json").read_text()) for name in ("vllm", "sglang")}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-ins are the packages; what our modules made over them goes with them."""
    monkeypatch.syspath_prepend(str(ENGINES))
    yield
    for module in list(sys.modules):
        if module.split(".")[0] in SIGNATURES or module.startswith("infercluster.integrations."):
            del sys.modules[module]
