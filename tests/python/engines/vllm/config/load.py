# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    download_dir: str | None = None
    safetensors_load_strategy: str | None = None
    safetensors_prefetch_num_threads: int = 8
    safetensors_prefetch_block_size: int = 1 << 24
    model_loader_extra_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    device: str | None = None
    ignore_patterns: Any = ()
    use_tqdm_on_load: bool = True
    pt_load_map_location: Any = "cpu"
