# SPDX-License-Identifier: Apache-2.0
"""The PCIe tree that a guest gets, as a plan.

Input: the claimed devices with their places on the host. Output: a tree of expanders,
ports and switches with fixed bus numbers. Pure data: this package does not depend on
libvirt or Nova.
"""

from __future__ import annotations

from nova_hpc.guest_tree.model import Bridge, TreeDevice, TreePartKind, TreePlan, TreeSeat
from nova_hpc.guest_tree.plan import PlanError, plan_guest_pci_tree
from nova_hpc.wire.guest_abi import Abi, AbiError, TopologyMode

__all__ = [
    "Abi",
    "AbiError",
    "Bridge",
    "PlanError",
    "TopologyMode",
    "TreeDevice",
    "TreePartKind",
    "TreePlan",
    "TreeSeat",
    "plan_guest_pci_tree",
]
