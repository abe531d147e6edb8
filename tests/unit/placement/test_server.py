# SPDX-License-Identifier: Apache-2.0
"""What a server asks for, and the roles of its devices."""

from __future__ import annotations

import pytest

from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Want
from nova_hpc.placement.server import ServerSpec, merge_roles, roles_on


@pytest.mark.parametrize("count", [0, 2000])
def test_counts_are_judged_before_anything_else(count):
    """The scheduler refuses them before it reads a host: who reads later says the same."""
    asked = ServerSpec({"hpc:group": "nic:1"}, (Want("0", "gpu", count),))
    with pytest.raises(FlavorError, match=f"asks for '{count}' of 'gpu'"):
        asked.request({})


def test_each_host_has_one_voice():
    """However many devices it has; a tie goes to the first in the alphabet."""
    many = roles_on([({"0"}, "fpga")] * 5 + [({"0", "1"}, "gpu")] + [({"0"}, None)] * 9)
    assert many == {"0": "fpga", "1": "gpu"}
    few = roles_on([({"0"}, "gpu"), ({"1"}, "nic")])
    assert merge_roles([many, few]) == {"0": "fpga", "1": "gpu"}
    assert merge_roles([many, few, few]) == {"0": "gpu", "1": "nic"}
