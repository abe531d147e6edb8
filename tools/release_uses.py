# SPDX-License-Identifier: Apache-2.0
"""Use an installed nova-hpc beside Nova, and print one line of JSON: run by tools/release.py.

The interpreter is that of an environment with Nova; nothing is imported from the tree.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any, Final

#: Programs that read entry points of ours, whose groups begin with the name of the program.
READERS: Final = ("neutron", "blazar", "masakari")
#: A group whose entry points name a folder of scripts for alembic.
MIGRATIONS: Final = "neutron.db.alembic_migrations"
SERVER: Final = "6f0c1b52-0000-4000-8000-000000000000"
#: Enabled filters, as nova-hpc configure writes them.
ENABLED: Final = (
    "ComputeFilter",
    "HpcTopologyFilter",
    "NUMATopologyFilter",
    "PciPassthroughFilter",
    "HpcFabricFilter",
)


def list_own_distributions() -> list[importlib.metadata.Distribution]:
    """The installed wheels of the project."""
    named = {found.metadata["Name"]: found for found in importlib.metadata.distributions()}
    return [named[name] for name in sorted(named) if name.startswith("nova-hpc")]


def load_entry_points() -> tuple[int, int, list[str]]:
    """Number of loaded entry points, number of those whose program is missing, and errors."""
    loaded, left_out, faults = 0, 0, []
    missing = {name for name in READERS if importlib.util.find_spec(name) is None}
    for distribution in list_own_distributions():
        for point in distribution.entry_points:
            reader = "neutron" if "neutron_drivers" in point.value else point.group.split(".")[0]
            if reader in missing:
                left_out += 1
                continue
            try:
                if point.group == MIGRATIONS:
                    module = importlib.import_module(point.module)
                    next(Path(str(module.__file__)).with_name(point.attr).glob("versions/*"))
                else:
                    point.load()
                loaded += 1
            except Exception as error:
                faults.append(f"{point.group} {point.name}: {type(error).__name__}: {error}")
    return loaded, left_out, faults


def use_scheduler() -> tuple[list[str], list[str]]:
    """The names of the scheduler's plug-ins, as nova-scheduler loads them, and their errors."""
    from nova import conf, context, objects
    from nova.scheduler import filters, weights

    from nova_hpc.from_nova import contract

    names = ("hpc_topology_filter.HpcTopologyFilter", "hpc_fabric_filter.HpcFabricFilter")
    classes = filters.HostFilterHandler().get_matching_classes(
        [f"scheduler_filters.{name}" for name in names]
    )
    weighers = weights.HostWeightHandler().get_matching_classes(
        [
            "scheduler_filters.hpc_packing_weigher.HpcPackingWeigher",
            "scheduler_filters.hpc_fabric_weigher.HpcFabricWeigher",
        ]
    )
    faults = [f"Nova is not as it was read: {text}" for text in contract.list_release_differences()]

    def ask(plugin: Any, **extra_specs: str) -> int:
        flavor = objects.Flavor(
            **{"id": 1, "name": "f", "vcpus": 1, "memory_mb": 64, "root_gb": 1},
            **{"ephemeral_gb": 0, "swap": 0},
            extra_specs={name.replace("_", ":", 1): value for name, value in extra_specs.items()},
        )
        spec = objects.RequestSpec(
            context.get_admin_context(),
            **{"flavor": flavor, "instance_uuid": SERVER, "project_id": "p"},
            **{"scheduler_hints": {}, "instance_group": None, "numa_topology": None},
            **{"is_bfv": False, "requested_destination": None},
            pci_requests=objects.InstancePCIRequests(requests=[]),
        )
        return len(list(plugin.filter_all([object()], spec)))

    topology = next(kind for kind in classes if kind.__name__ == "HpcTopologyFilter")()
    if ask(topology) != 1:
        faults.append("HpcTopologyFilter took a host from a flavor without hpc: keys")
    if ask(topology, hpc_affinity="switch") != 0:
        faults.append("HpcTopologyFilter gave a host although nothing is set up")
    conf.CONF.set_override("pci_in_placement", True, "filter_scheduler")
    conf.CONF.set_override("enabled_filters", ENABLED, "filter_scheduler")
    faults += [
        f"settings that are right: {text}" for text in contract.list_wrong_settings(conf.CONF)
    ]
    for kind in (*classes, *weighers):
        kind()
    return sorted(kind.__name__ for kind in (*classes, *weighers)), faults


def use_validators() -> list[str]:
    """The errors of nova-api's validators for our keys of flavors."""
    from nova.api.validation.extra_specs import validators

    validators.load_validators()
    faults = []
    try:
        validators.validate("hpc:affinity", "switch")
    except Exception as error:
        faults.append(f"nova-api: hpc:affinity=switch: {error}")
    try:
        validators.validate("hpc:affinity", "moon")
        faults.append("nova-api takes hpc:affinity=moon")
    except Exception:
        pass
    return faults


def main() -> None:
    """Use the plug-ins and print the results."""
    from nova import monkey_patch

    monkey_patch.patch()
    from nova import conf, objects
    from oslo_utils import importutils

    conf.CONF([], project="nova", default_config_files=[])
    objects.register_all()
    loaded, left_out, faults = load_entry_points()
    filters, wrong = use_scheduler()
    # The shim is placed by nova-hpc install-shim, which the services' wheels do not have.
    has_shim = importlib.util.find_spec("nova.virt.hpc") is not None
    place = "nova.virt.hpc" if has_shim else "virt_driver_patches.driver.hpc_libvirt"
    driver = importutils.import_class(f"{place}.HpcLibvirtDriver")
    data = [path for path in Path(sys.prefix, "etc/nova-hpc").rglob("*") if path.is_file()]
    print(
        json.dumps(
            {
                "nova": importlib.metadata.version("nova"),
                "loaded": loaded,
                "left_out": left_out,
                "filters": filters,
                "driver": f"{driver.__name__} from {place}",
                "data": len(data),
                "faults": [*faults, *wrong, *use_validators()],
            }
        )
    )


if __name__ == "__main__":
    main()
