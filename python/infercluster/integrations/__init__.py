# SPDX-License-Identifier: Apache-2.0
"""Thin modules that put InferCluster under serving engines. Importing this imports none of them."""
