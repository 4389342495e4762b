# SPDX-License-Identifier: Apache-2.0
def load_plugins() -> None:
    pass
