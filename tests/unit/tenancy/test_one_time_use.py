# SPDX-License-Identifier: Apache-2.0
import pytest

from nova_hpc_tools.site import device_spec
from nova_hpc_tools.site.declaration import Declaration, DeclarationError
from tests.unit.adopt.machines import ROLES, adapter, gpu, node

GPU = "0000:41:00.0"
NODE = node(gpu(GPU, group=1), *adapter("0000:42:00.0", ["0000:42:00.1"], [2]))


def test_only_the_named_roles_are_used_one_time():
    terms = Declaration(one_time_use=frozenset({"gpu"}))
    terms.check(NODE, ROLES)
    found = {
        offer.provider: [entry.get("one_time_use") for entry in offer.entries]
        for offer in device_spec.build_device_spec(NODE, ROLES, terms).offers
    }
    assert found == {GPU: ["true"], "0000:42:00.0": [None]}


def test_virtual_functions_are_never_used_one_time():
    with pytest.raises(DeclarationError, match="virtual functions"):
        Declaration(one_time_use=frozenset({"vf"})).check(NODE, ROLES)
