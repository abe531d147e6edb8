# SPDX-License-Identifier: Apache-2.0
"""Virtual functions of NVIDIA's GPUs without a vGPU type, or of unlike types. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from nova_hpc.topology import classes
from nova_hpc.topology.model import Node
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.site.cures import DECLARATION, WRITE, DoctorCure
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few

#: Most devices that a cure names.
_MOST: Final = 32


def check_vgpu_types(node: Node, spec: DeviceSpec) -> Iterator[DoctorFinding]:
    """Find offered vGPUs without a type, and aliases whose devices have unlike types.

    :param spec: the offer of the node.
    """
    untyped = []
    # Role and report in Placement, which requests select -> type in words -> addresses.
    types: dict[object, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for offer in spec.offers:
        for address in offer.functions:
            function = node.function(address)
            if function is None or not classes.is_gpu(function.class_code):
                continue
            if function.vgpu_type == 0:
                untyped.append(address)
                continue
            word = "whole" if function.vgpu_type is None else f"vGPU type {function.vgpu_type}"
            types[offer.tags.role, offer.reported_as][word].append(address)
    if untyped:
        yield DoctorFinding(
            "vgpu-type",
            f"{join_first_few(untyped)}: no vGPU type is set, so nova-compute withholds them.",
            DoctorCure.of(
                "Write a type of nvidia/creatable_vgpu_types into /sys/bus/pci/devices/"
                f"{untyped[0]}/nvidia/current_vgpu_type, at boot before nova-compute; or left_out: "
                f"[{join_first([repr(address) for address in untyped], _MOST)}] in ",
                DECLARATION,
                ", then ",
                WRITE,
                ".",
            ),
        )
    for by_type in types.values():
        if len(by_type) > 1 and any(word != "whole" for word in by_type):
            parts = [f"{join_first_few(places)} ({word})" for word, places in by_type.items()]
            yield DoctorFinding(
                "vgpu-unlike",
                f"One alias names devices of unlike types: {'; '.join(parts)}.",
                DoctorCure.of(
                    "Set one type for all of them (nvidia/current_vgpu_type), or give them roles "
                    "of their own (roles in ",
                    DECLARATION,
                    "), or leave out (left_out) the devices of all types but one; then ",
                    WRITE,
                    ".",
                ),
            )
