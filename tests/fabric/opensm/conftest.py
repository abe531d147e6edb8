# SPDX-License-Identifier: Apache-2.0
"""One opensm for all tests of a module."""

import contextlib

import pytest

from tests.fabric.matrix import FabricView
from tests.fabric.opensm.opensm_site import running_site


@pytest.fixture(scope="module")
def fabric_site():
    with running_site() as made:
        yield made


@pytest.fixture
def site(fabric_site):
    yield fabric_site
    fabric_site.rest()


@pytest.fixture
def view(site):
    with contextlib.closing(FabricView(site.fabric)) as found:
        yield found
