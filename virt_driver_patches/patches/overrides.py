# SPDX-License-Identifier: Apache-2.0
"""Every method of Nova's classes that a class of this project's overrides.

Public methods are what Nova lets subclasses do, and still nothing that it promises: a
parameter that comes or goes breaks them as it breaks a wrap. Private ones of the driver
are in ``patches.ALL`` with the wraps, which are checked when the service starts. The
classes are named as texts, those of the scheduler, too, which nova-compute never
imports; a contract test compares this list with the classes themselves, on every release.
"""

from __future__ import annotations

from typing import Final

import attrs

from nova_hpc.from_nova.gate import Patch


@attrs.frozen
class Override(Patch):
    """A method of a class of this project's, in place of Nova's."""

    #: ``module:Class`` of the overriding class.
    ours: str = ""
    overridden: bool = True
    until: str = "it is what Nova has for it"


_DRIVER: Final = "virt_driver_patches.driver.hpc_libvirt:HpcLibvirtDriver"
_FABRIC_FILTER: Final = "scheduler_filters.hpc_fabric_filter:HpcFabricFilter"
_FABRIC_WEIGHER: Final = "scheduler_filters.hpc_fabric_weigher:HpcFabricWeigher"
_FILTER: Final = "scheduler_filters.hpc_topology_filter:HpcTopologyFilter"
_HOSTS: Final = "nova_hpc.from_nova.snapshot:_Hosts"
_VALIDATOR: Final = "scheduler_filters.validators:HpcExtraSpecValidator"
_WEIGHER: Final = "scheduler_filters.hpc_packing_weigher:HpcPackingWeigher"

