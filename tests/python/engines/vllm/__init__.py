# SPDX-License-Identifier: Apache-2.0
"""Stands in for vLLM in tests: the names and signatures that ../signatures/vllm.json records of the real package, and
as little behaviour as our loader meets. Held against the record by test_engines.py."""
