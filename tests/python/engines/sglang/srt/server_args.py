# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
from typing import Any

LOAD_FORMAT_CHOICES = ["auto", "pt", "safetensors", "dummy", "gguf"]
add_load_format_choices = LOAD_FORMAT_CHOICES.extend


def prepare_server_args(argv: list[str]) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--load-format", choices=LOAD_FORMAT_CHOICES, default="auto")
    parser.add_argument("--model-loader-extra-config", default="{}")
    return parser.parse_args(argv)
