# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import Any

import safetensors


class LoRAModel:
    @classmethod
    def from_local_checkpoint(
        cls,
        lora_dir: str,
        expected_lora_modules: set[str],
        peft_helper: Any,
        *,
        lora_model_id: int | None = None,
        device: str = "cuda",
        dtype: Any = None,
        model_vocab_size: int | None = None,
        weights_mapper: Any = None,
        skip_prefixes: Any = None,
        moe_ep_spec: Any = None,
    ) -> dict[str, Any]:
        path = os.path.join(lora_dir, "adapter_model.safetensors")
        with safetensors.safe_open(path, framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
