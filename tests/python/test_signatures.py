# SPDX-License-Identifier: Apache-2.0
"""The recorded signatures of vLLM and SGLang: the stand-ins have them, our loaders rely on them, and the recorder."""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import pytest
from engine_stand_ins import ROOT, SIGNATURES, engines

__all__ = ["engines"]


def written_parameters(function: Any) -> list[str]:
    """As tools/record_signatures.py writes them, without the defaults."""
    result, star = [], False
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            result.append("*")
            star = True
        result.append(one.name)
    return result


@pytest.mark.parametrize("engine", list(SIGNATURES))
def test_the_stand_ins_are_as_recorded(engines: None, engine: str) -> None:
    compared = 0
    for name, recorded in SIGNATURES[engine]["symbols"].items():
        module, _, path = name.partition(":")
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            owner, found = found, getattr(found, part)
        if recorded["kind"] == "function":
            if recorded.get("decorators") == ["classmethod"]:
                found = vars(owner)[path.split(".")[-1]].__func__
            assert written_parameters(found) == [one.split("=")[0] for one in recorded["parameters"]], name
            assert inspect.isgeneratorfunction(found) == recorded["generator"], name
            compared += 1
        elif recorded["kind"] == "class" and not name.endswith("Config"):
            assert set(recorded["bases"]) - {"ABC"} <= {base.__name__ for base in found.__mro__} | {"enum.Enum"}, name
            fields = [one.split("=")[0] for one in recorded["fields"]]
            own = [one for one in inspect.get_annotations(found) if one != "preloaded_weights_bytes"]
            assert [one for one in fields if one != "preloaded_weights_bytes"] == own, name
    assert compared > 10


def test_what_our_loaders_rely_on_is_in_the_record() -> None:
    """Facts about the real packages; a new record that breaks one breaks the integration."""
    vllm, sglang = (SIGNATURES[name]["symbols"] for name in ("vllm", "sglang"))
    loader = "vllm.model_executor.model_loader.default_loader:DefaultModelLoader"
    iterator = vllm[f"{loader}._get_weights_iterator"]
    assert not iterator["generator"] and vllm[f"{loader}.get_all_weights"]["generator"]
    assert "local_expert_ids=?" in iterator["calls"]["safetensors_weights_iterator"]
    for name in ("safetensors_weights_iterator", "multi_thread_safetensors_weights_iterator", "pt_weights_iterator"):
        assert iterator["calls"][name][0] == "?"  # the files
    assert vllm["vllm.lora.lora_model:safetensors"] == {"kind": "import"}  # patch() reaches safetensors.safe_open
    fields = [one.split("=")[0] for one in vllm["vllm.config.load:LoadConfig"]["fields"]]
    assert {"load_format", "model_loader_extra_config", "safetensors_load_strategy"} <= set(fields)
    loader = "sglang.srt.model_loader.loader:DefaultModelLoader"
    iterator = sglang[f"{loader}._get_weights_iterator"]
    assert not iterator["generator"] and sglang[f"{loader}._get_all_weights"]["generator"]
    assert {"safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator"} <= set(
        iterator["calls"]
    )
    formats = sglang["sglang.srt.configs.load_config:LoadFormat"]
    assert {"AUTO", "GGUF"} <= set(formats["members"]) and "INFERCLUSTER" not in formats["members"]
    assert formats["bases"] == ["str", "enum.Enum"]


def test_the_recorder_reads_a_wheel(tmp_path: pathlib.Path) -> None:
    wheel, output = tmp_path / "engine-1.2-py3-none-any.whl", tmp_path / "engine.json"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("engine/__init__.py", "if True:\n    from other import helper\n")
        archive.writestr(
            "engine/sub.py",
            "class A(B):\n x: int\n y: int = 3\n M = 'm'\n"
            " @classmethod\n def f(cls, a, b=1, *, c, d=None, **e):\n  g(a, k=2)\n"
            "def g(a, *b):\n yield a\n",
        )
    tool = [sys.executable, str(ROOT / "tools" / "record_signatures.py"), str(wheel), str(output)]
    names = ["engine:helper", "engine.sub:A", "engine.sub:A.f", "engine.sub:g"]
    subprocess.run([*tool, *names], check=True)
    record = json.loads(output.read_text())
    symbols = record["symbols"]
    assert (record["package"], record["version"], list(symbols)) == ("engine", "1.2", sorted(names))
    assert symbols["engine:helper"] == {"kind": "import", "from": "other"}
    assert symbols["engine.sub:A"]["fields"] == ["x", "y=3"] and symbols["engine.sub:A"]["members"] == {"M": "m"}
    assert symbols["engine.sub:A.f"]["parameters"] == ["cls", "a", "b=1", "*", "c", "d=None", "**e"]
    assert symbols["engine.sub:A.f"]["calls"] == {"g": ["?", "k=?"]}
    assert symbols["engine.sub:g"]["generator"] and not symbols["engine.sub:A.f"]["generator"]
    before = output.read_text()
    subprocess.run(tool, check=True)
    assert output.read_text() == before
    done = subprocess.run([*tool, "engine.sub:nothing"], check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "engine.sub:nothing" in done.stderr
