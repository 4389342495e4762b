# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DEFAULT_PLUGINS_GROUP = "vllm.general_plugins"


def load_general_plugins() -> None:
    raise NotImplementedError
