# SPDX-License-Identifier: Apache-2.0
"""An InfiniBand fabric that is simulated: ibsim and the real opensm, in one service.

    fabric.py FOLDER write HOST    write the files: the fabric with two ports of HOST, the
                                   inventory of ports, opensm's options, those of the agent
    fabric.py FOLDER run           run both until one of them ends, or SIGTERM

What it proves: a Neutron port becomes a member of the partition in opensm's own tables. What it
does not: an adapter, and packets.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

# The checkout, which has the lab's modules.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "lab"))
from nova_hpc_lab import config
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.fabric import (
    net,
    partition_services,
    simulator,
    subnet_manager,
)
from nova_hpc_lab.services import Service
from nova_hpc_lab.state import Paths, write

#: Physical ports of the host, as many as the described host has adapters.
PORTS = 2
_START_SECONDS = 60


def write_files(paths: Paths, host: str) -> None:
    """Write what the plug-in names in Neutron's options and in the agent's."""
    (adapters,) = net.numbered_hosts(1, PORTS).values()
    fabric = net.net_of_hosts({host: adapters})
    for folder in (paths.run, paths.logs, paths.data / "fabric-agent"):
        folder.mkdir(parents=True, exist_ok=True)
    simulator.prepare_simulator(paths, fabric)
    # The plug-in waits for the first sweep by the log of this start.
    subnet_manager.prepare_manager(paths).log.unlink(missing_ok=True)
    options = partition_services.fabric_options(paths)
    write(paths.state / "agent.conf", config.render({"hpc_fabric_agent": options}))
    write(paths.state / "ports.yaml", fabric.inventory())
    # The agent's reader has to find this simulator among others.
    write(paths.state / "environment", f"IBSIM_SOCKNAME={simulator.simulator_name(paths)}\n")


def start_service(service: Service) -> None:
    """Start one and wait until it works.

    :raises LabError: it does not in time, or has ended.
    """
    number = service.process.spawn(service.argv, service.environ)
    end = time.monotonic() + _START_SECONDS
    while True:
        try:
            return service.probe()
        except LabError as error:
            if os.waitpid(number, os.WNOHANG)[0] or time.monotonic() > end:
                raise LabError(f"{service.title}: {error}") from error
            time.sleep(0.2)


def run_fabric(paths: Paths) -> int:
    """Run the simulator and opensm until one ends; the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The net is read from its file: how many ports it has makes room in the simulator alone.
    services = (
        simulator.ibsim_service(paths, net.net_of_hosts({})),
        subnet_manager.opensm_service(paths),
    )
    try:
        for service in services:
            start_service(service)
        # Both are children of this process, which may adopt others.
        running = {service.process.pid() for service in services}
        while os.wait()[0] not in running:
            pass
        return 1
    finally:
        for service in reversed(services):
            service.process.stop(10.0)


def main() -> int:
    """Do what the words ask for."""
    folder, mode, *hosts = sys.argv[1:]
    place = pathlib.Path(folder)
    os.umask(0o077)
    paths = Paths(state=place, cache=place / "cache", venv=pathlib.Path(sys.prefix))
    if mode == "write":
        write_files(paths, hosts[0])
        return 0
    return run_fabric(paths)


if __name__ == "__main__":
    sys.exit(main())
