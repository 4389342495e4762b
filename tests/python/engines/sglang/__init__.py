# SPDX-License-Identifier: Apache-2.0
"""Stands in for SGLang in tests: the names and signatures that ../signatures/sglang.json records of the real package,
and as little behaviour as our launcher meets. Held against the record by test_engines.py."""
