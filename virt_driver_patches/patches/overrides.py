# SPDX-License-Identifier: Apache-2.0
"""Every method of Nova's driver that this project overrides.

Nova lets subclasses override public methods, but promises no stable signature: a new or
removed parameter breaks them as it breaks a wrap. The driver's private methods
are in ``patches.ALL`` with the wraps, which are checked when the service starts. Overridden
methods of other classes are in :mod:`nova_hpc.from_nova.overridden`. A contract test compares the
lists with the classes on every release.

Overriding is Nova's own way to extend a driver, so no entry has a bug or a report. Each
entry gives its reason.
"""

from __future__ import annotations

from typing import Final

from nova_hpc.from_nova.overridden import SCHEDULER, MethodOverride

_DRIVER: Final = "virt_driver_patches.driver.hpc_libvirt:HpcLibvirtDriver"

#: Overrides in nova-compute.
DRIVER: Final[tuple[MethodOverride, ...]] = (
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.__init__",
        parameters=("virtapi", "read_only"),
        lines={32: (417, 583), 33: (423, 590), 34: (422, 591)},
        why="The node, its checks and its guests are made with the driver.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.init_host",
        parameters=("host",),
        lines={32: (780, 910), 33: (787, 927), 34: (793, 929)},
        why="The service refuses to start where a contract does not hold.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.get_available_resource",
        parameters=("nodename",),
        lines={32: (10368, 10422), 33: (10503, 10557), 34: (10687, 10741)},
        why="What must not be given is left out of what the node reports; stats['hpc'] is added.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.update_provider_tree",
        parameters=("provider_tree", "nodename", "allocations"),
        lines={32: (9436, 9579), 33: (9571, 9714), 34: (9796, 9939)},
        why="What is reserved of this project's, and need not be, is free again.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.emit_event",
        parameters=("event",),
        lines={32: (2486, 2516), 33: (2521, 2551), 34: (2627, 2657)},
        why="Nova ignores a device that left a guest while nobody waited for it.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.spawn",
        parameters=("context", "instance"),
        lines={32: (4799, 4874), 33: (4837, 4912), 34: (4958, 5035)},
        why="The devices are checked and given before anything is made for the guest.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.driver:ComputeDriver.rebuild",
        parameters=("context", "instance", "evacuate"),
        lines={32: (488, 533), 33: (489, 534), 34: (508, 553)},
        why="The devices are checked before the old guest is torn down.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.resume_state_on_host_boot",
        parameters=("context", "instance"),
        lines={32: (4485, 4509), 33: (4520, 4544), 34: (4641, 4665)},
        why="The manager only logs why a server did not come back.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.resume",
        parameters=("context", "instance"),
        lines={32: (4448, 4483), 33: (4483, 4518), 34: (4604, 4639)},
        why="The devices are checked before the saved guest is started.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.suspend",
        parameters=("context", "instance"),
        lines={32: (4434, 4446), 33: (4469, 4481), 34: (4590, 4602)},
        why="QEMU keeps a request for a device that the guest does not answer.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.attach_interface",
        parameters=("context", "instance", "image_meta", "vif"),
        lines={32: (3041, 3092), 33: (3072, 3123), 34: (3181, 3229)},
        why="A direct port's device is checked together with those that the server has.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.rescue",
        parameters=("context", "instance"),
        lines={32: (4511, 4640), 33: (4546, 4678), 34: (4667, 4799)},
        why="The devices are checked before the guest is replaced.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.destroy",
        parameters=("context", "instance"),
        lines={32: (1619, 1626), 33: (1651, 1658), 34: (1763, 1770)},
        why="The devices of a server that is gone are cleaned before Nova frees them.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.migrate_disk_and_power_off",
        parameters=("context", "instance"),
        lines={32: (12447, 12566), 33: (12628, 12747), 34: (12818, 12937)},
        why="The adapters of the source forget a server that goes on elsewhere.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.finish_migration",
        parameters=("context", "migration", "instance"),
        lines={32: (12624, 12733), 33: (12805, 12914), 34: (12995, 13106)},
        why="The full check at the destination.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.finish_revert_migration",
        parameters=("context", "instance"),
        lines={32: (12773, 12828), 33: (12954, 13011), 34: (13146, 13205)},
        why="The check at the source, with the former devices.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.check_can_live_migrate_source",
        parameters=("context", "instance"),
        lines={32: (10708, 10795), 33: (10843, 10932), 34: (11027, 11116)},
        why="A server that cannot move while it runs is refused with the reason.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.check_source_migrate_data_at_dest",
        parameters=("ctxt", "instance"),
        lines={32: (10548, 10604), 33: (10683, 10739), 34: (10867, 10923)},
        why="The destination of a live migration has claimed devices; Nova looks at them no more.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.pre_live_migration",
        parameters=(
            *("context", "instance", "block_device_info", "network_info"),
            *("disk_info", "migrate_data"),
        ),
        lines={32: (11765, 11888), 33: (11937, 12067), 34: (12127, 12257)},
        why="A message of a live migration outlives the nova-compute that has given it up.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.post_claim_migrate_data",
        parameters=("context", "instance", "migrate_data", "claim"),
        lines={32: (10606, 10609), 33: (10741, 10744), 34: (10925, 10928)},
        why="Nova pins emulator threads to the CPUs of the guest's vCPUs.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.post_live_migration_at_destination",
        parameters=("context", "instance"),
        lines={32: (12096, 12117), 33: (12277, 12298), 34: (12467, 12488)},
        why="The server's records follow it.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.reboot",
        parameters=("context", "instance"),
        lines={32: (4032, 4056), 33: (4063, 4087), 34: (4169, 4193)},
        why="What a server shares is kept while a soft reboot starts its domain again.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.unrescue",
        parameters=("context", "instance"),
        lines={32: (4642, 4668), 33: (4680, 4706), 34: (4801, 4827)},
        why="Nova starts the guest by a text that it kept, which names shared memory.",
        ours=_DRIVER,
    ),
    MethodOverride(
        "nova.virt.libvirt.driver:LibvirtDriver.snapshot",
        parameters=("context", "instance", "image_id"),
        lines={32: (3159, 3332), 33: (3190, 3363), 34: (3296, 3469)},
        why="One that suspends a guest would write old content over memory that it shares.",
        ours=_DRIVER,
    ),
)
ALL: Final = (*DRIVER, *SCHEDULER)
