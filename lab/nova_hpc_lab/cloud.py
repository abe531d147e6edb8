# SPDX-License-Identifier: Apache-2.0
"""The lab as a whole: open it, bring it up, show its state, take it down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab import bootstrap, config, database, machines, node
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.fabric import lab_fabric
from nova_hpc_lab.process import MARKER, Tools, end, strays
from nova_hpc_lab.progress import Display, Report, Step, run_steps
from nova_hpc_lab.services import Service, control_plane, require_free
from nova_hpc_lab.state import DEFAULT_BASE_PORT, Paths, Ports, Settings, write

_GRACE: Final = 30.0
#: Services that the others use until they end.
_LAST: Final = ("mariadb", "rabbitmq", "ibsim", "epmd")


@attrs.frozen
class ServiceStatus:
    """One line of ``nova-hpc lab status``: a process of the control plane, its port and trouble."""

    name: str
    title: str
    port: int | None
    pid: int | None
    #: The reason why it does not work; empty if it works.
    trouble: str


@attrs.define
class Cloud:
    """One lab: its control plane and its virtual nodes, in one state directory."""

    paths: Paths
    settings: Settings

    def services(self) -> dict[str, Service]:
        """Return name -> process of the control plane, in the order of their dependencies."""
        services = control_plane(self.paths, self.settings)
        if self.settings.fabric:
            services |= lab_fabric.fabric_services(
                self.paths, self.settings, self._shape_networks()
            )
        return services

    def _shape_networks(self) -> Mapping[str, str]:
        """Map interface of each adapter of a node that is kept for ports to physical network."""
        try:
            return node.Shape.load(self.settings.shape).networks
        except (node.ShapeError, OSError):
            return {}

    def nodes(self) -> list[node.Node]:
        """List the virtual nodes, whether they run or not."""
        if not self.settings.nodes:
            return []
        shape = node.Shape.load(self.settings.shape)
        count = self.settings.nodes
        return [node.Node(index, shape, self.paths, self) for index in range(1, count + 1)]

    def machine(self, name: str) -> node.Node:
        """Return the virtual node with this name.

        :raises LabError: it does not exist.
        """
        machines = {machine.name: machine for machine in self.nodes()}
        try:
            return machines[name]
        except KeyError:
            known = ", ".join(machines) or "none"
            raise LabError(f"there is no node {name!r}; the nodes of this lab: {known}") from None

    def logs(self) -> dict[str, list[Path]]:
        """Log files by the name of the service or node that writes them."""
        found = {name: [service.process.log] for name, service in self.services().items()}
        own = {path for paths in found.values() for path in paths}
        # Logs of programs that run once: migrations, keys.
        found |= {
            path.stem: [path] for path in sorted(self.paths.logs.glob("*.log")) if path not in own
        }
        for machine in self._nodes_or_none():
            found[machine.name] = sorted(machine.folder.glob("*.log"))
        return found

    def compute_files(self, host: str, host_address: str) -> Mapping[str, str]:
        """Return Nova's configuration in the node *host*: file name -> content.

        See :class:`node.NodeCloud`.
        """
        shape = self.machine(host).shape
        sections = config.compute(
            self.settings, host, host_address, shape.network_roles, has_disks=bool(shape.disks)
        )
        return {"nova.conf": config.render(sections)}

    # Up.

    def up(self, shown: Display) -> None:
        """Start all services and nodes that do not run; make missing and incomplete parts."""
        # All processes started from here on inherit this variable, so that those left after a
        # crash can be found.
        os.environ[MARKER] = str(self.paths.state)
        bootstrap.bypass_proxies()
        services = self.services()
        end_strays(self.paths, self._known_pids(services))
        for service in services.values():
            if service.process.pid() is None and service.port is not None:
                require_free(service.port, service.title)
        if services["rabbitmq"].process.pid() is None:
            require_free(self.settings.ports["distribution"], "RabbitMQ's tools")
        config.write_all(self.paths, self.settings)
        if self.settings.fabric:
            lab_fabric.prepare_fabric(self.paths, self.settings, self._shape_networks())
        tools = Tools(self.paths)

        def abort() -> None:
            tools.abort()
            # This ends programs that the tools did not start, such as mmdebstrap.
            end_strays(self.paths, self._known_pids(services))

        run_steps(self._steps(services, tools), shown, abort)

    def _steps(self, services: Mapping[str, Service], tools: Tools) -> Sequence[Step]:
        paths, settings = self.paths, self.settings

        def start(name: str) -> Callable[[Report], None]:
            return lambda report: services[name].start(tools.aborted)

        def mariadb(report: Report) -> None:
            if services["mariadb"].process.pid() is None:
                database.prepare_server(paths, settings, tools)
            services["mariadb"].start(tools.aborted)

        def rabbitmq(report: Report) -> None:
            if services["rabbitmq"].process.pid() is None:
                database.prepare_broker(paths, settings)
            services["epmd"].start(tools.aborted)
            services["rabbitmq"].start(tools.aborted)

        def schema(name: str) -> Callable[[Report], None]:
            return lambda report: database.make_schema(name, paths, settings, tools)

        bus = ("rabbitmq",)
        steps = [
            Step("mariadb", "MariaDB", mariadb),
            Step("rabbitmq", "RabbitMQ", rabbitmq),
            Step("keys", "Keystone's keys", lambda report: database.make_keys(paths, tools)),
            *(
                Step(f"schema-{name}", f"Database of {name.capitalize()}", schema(name), needs)
                for name, needs in (
                    ("keystone", ("mariadb", "keys")),
                    ("nova", ("mariadb",)),
                    ("placement", ("mariadb",)),
                    ("glance", ("mariadb",)),
                    ("neutron", ("mariadb",)),
                )
            ),
            Step("keystone", "Keystone", start("keystone"), ("schema-keystone",)),
            Step(
                "catalog",
                "Catalog and service user",
                machines.sdk(lambda: bootstrap.make_catalog(settings)),
                ("keystone",),
            ),
            Step("placement", "Placement", start("placement"), ("schema-placement",)),
            Step("glance", "Glance", start("glance"), ("schema-glance",)),
            Step("neutron", "Neutron", start("neutron"), ("schema-neutron", *bus)),
            *(
                # These services authenticate at their start, and end if the user is missing.
                Step(name, services[name].title, start(name), ("schema-nova", "catalog", *bus))
                for name in ("nova-conductor", "nova-scheduler", "nova-api")
            ),
            Step(
                "network",
                "Network of the lab",
                machines.sdk(lambda: bootstrap.make_network(settings)),
                ("catalog", "neutron"),
            ),
        ]
        if settings.fabric:
            steps += lab_fabric.fabric_steps(paths, settings, self.nodes(), services, tools)
        if settings.nodes:
            steps += machines.steps(paths, settings, self.nodes(), tools.aborted)
        return steps

    # Down.

    def down(self, report: Callable[[str], None]) -> None:
        """Stop the nodes, then the control plane, then all processes that are left."""
        with ThreadPoolExecutor() as pool:
            for machine in self._nodes_or_none():
                report(f"stopping node {machine.name}")
                pool.submit(machine.stop)
        services = list(self.services().values())
        # The other services end first, because they use the database and the broker to the end.
        for names in (
            [one for one in services if one.name not in _LAST],
            [one for one in services if one.name in _LAST and one.name != "epmd"],
            [one for one in services if one.name == "epmd"],
        ):
            report("stopping " + ", ".join(one.title for one in names))
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda one: one.process.stop(_GRACE), names))
        end_strays(self.paths)

    # Status.

    def service_statuses(self) -> list[ServiceStatus]:
        """Read the present state of every process of the control plane."""

        def look(service: Service) -> ServiceStatus:
            return ServiceStatus(
                name=service.name,
                title=service.title,
                port=service.port,
                pid=service.process.pid(),
                trouble=service.trouble(),
            )

        with ThreadPoolExecutor() as pool:
            return list(pool.map(look, self.services().values()))

    def _nodes_or_none(self) -> list[node.Node]:
        # A missing shape file must not prevent the lab from going down.
        try:
            return self.nodes()
        except (node.ShapeError, OSError):
            return []

    def _known_pids(self, services: Mapping[str, Service]) -> set[int]:
        pids = [service.process.pid() for service in services.values()]
        for machine in self._nodes_or_none():
            status = machine.status()
            pids += [status.supervisor_pid, status.qemu_pid]
        return {pid for pid in pids if pid is not None}


def end_strays(paths: Paths, known: Iterable[int] = ()) -> None:
    """End the processes that an interrupted command left behind; see :func:`strays`."""
    end(strays(paths, known), first=None, grace=10.0)


def purge(paths: Paths) -> None:
    """Remove all files of the lab except the cache.

    :raises LabError: a file cannot be removed.
    """
    end_strays(paths)
    try:
        shutil.rmtree(paths.state)
    except FileNotFoundError:
        return
    except OSError as err:
        raise LabError(f"cannot remove {err.filename}: {err.strerror}") from err


MOST_NODES = 99


@attrs.frozen
class Wishes:
    """The options of ``nova-hpc lab up``; None for options that were not given."""

    nodes: int | None = None
    shape: str | None = None
    base_port: int | None = None
    fabric: bool | None = None


def existing(paths: Paths) -> Cloud:
    """Open the lab that exists.

    :raises LabError: there is no lab.
    """
    settings = Settings.load(paths)
    if settings is None:
        raise LabError(f"there is no lab in {paths.state}; make one with: nova-hpc lab up")
    return Cloud(paths, settings)


def prepared(paths: Paths, wishes: Wishes) -> Cloud:
    """Open the lab with the user's options, and store them in its settings.

    :raises LabError: an option is invalid, or cannot be changed while the lab runs.
    """
    found = Settings.load(paths)
    if wishes.base_port is not None:
        _check_base_port(wishes.base_port)
    shape = _stored_shape(paths, wishes.shape)
    if found is None:
        settings = Settings.fresh(
            base_port=wishes.base_port or DEFAULT_BASE_PORT,
            nodes=1 if wishes.nodes is None else wishes.nodes,
            shape=shape or node.sample_names()[0],
            fabric=bool(wishes.fabric),
        )
    else:
        settings = _changed(Cloud(paths, found), wishes, shape)
    # An unreadable shape is reported before anything starts.
    node.Shape.load(settings.shape)
    settings.save(paths)
    return Cloud(paths, settings)


def _changed(cloud: Cloud, wishes: Wishes, shape: str | None) -> Settings:
    old = cloud.settings
    new = attrs.evolve(
        old,
        base_port=old.base_port if wishes.base_port is None else wishes.base_port,
        nodes=old.nodes if wishes.nodes is None else wishes.nodes,
        shape=shape or old.shape,
        fabric=old.fabric if wishes.fabric is None else wishes.fabric,
    )
    if new.base_port != old.base_port and any(
        service.process.pid() for service in cloud.services().values()
    ):
        raise LabError(
            f"the lab runs with base port {old.base_port}; before it can have another, stop it"
            " with: nova-hpc lab down"
        )
    if new.fabric != old.fabric and cloud.services()["neutron"].process.pid():
        raise LabError(
            f"the lab runs {'with' if old.fabric else 'without'} a simulated fabric; before that"
            " changes, stop it with: nova-hpc lab down"
        )
    running = [one for one in cloud.nodes() if one.status().supervisor_pid is not None]
    if new.shape != old.shape and running:
        raise LabError(
            f"node {running[0].name} runs with the shape {Path(old.shape).stem}; before it can"
            " have another, stop the lab with: nova-hpc lab down"
        )
    for machine in running:
        if machine.index > new.nodes:
            machine.stop()
    if new.shape != old.shape:
        # The records of a node's devices are wrong for another machine, so its disk is removed.
        for disk in (cloud.paths.state / "nodes").glob("*/disk.qcow2"):
            disk.unlink()
    return new


def _check_base_port(base: int) -> None:
    highest = max(number for _, number in Ports(base).items())
    if base < 1024 or highest > 65535:
        raise LabError(
            f"base port {base} makes no sense: the lab uses {base} to {highest}, which has to be"
            " within 1024 to 65535"
        )


def _stored_shape(paths: Paths, shape: str | None) -> str | None:
    """Return the name of a sample, or the path of the lab's own copy of a file, which is written.

    :param shape: name of a sample or path of a file; None if not given.
    """
    if shape is None or shape in node.sample_names():
        return shape
    # The shape is read before it is copied, so the error names the user's own file.
    loaded = node.Shape.load(Path(shape))
    copy = paths.state / "shapes" / f"{Path(shape).stem}.yaml"
    write(copy, loaded.text)
    return str(copy)
