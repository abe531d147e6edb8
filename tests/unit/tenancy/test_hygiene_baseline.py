# SPDX-License-Identifier: Apache-2.0
"""Of what is no baseline: a device that cannot be given, whatever it looks like."""

from __future__ import annotations

import pytest

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER, FakeNode, make


@pytest.fixture
def node(tmp_path):
    return make(tmp_path)


def test_what_an_ill_device_looks_like_is_no_baseline(node: FakeNode) -> None:
    offered = node.candidates(GPU, OTHER)
    ill = {GPU: Symptom(HealthSign.IOMMU, "its IOMMU group is not viable")}
    assert node.step().sweep(offered, frozenset, ill) == {}
    assert node.ledger.device(GPU).state is DeviceState.SUSPECT
    assert node.ledger.device(GPU).baseline is None
    assert node.ledger.device(OTHER).baseline is not None
    # Well again, it is recorded as it is then.
    assert node.step().sweep(offered, frozenset) == {}
    assert node.ledger.device(GPU).baseline is not None
