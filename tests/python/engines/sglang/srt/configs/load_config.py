# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    PT = "pt"
    SAFETENSORS = "safetensors"
    DUMMY = "dummy"
    GGUF = "gguf"


@dataclasses.dataclass
class LoadConfig:
    load_format: Any = LoadFormat.AUTO
    download_dir: str | None = None
    model_loader_extra_config: Any = dataclasses.field(default_factory=dict)
    draft_model_idx: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model_loader_extra_config, str):
            self.model_loader_extra_config = json.loads(self.model_loader_extra_config)
        self._verify_load_format()

    def _verify_load_format(self) -> None:
        self.load_format = LoadFormat(self.load_format.lower())
