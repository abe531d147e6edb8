# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.unit.tenancy.hygiene_node import make, settled


@pytest.fixture
def node(tmp_path):
    """A node of two GPUs whose first update is over."""
    return settled(make(tmp_path))
