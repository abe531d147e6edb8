# SPDX-License-Identifier: Apache-2.0
"""The PCIe tree that a guest gets, as a plan.

Claimed devices with their places on the host go in; a tree of expanders,
ports and switches with fixed bus numbers comes out. Pure data: nothing here
knows libvirt or Nova.
"""

from __future__ import annotations

from nova_hpc.guest_tree.model import Bridge, Device, Kind, Plan, Seat
from nova_hpc.guest_tree.plan import PlanError, plan
from nova_hpc.wire.guest_abi import Abi, AbiError, Mode

__all__ = [
    "Abi",
    "AbiError",
    "Bridge",
    "Device",
    "Kind",
    "Mode",
    "Plan",
    "PlanError",
    "Seat",
    "plan",
]
