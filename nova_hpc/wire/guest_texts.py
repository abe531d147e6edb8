# SPDX-License-Identifier: Apache-2.0
"""The texts that a guest gets; their writers have the guest's tree."""

from __future__ import annotations

from typing import Final

from nova_hpc_common.wire.version import WireDocument

GUEST_DOCUMENT: Final = WireDocument(
    name="guest document",
    lives="opt/org.nova-hpc/guest.json of the guest's firmware",
    writer="nova_hpc.guest_tree.guest_document:build_guest_entries",
    # Only the standard library, and older or newer than the cloud: it has its own check.
    readers=("nova_hpc_guest.document:parse_guest_document",),
    schema="nova-hpc/guest",
)
NCCL_TOPOLOGY: Final = WireDocument(
    name="NCCL topology",
    lives="opt/org.nova-hpc/nccl-topology.xml of the guest's firmware",
    writer="nova_hpc.topology.nccl:write_nccl_file",
    # And NCCL (version 1) or RCCL (2), each of which refuses the other's.
    readers=("nova_hpc_guest.install:fill_in_addresses",),
)
