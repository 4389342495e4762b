# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any


class BaseModelLoader:
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = vllm_config.make_model(prefix)
        self.load_weights(model, model_config)  # type: ignore[attr-defined]
        return model.eval()
