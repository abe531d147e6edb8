# SPDX-License-Identifier: Apache-2.0
"""What a server asks for."""

from __future__ import annotations

import pytest

from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Want
from nova_hpc.placement.server import ServerSpec


@pytest.mark.parametrize("count", [0, 2000])
def test_counts_are_judged_before_anything_else(count):
    """The scheduler refuses them before it reads a host: who reads later says the same."""
    asked = ServerSpec({"hpc:group": "nic:1"}, (Want("0", "gpu", count),))
    with pytest.raises(FlavorError, match=f"requests '{count}' of 'gpu'"):
        asked.request({})
