# SPDX-License-Identifier: Apache-2.0
"""The parts that make Neutron's networks partitions: options, the RPC server, the agent."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from nova_hpc_lab import config
from nova_hpc_lab.fabric.net import MANAGER
from nova_hpc_lab.fabric.simulator import simulator_name
from nova_hpc_lab.fabric.subnet_manager import manager_files
from nova_hpc_lab.process import Process
from nova_hpc_lab.services import Service, probe_consumed, script
from nova_hpc_lab.state import Paths, Settings, write

#: The one fabric of a lab.
FABRIC: Final = "main"
#: Topic of the agents' heartbeats to Neutron.
_HEARTBEATS: Final = "q-reports-plugin"
#: Topic of the agent's requests.
_QUESTIONS: Final = "hpc-partitions"
#: Topic of the messages that wake the agent.
_WAKE: Final = "hpc-fabric-agent"


def inventory_file(paths: Paths) -> Path:
    """Return the path of the file that gives Neutron's driver the host of each fabric port."""
    return paths.config / "neutron" / "hpc-ports.yaml"


def partition_options(
    paths: Paths, physical_networks: Sequence[str], first: int = 2, last: int = 4094
) -> config.Sections:
    """Return the options that ``neutron.conf`` has in addition to the lab's usual ones.

    :param physical_networks: the InfiniBand networks, which are all on the same fabric.
    :param first: the first P_Key that a network can have.
    :param last: the last one.
    """
    ranges = ",".join(f"{name}:{first}:{last}" for name in physical_networks)
    return {
        "DEFAULT": {
            "rpc_workers": 1,
            "rpc_state_report_workers": 1,
            "network_auto_schedule": False,
            "send_events_interval": 1,
        },
        "ml2": {"mechanism_drivers": "hpc_partitions,nova_hpc_lab"},
        "ml2_type_vlan": {"network_vlan_ranges": ranges},
        "hpc_partitions": {
            "physical_networks": ",".join(f"{name}:{FABRIC}" for name in physical_networks),
            "subnet_manager": "opensm",
            "port_inventory": inventory_file(paths),
        },
    }


def fabric_options(paths: Paths, name: str = "opensm") -> dict[str, config.Value]:
    """Return the agent's section ``[hpc_fabric_agent]``; *name* is its subnet manager's name."""
    files = manager_files(paths, name)
    return {
        "fabric": FABRIC,
        "subnet_manager": "opensm",
        "opensm_config": files.config,
        "opensm_pid_file": files.pid_file,
        "opensm_log": files.log,
        "partitions_file": files.partitions,
        "own_partitions_file": files.own_partitions,
        "state_path": paths.data / "fabric-agent",
        "simulated_host": MANAGER,
    }


def agent_options(paths: Paths, settings: Settings, name: str = "opensm") -> config.Sections:
    """Return the agent's own file of options; *name* is its subnet manager's name."""
    return {
        "DEFAULT": {
            "transport_url": config.transport_url(settings),
            "host": f"{name}-{MANAGER}",
            "state_path": paths.data / "neutron",
        },
        "oslo_concurrency": {"lock_path": paths.run / "lock"},
        "hpc_fabric_agent": fabric_options(paths, name),
    }


def merge_sections(sections: config.Sections, more: config.Sections) -> config.Sections:
    """Return *sections* with the options of *more*, which override them."""
    return {name: {**sections.get(name, {}), **more.get(name, {})} for name in {**sections, **more}}


def prepare_partitions(paths: Paths, settings: Settings, neutron: config.Sections) -> None:
    """Write ``neutron.conf`` and the agent's options.

    :param neutron: all sections of ``neutron.conf``.
    """
    folder = paths.config / "neutron"
    (paths.data / "fabric-agent").mkdir(mode=0o700, parents=True, exist_ok=True)
    write(folder / "neutron.conf", config.render(neutron), mode=0o600)
    agent = config.render(agent_options(paths, settings))
    write(folder / "fabric-agent.conf", agent, mode=0o600)


def partition_services(paths: Paths, settings: Settings) -> dict[str, Service]:
    """Return Neutron's RPC server, which serves agents, and the agent beside the subnet manager.

    The keys are the names of the processes.
    """
    folder = paths.config / "neutron"

    def make(
        name: str,
        title: str,
        argv: tuple[str, ...],
        topics: Sequence[str],
        environ: Mapping[str, str],
    ) -> Service:
        return Service(
            name=name,
            title=title,
            process=Process(name, paths),
            argv=argv,
            environ=environ,
            probe=lambda: probe_consumed(settings, *topics),
        )

    services = (
        make(
            "neutron-rpc-server",
            "Neutron's RPC server",
            (*script(paths, "neutron-rpc-server"), "--config-file", str(folder / "neutron.conf")),
            (_HEARTBEATS, _QUESTIONS),
            {},
        ),
        make(
            "fabric-agent",
            "The fabric agent",
            (
                *(sys.executable, "-m", "neutron_drivers.fabric_agent"),
                *("--config-file", str(folder / "fabric-agent.conf")),
            ),
            (_WAKE,),
            {"IBSIM_SOCKNAME": simulator_name(paths)},
        ),
    )
    return {service.name: service for service in services}
