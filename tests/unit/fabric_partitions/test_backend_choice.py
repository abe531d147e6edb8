# SPDX-License-Identifier: Apache-2.0
"""A subnet manager that no installed wheel has is refused by its name."""

import pytest
import stevedore.driver
from stevedore.exception import NoMatches

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager, read_capabilities
from nova_hpc_ufm.subnet_manager import UfmSubnetManager


def test_a_name_without_an_entry_point_is_refused():
    with pytest.raises(SubnetManagerError, match="'sunm' cannot be loaded") as refused:
        read_capabilities("sunm")
    assert "wheel" not in str(refused.value)


def test_ufm_without_its_wheel_names_the_wheel(monkeypatch):
    def find_none(namespace, name, **_):
        raise NoMatches(f"No {namespace!r} driver found, looking for {name!r}")

    monkeypatch.setattr(stevedore.driver, "DriverManager", find_none)
    with pytest.raises(SubnetManagerError, match="install the wheel nova-hpc-ufm"):
        make_subnet_manager("ufm", None)


def test_ufm_is_found_by_its_entry_point():
    assert read_capabilities("ufm") == UfmSubnetManager.capabilities