#: Those of nova-compute.
DRIVER: Final[tuple[Override, ...]] = (
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.__init__",
        parameters=("virtapi", "read_only"),
        lines={32: (417, 583), 33: (423, 590), 34: (422, 591)},
        why="The node, its checks and its guests are made with the driver.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.init_host",
        parameters=("host",),
        lines={32: (780, 910), 33: (787, 927), 34: (793, 929)},
        why="The service refuses to start where a contract does not hold.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.get_available_resource",
        parameters=("nodename",),
        lines={32: (10368, 10422), 33: (10503, 10557), 34: (10687, 10741)},
        why="What must not be given is left out of what the node reports; stats['hpc'] is added.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.update_provider_tree",
        parameters=("provider_tree", "nodename", "allocations"),
        lines={32: (9436, 9579), 33: (9571, 9714), 34: (9796, 9939)},
        why="What is reserved of this project's, and need not be, is free again.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.emit_event",
        parameters=("event",),
        lines={32: (2486, 2516), 33: (2521, 2551), 34: (2627, 2657)},
        why="Nova ignores a device that left a guest while nobody waited for it.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.spawn",
        parameters=("context", "instance"),
        lines={32: (4799, 4874), 33: (4837, 4912), 34: (4958, 5035)},
        why="The devices are checked and given before anything is made for the guest.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.driver:ComputeDriver.rebuild",
        parameters=("context", "instance", "evacuate"),
        lines={32: (488, 533), 33: (489, 534), 34: (508, 553)},
        why="The devices are checked before the old guest is torn down.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.resume_state_on_host_boot",
        parameters=("context", "instance"),
        lines={32: (4485, 4509), 33: (4520, 4544), 34: (4641, 4665)},
        why="The manager only logs why a server did not come back.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.resume",
        parameters=("context", "instance"),
        lines={32: (4448, 4483), 33: (4483, 4518), 34: (4604, 4639)},
        why="The devices are checked before the saved guest is started.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.suspend",
        parameters=("context", "instance"),
        lines={32: (4434, 4446), 33: (4469, 4481), 34: (4590, 4602)},
        why="QEMU keeps a request for a device that the guest does not answer.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.attach_interface",
        parameters=("context", "instance", "image_meta", "vif"),
        lines={32: (3041, 3092), 33: (3072, 3123), 34: (3181, 3229)},
        why="A direct port's device is checked together with those that the server has.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.rescue",
        parameters=("context", "instance"),
        lines={32: (4511, 4640), 33: (4546, 4678), 34: (4667, 4799)},
        why="The devices are checked before the guest is replaced.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.destroy",
        parameters=("context", "instance"),
        lines={32: (1619, 1626), 33: (1651, 1658), 34: (1763, 1770)},
        why="The devices of a server that is gone are cleaned before Nova frees them.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.migrate_disk_and_power_off",
        parameters=("context", "instance"),
        lines={32: (12447, 12566), 33: (12628, 12747), 34: (12818, 12937)},
        why="The adapters of the source forget a server that goes on elsewhere.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.finish_migration",
        parameters=("context", "migration", "instance"),
        lines={32: (12624, 12733), 33: (12805, 12914), 34: (12995, 13106)},
        why="The full check at the destination.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.finish_revert_migration",
        parameters=("context", "instance"),
        lines={32: (12773, 12828), 33: (12954, 13011), 34: (13146, 13205)},
        why="The check at the source, with the former devices.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.check_can_live_migrate_source",
        parameters=("context", "instance"),
        lines={32: (10708, 10795), 33: (10843, 10932), 34: (11027, 11116)},
        why="Nobody could check the destination's devices before the move.",
        ours=_DRIVER,
    ),
    Override(
        "nova.virt.libvirt.driver:LibvirtDriver.check_source_migrate_data_at_dest",
        parameters=("ctxt", "instance"),
        lines={32: (10548, 10604), 33: (10683, 10739), 34: (10867, 10923)},
        why="The destination of a live migration has claimed devices for the ports; Nova looks "
        "at them no more.",
        ours=_DRIVER,
    ),
)
#: Those of nova-scheduler, nova-api and of commands that read a cloud.
SCHEDULER: Final[tuple[Override, ...]] = (
    Override(
        "nova.filters:BaseFilter.filter_all",
        parameters=("filter_obj_list", "spec_obj"),
        lines={32: (36, 45), 33: (36, 45), 34: (36, 45)},
        why="The filter sees all hosts of a request at once.",
        ours=_FILTER,
    ),
    Override(
        "nova.weights:BaseWeigher.weight_multiplier",
        parameters=("host_state",),
        lines={32: (82, 94), 33: (82, 94), 34: (82, 94)},
        why="Its weight is an option of this project's.",
        ours=_WEIGHER,
    ),
    Override(
        "nova.weights:BaseWeigher.weigh_objects",
        parameters=("weighed_obj_list", "weight_properties"),
        lines={32: (100, 120), 33: (100, 120), 34: (100, 120)},
        why="Hosts are ranked among each other.",
        ours=_WEIGHER,
    ),
    Override(
        "nova.weights:BaseWeigher._weigh_object",
        parameters=("obj", "weight_properties"),
        lines={32: (96, 98), 33: (96, 98), 34: (96, 98)},
        why="Nova asks for it; the ranks are those of weigh_objects.",
        ours=_WEIGHER,
    ),
    Override(
        "nova.filters:BaseFilter.filter_all",
        parameters=("filter_obj_list", "spec_obj"),
        lines={32: (36, 45), 33: (36, 45), 34: (36, 45)},
        why="The domain of a server group is decided among all hosts that are left.",
        ours=_FABRIC_FILTER,
    ),
    Override(
        "nova.weights:BaseWeigher.weight_multiplier",
        parameters=("host_state",),
        lines={32: (82, 94), 33: (82, 94), 34: (82, 94)},
        why="Its weight is an option of this project's.",
        ours=_FABRIC_WEIGHER,
    ),
    Override(
        "nova.weights:BaseWeigher.weigh_objects",
        parameters=("weighed_obj_list", "weight_properties"),
        lines={32: (100, 120), 33: (100, 120), 34: (100, 120)},
        why="Hosts are near the other members or not; that is known for all at once.",
        ours=_FABRIC_WEIGHER,
    ),
    Override(
        "nova.weights:BaseWeigher._weigh_object",
        parameters=("obj", "weight_properties"),
        lines={32: (96, 98), 33: (96, 98), 34: (96, 98)},
        why="Nova asks for it; the scores are those of weigh_objects.",
        ours=_FABRIC_WEIGHER,
    ),
    Override(
        "nova.scheduler.host_manager:HostManager.__init__",
        parameters=("self",),
        lines={32: (349, 372), 33: (348, 371), 34: (349, 372)},
        why="A command that reads a cloud has no filters, and needs no records of instances.",
        ours=_HOSTS,
    ),
    Override(
        "nova.scheduler.host_manager:HostManager._get_instance_info",
        parameters=("context", "compute"),
        lines={32: (880, 896), 33: (878, 894), 34: (879, 895)},
        why="As for __init__.",
        ours=_HOSTS,
    ),
    Override(
        "nova.api.validation.extra_specs.base:ExtraSpecValidator.validate",
        parameters=("name", "value"),
        lines={32: (106, 120), 33: (106, 120), 34: (106, 120)},
        why="The rules of hpc: keys are those of the node and the scheduler, not a pattern.",
        ours=_VALIDATOR,
    ),
)

ALL: Final = (*DRIVER, *SCHEDULER)
