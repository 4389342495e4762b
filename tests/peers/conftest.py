# SPDX-License-Identifier: Apache-2.0
import guest
import pytest


@pytest.fixture(scope="session")
def namespace():
    """The words that run a command in the network of the guests."""
    with guest.network() as enter:
        yield enter


@pytest.fixture(scope="module", params=guest.kinds())
def machine(request):
    if lacks := guest.missing(request.param):
        pytest.skip(lacks)
    return guest.Machine(request.param, request.getfixturevalue("namespace"))
