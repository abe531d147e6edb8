# SPDX-License-Identifier: Apache-2.0
"""Every method of Nova's classes that a class of this project overrides, except the driver's.

The overriding classes are named as texts: nova-compute never imports the scheduler's classes.
"""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc.from_nova.gate import Patch


@attrs.frozen
class MethodOverride(Patch):
    """A method of nova-hpc's own subclass that replaces the method of Nova's base class."""

    #: ``module:Class`` of the overriding class.
    ours: str = ""
    overridden: bool = True
    until: str = "Nova offers it for this purpose"


_FABRIC_FILTER: Final = "scheduler_filters.hpc_fabric_filter:HpcFabricFilter"
_FABRIC_WEIGHER: Final = "scheduler_filters.hpc_fabric_weigher:HpcFabricWeigher"
_FILTER: Final = "scheduler_filters.hpc_topology_filter:HpcTopologyFilter"
_HOSTS: Final = "nova_hpc_tools.readers.snapshot:_SnapshotHostManager"
_VALIDATOR: Final = "scheduler_filters.validators:HpcExtraSpecValidator"
_WEIGHER: Final = "scheduler_filters.hpc_packing_weigher:HpcPackingWeigher"

#: Overrides in nova-scheduler, nova-api and commands that read a cloud.
SCHEDULER: Final[tuple[MethodOverride, ...]] = (
    MethodOverride(
        "nova.filters:BaseFilter.filter_all",
        parameters=("filter_obj_list", "spec_obj"),
        lines={32: (36, 45), 33: (36, 45), 34: (36, 45)},
        why="The filter sees all hosts of a request at once.",
        ours=_FILTER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher.weight_multiplier",
        parameters=("host_state",),
        lines={32: (82, 94), 33: (82, 94), 34: (82, 94)},
        why="Its weight is an option of this project's.",
        ours=_WEIGHER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher.weigh_objects",
        parameters=("weighed_obj_list", "weight_properties"),
        lines={32: (100, 120), 33: (100, 120), 34: (100, 120)},
        why="Hosts are ranked among each other.",
        ours=_WEIGHER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher._weigh_object",
        parameters=("obj", "weight_properties"),
        lines={32: (96, 98), 33: (96, 98), 34: (96, 98)},
        why="Nova requires it; weigh_objects computes the ranks.",
        ours=_WEIGHER,
    ),
    MethodOverride(
        "nova.filters:BaseFilter.filter_all",
        parameters=("filter_obj_list", "spec_obj"),
        lines={32: (36, 45), 33: (36, 45), 34: (36, 45)},
        why="The domain of a server group is decided among all hosts that are left.",
        ours=_FABRIC_FILTER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher.weight_multiplier",
        parameters=("host_state",),
        lines={32: (82, 94), 33: (82, 94), 34: (82, 94)},
        why="Its weight is an option of this project's.",
        ours=_FABRIC_WEIGHER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher.weigh_objects",
        parameters=("weighed_obj_list", "weight_properties"),
        lines={32: (100, 120), 33: (100, 120), 34: (100, 120)},
        why="Hosts are near the other members or not; that is known for all at once.",
        ours=_FABRIC_WEIGHER,
    ),
    MethodOverride(
        "nova.weights:BaseWeigher._weigh_object",
        parameters=("obj", "weight_properties"),
        lines={32: (96, 98), 33: (96, 98), 34: (96, 98)},
        why="Nova requires it; weigh_objects computes the scores.",
        ours=_FABRIC_WEIGHER,
    ),
    MethodOverride(
        "nova.scheduler.host_manager:HostManager.__init__",
        parameters=("self",),
        lines={32: (349, 372), 33: (348, 371), 34: (349, 372)},
        why="A command that reads a cloud has no filters, and needs no records of instances.",
        ours=_HOSTS,
    ),
    MethodOverride(
        "nova.scheduler.host_manager:HostManager._get_instance_info",
        parameters=("context", "compute"),
        lines={32: (880, 896), 33: (878, 894), 34: (879, 895)},
        why="As for __init__.",
        ours=_HOSTS,
    ),
    MethodOverride(
        "nova.api.validation.extra_specs.base:ExtraSpecValidator.validate",
        parameters=("name", "value"),
        lines={32: (106, 120), 33: (106, 120), 34: (106, 120)},
        why="The rules of hpc: keys are those of the node and the scheduler, not a pattern.",
        ours=_VALIDATOR,
    ),
)
