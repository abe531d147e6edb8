# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from stevedore import extension

from tests.unit.tenancy.hygiene_node import make, settled


@pytest.fixture
def node(tmp_path):
    """A node of two GPUs whose first update is over."""
    return settled(make(tmp_path))


@pytest.fixture
def install(monkeypatch):
    """Adds the folder of a distribution to the module path; its entry points are found."""

    def add(folder):
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setattr(extension.ExtensionManager, "ENTRY_POINT_CACHE", {})

    return add


@pytest.fixture
def vendor(install):
    """The example distribution of a vendor is installed."""
    install(Path(__file__).parents[2] / "vendor_cleaner")
