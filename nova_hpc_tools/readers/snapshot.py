# SPDX-License-Identifier: Apache-2.0
"""Reads a whole cloud as the scheduler does, into a snapshot.

The entry point ``nova_hpc.readers``: the commands of nova-hpc find it there. Nova's own HostManager
builds host states, flavors and aliases go through Nova's own functions, and devices through the
filter's own reader. So a snapshot contains the data that the scheduler would use at this moment.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from urllib import parse

import attrs
import nova.conf
from keystoneauth1 import exceptions as keystone_exceptions
from keystoneauth1 import loading as keystone
from nova import config, exception, objects, servicegroup, utils, version
from nova import context as nova_context
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_utils import uuidutils
from sqlalchemy import exc as sqlalchemy_exceptions

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import aliases, contract, server
from nova_hpc.from_nova.profile import CLOUD_PROFILES
from nova_hpc.placement.model import Want
from nova_hpc.placement.server import ServerSpec
from nova_hpc_tools.readers import snapshot_hosts
from nova_hpc_tools.snapshot import (
    Flavor,
    FlavorWant,
    Server,
    Snapshot,
    SnapshotAlias,
    SnapshotError,
    SnapshotGroup,
    SnapshotNode,
    make_printable_text,
    mixed_aliases,
)

CONF = nova.conf.CONF

hpc_conf.register_all_options(CONF)

#: Groups of nova.conf that may hold credentials to read images with, the best first.
_GROUPS: Final = ("glance", "service_user", "placement")

#: The arguments that this process has read Nova's configuration with, if it has.
_in_force: Final[list[tuple[str, ...]]] = []

_CELL_OFF: Final = "cell {} did not answer, so its hosts are missing"


class _SnapshotHostManager(host_manager.HostManager):
    """Nova's host manager without filters, weighers and records of instances.

    A filter that cannot be loaded concerns only the scheduler, and the servers of a host are read
    with their devices.
    """

    def __init__(self) -> None:
        self.refresh_cells_caches()
        self.aggs_by_id: dict[int, objects.Aggregate] = {}
        self.host_aggregates_map: dict[str, set[int]] = collections.defaultdict(set)
        self._init_aggregates()

    def _get_instance_info(self, context: Any, compute: Any) -> dict[str, Any]:
        return {}


def read_snapshot(arguments: Sequence[str] = (), image: str | None = None) -> Snapshot:
    """Read a snapshot of the cloud that Nova's configuration names.

    :param arguments: ``--config-file=FILE`` and ``--config-dir=DIR`` as for Nova's services;
        empty for the default paths of Nova's own commands.
    :param image: name or ID of an image; each flavor is read once more with its properties.
    :raises SnapshotError: it cannot be read; the text names the cure.
    """
    configure_nova(arguments)
    with explain_read_errors():
        return take_cloud_snapshot(image)


@contextlib.contextmanager
def explain_read_errors() -> Iterator[None]:
    """Turn errors of Nova and its libraries into a SnapshotError with the cure.

    :raises SnapshotError: in place of the errors of Nova and its libraries.
    """
    try:
        yield
    except (db_exception.DBError, sqlalchemy_exceptions.SQLAlchemyError) as error:
        raise SnapshotError(
            f"Nova's database cannot be read ({_first_line_of_error(error)}); check "
            f"[api_database] and "
            f"[database] connection in {_name_config_files()}"
        ) from error
    except exception.NovaException as error:
        raise SnapshotError(f"the cloud cannot be read: {_first_line_of_error(error)}") from error
    except keystone_exceptions.ClientException as error:
        raise SnapshotError(
            f"Nova's credentials are not accepted ({_first_line_of_error(error)}); check "
            f"[placement] in "
            f"{_name_config_files()}"
        ) from error


def configure_nova(arguments: Sequence[str]) -> None:
    """Load Nova's configuration, as Nova's own commands do.

    :raises SnapshotError: the configuration is missing, or is not a scheduler's.
    """
    try:
        # A command may read several things, and Nova's options are registered once.
        if _in_force != [tuple(arguments)]:
            config.parse_args(["nova-hpc", *arguments])
            _in_force[:] = [tuple(arguments)]
        connection = CONF.api_database.connection
    except cfg.Error as error:
        raise SnapshotError(
            f"Nova's configuration cannot be read: {_first_line_of_error(error)}"
        ) from error
    if not connection:
        raise SnapshotError(
            f"[api_database]connection is not set in {_name_config_files()}; run this "
            f"where nova-manage runs, "
            "or give the configuration of Nova's scheduler with --config-file"
        )
    objects.register_all()


def take_cloud_snapshot(image: str | None = None) -> Snapshot:
    """Take a snapshot of the cloud, with the Nova configuration that is loaded already.

    :raises SnapshotError: Nova is not set up for flavors with ``hpc:`` keys.
    """
    if not CONF.filter_scheduler.pci_in_placement:
        raise SnapshotError(
            f"[filter_scheduler]pci_in_placement is not True in {_name_config_files()}; "
            f"set it for the "
            "scheduler, the conductor and the API, or name the scheduler's configuration with "
            "--config-file"
        )
    context = nova_context.get_admin_context()
    problems = [
        f"hpc: flavors will be refused: {text}" for text in contract.list_contract_problems(CONF)
    ]
    if contract.FILTER not in CONF.filter_scheduler.enabled_filters:
        problems.append(
            f"{contract.FILTER} is not among [filter_scheduler]enabled_filters: as long as that "
            "is so, Nova alone decides, and not as explained"
        )
    pci_aliases, task = read_pci_aliases()
    free, unknown = snapshot_hosts.ask_free_devices(task)
    problems += unknown
    manager = _SnapshotHostManager()
    computes, services = manager._get_computes_for_cells(context, manager.enabled_cells, None)
    nodes: list[SnapshotNode] = []
    # By UUID: a server that is being moved has devices on two nodes.
    servers: dict[str, Server] = {}
    for cell in manager.enabled_cells:
        if cell.uuid not in computes:
            problems.append(_CELL_OFF.format(cell.identity))
    states = {
        (state.host, state.nodename): state
        for state in manager._get_host_states(context, computes, services)
    }
    for cell in manager.enabled_cells:
        with nova_context.target_cell(context, cell) as cell_context:
            for compute in computes.get(cell.uuid, ()):
                state = states.get((compute.host, compute.hypervisor_hostname))
                if state is None:
                    continue  # Nova has no service for it, and logs that
                node, its_servers = snapshot_hosts.read_snapshot_host(
                    cell_context,
                    compute,
                    state,
                    _why_service_is_out(services[compute.host]),
                    task,
                    free,
                )
                nodes.append(node)
                servers |= {server.uuid: server for server in its_servers}
    problems += mixed_aliases(nodes)
    return Snapshot(
        taken=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        nova=version.version_string(),
        hosts=tuple(sorted(nodes, key=lambda listed_node: (listed_node.host, listed_node.node))),
        flavors=_read_flavors(context, image),
        aliases=pci_aliases,
        servers=tuple(servers[uuid] for uuid in sorted(servers)),
        # The devices that were just read show the role of each alias.
        profile=CLOUD_PROFILES.current().profile,
        port_roles=tuple(CONF.hpc.port_roles),
        groups=_read_binding_groups(context, manager.enabled_cells),
        problems=tuple(problems),
        complete=not unknown and all(cell.uuid in computes for cell in manager.enabled_cells),
    )


def _read_binding_groups(context: Any, cells: Iterable[Any]) -> tuple[SnapshotGroup, ...]:
    """Read the server groups with hard policies, and the hosts of their servers."""
    groups = [
        group
        for group in objects.InstanceGroupList.get_all(context)
        if group.policy in ("affinity", "anti-affinity") and group.members
    ]
    uuids = sorted({uuid for group in groups for uuid in group.members})
    hosts: dict[str, str] = {}
    for cell in cells if uuids else ():
        with nova_context.target_cell(context, cell) as cell_context:
            found = objects.InstanceList.get_by_filters(
                cell_context, {"uuid": uuids, "deleted": False}, expected_attrs=[]
            )
        hosts |= {instance.uuid: instance.host for instance in found if instance.host}
    return tuple(
        SnapshotGroup(
            uuid=group.uuid,
            policy=group.policy,
            most=int(group.rules.get("max_server_per_host", 1)),
            members={uuid: hosts[uuid] for uuid in group.members if uuid in hosts},
        )
        for group in sorted(groups, key=lambda group: str(group.uuid))
    )


def read_pci_aliases() -> tuple[tuple[SnapshotAlias, ...], server.ServerTask]:
    """Read all PCI aliases of the configuration, and a task that wants one device of each.

    The keys of the task's wants are the names of the aliases.

    :raises SnapshotError: one of them is not JSON.
    """
    snapshot_aliases: list[SnapshotAlias] = []
    devices: list[server.WantedDevice] = []
    try:
        configured = aliases.read_configured_aliases()
    except aliases.AliasError as error:
        raise SnapshotError(str(error)) from error
    for configured_alias in configured:
        if configured_alias.problem is not None:
            snapshot_aliases.append(
                SnapshotAlias(
                    name=configured_alias.name,
                    problem=_first_line_of_error(configured_alias.problem),
                )
            )
        for device in configured_alias.devices:
            snapshot_aliases.append(
                SnapshotAlias(
                    name=configured_alias.name,
                    resource_class=device.kind.resource_class,
                    traits=device.kind.traits,
                )
            )
            devices.append(
                attrs.evolve(
                    device,
                    want=Want(key=configured_alias.name, name=configured_alias.name, count=1),
                )
            )
    wants = tuple(device.want for device in devices)
    return tuple(snapshot_aliases), server.ServerTask(ServerSpec({}, wants), tuple(devices))


def _read_flavors(context: Any, image: str | None) -> tuple[Flavor, ...]:
    """Read every flavor, and with *image* every flavor once more with the image's properties.

    :raises SnapshotError: the image does not exist.
    """
    flavors = []
    properties: list[tuple[str | None, objects.ImageMeta]] = [(None, server.no_image())]
    if image is not None:
        properties.append((image, _find_glance_image(image)))
    for flavor in objects.FlavorList.get_all(context):
        for name, meta in properties:
            flavors.append(read_snapshot_flavor(flavor, name, meta))
    return tuple(
        sorted(flavors, key=lambda listed_flavor: (listed_flavor.name, listed_flavor.image or ""))
    )


def read_snapshot_flavor(
    flavor: objects.Flavor, image: str | None, meta: objects.ImageMeta
) -> Flavor:
    """Read one flavor for a snapshot, with an image of these properties.

    :param image: its name; None if *meta* has no requirements.
    """
    read, problem = ServerSpec({}), None
    try:
        read = server.read_flavor_task(flavor, meta).server
    except (exception.NovaException, server.RequestError, ValueError) as error:
        problem = _first_line_of_error(error)
    return Flavor(
        name=make_printable_text(flavor.name),
        id=flavor.flavorid,
        image=image,
        extra_specs=dict(flavor.extra_specs or {}),
        wants=tuple(FlavorWant(want.name, want.count) for want in read.wants),
        cells=read.cells,
        numa_policy=read.numa_policy,
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        problem=problem,
    )


def _find_glance_image(image: str) -> objects.ImageMeta:
    """Find the image with this name or ID, with Nova's own service credentials.

    Nova's services read images with the token of the user who makes a request. An operator's
    command has none, so it takes the first credentials of nova.conf that work.

    :raises SnapshotError: no image or several match, or Glance does not answer.
    """
    adapter = _open_glance()
    if uuidutils.is_uuid_like(image):
        image_record = _ask_glance(adapter, f"/v2/images/{image}", image)
        records = [image_record] if image_record else []
    else:
        query = parse.urlencode({"name": image, "status": "active"})
        records = (_ask_glance(adapter, f"/v2/images?{query}", image) or {}).get("images", [])
    if not records:
        raise SnapshotError(f"there is no active image {image!r} that Nova's user can see")
    if len(records) > 1:
        which = ", ".join(str(record.get("id")) for record in records[:5])
        raise SnapshotError(f"{len(records)} images are called {image!r}; give an ID: {which}")
    # Nova takes its own properties from Glance's flat record.
    record = dict(records[0])
    return objects.ImageMeta.from_dict(
        {"id": record.get("id"), "name": record.get("name"), "properties": record}
    )


def _open_glance() -> Any:
    for group in _GROUPS:
        try:
            # Nova itself has none for Glance.
            keystone.register_auth_conf_options(CONF, group)
            auth = keystone.load_auth_from_conf_options(CONF, group)
        except (keystone_exceptions.ClientException, cfg.Error):
            continue
        if auth is not None:
            session = keystone.load_session_from_conf_options(CONF, group, auth=auth)
            return utils.get_ksa_adapter("image", ksa_auth=auth, ksa_session=session)
    raise SnapshotError(
        "nova.conf holds no credentials to read images with; set auth_type and the options that "
        f"belong to it in [{'], ['.join(_GROUPS)}]"
    )


def _ask_glance(adapter: Any, url: str, image: str) -> dict[str, Any] | None:
    try:
        answer = adapter.get(url, microversion=None)
    except keystone_exceptions.ClientException as error:
        raise SnapshotError(f"Glance did not return image {image!r}: {error}") from error
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise SnapshotError(
            f"Glance answered {answer.status_code} to the question for image {image!r}"
        )
    body: dict[str, Any] = answer.json()
    return body


def _why_service_is_out(service: objects.Service) -> str | None:
    """Explain why the scheduler gives a host no servers; None if its service is in use."""
    if service.disabled:
        reason = (
            f" ({make_printable_text(service.disabled_reason)})" if service.disabled_reason else ""
        )
        return f"its nova-compute is disabled{reason}"
    if not servicegroup.API().service_is_up(service):
        return "its nova-compute is down"
    return None


def _name_config_files() -> str:
    """Return the names of the configuration files that were read, for people."""
    files: Iterable[str] = CONF.config_file or ()
    return ", ".join(files) or "nova.conf (none was found)"


def _first_line_of_error(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return make_printable_text(text.splitlines()[0][:300])
