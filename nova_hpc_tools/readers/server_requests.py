# SPDX-License-Identifier: Apache-2.0
"""Reads the request of a server that has no host, from the server itself.

The entry point ``nova_hpc.readers``, with the name ``nova_asked``. Flavor and image are the
request's, even if an operator has changed the flavor since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nova import context as nova_context
from nova import exception, objects
from nova.scheduler import request_filter

from nova_hpc.from_nova import fabric, server, shortage, withheld
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.wire import stats
from nova_hpc.wire.stats import StatsDocument
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotError, direct_ports, make_printable_text
from nova_hpc_tools.snapshot.unplaced_requests import UnplacedRequest

#: Servers in ERROR that are looked at for a request.
_MOST: Final = 2000


def read_server_request(
    arguments: Sequence[str], name: str | None, request: str | None = None
) -> UnplacedRequest:
    """Read the stored request of a server without a host, with Nova's configuration.

    :param arguments: as for :func:`nova_hpc_tools.readers.snapshot.read_snapshot`.
    :param name: name or UUID of a server without a host.
    :param request: or the ID of a request that left servers in ERROR.
    :raises SnapshotError: no such server or request exists; the text lists existing ones.
    """
    snapshot.configure_nova(arguments)
    with snapshot.explain_read_errors():
        return find_server_request(name, request)


def find_server_request(name: str | None, request: str | None = None) -> UnplacedRequest:
    """Find a request like :func:`read_server_request`, with Nova's configuration already loaded.

    :raises SnapshotError: there is none such.
    """
    context = nova_context.get_admin_context()
    matches: list[tuple[objects.Instance, str | None]]
    if request is not None:
        matches = [
            (instance, request)
            for instance in _list_hostless_servers(context, None)
            if _was_made_by_request(instance, request)
        ]
        if not matches:
            raise SnapshotError(
                f"no server in ERROR was made by the request {request!r}; openstack server event "
                "list names the requests of a server"
            )
    else:
        matches = [
            (instance, _request_of(instance)) for instance in _list_hostless_servers(context, name)
        ]
        if not matches:
            raise SnapshotError(f"there is no server {name!r} that is waiting or in ERROR")
        if len({instance.uuid for instance, _ in matches}) > 1:
            which = ", ".join(instance.uuid for instance, _ in matches[:5])
            raise SnapshotError(f"{len(matches)} servers are called {name!r}; give a UUID: {which}")
    first, made_by = matches[0]
    return _describe_request(
        context, first, sorted({instance.uuid for instance, _ in matches}), made_by
    )


def _list_hostless_servers(context: Any, name: str | None) -> Iterator[objects.Instance]:
    """Yield servers without a host, of all cells.

    :param name: name or UUID of the servers; None for all in ERROR.
    """
    if name is None:
        wanted: list[dict[str, object]] = [{"vm_state": "error"}]
    else:
        wanted = [{"uuid": name}, {"name": f"^{re.escape(name)}$"}]
    for cell in objects.CellMappingList.get_all(context):
        with nova_context.target_cell(context, cell) as within:
            for filters in wanted:
                instances = objects.InstanceList.get_by_filters(
                    within,
                    {"deleted": False, "host": None, **filters},
                    limit=_MOST,
                    expected_attrs=["fault"],
                )
                for instance in instances:
                    if instance.host is None and name in (
                        None,
                        instance.uuid,
                        instance.display_name,
                    ):
                        yield instance


def _was_made_by_request(instance: objects.Instance, request: str) -> bool:
    action = objects.InstanceAction.get_by_request_id(instance._context, instance.uuid, request)
    return action is not None


def _request_of(instance: objects.Instance) -> str | None:
    """Return the ID of the request that created the server; None without such an action."""
    actions = objects.InstanceActionList.get_by_instance_uuid(instance._context, instance.uuid)
    made = [action for action in actions if action.action == "create"]
    return str(made[-1].request_id) if made else None


def _describe_request(
    context: Any, instance: objects.Instance, uuids: Iterable[str], request: str | None
) -> UnplacedRequest:
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except exception.RequestSpecNotFound:
        raise SnapshotError(
            f"the request of server {instance.uuid} is not stored any more; use --flavor with "
            "its flavor"
        ) from None
    image = spec.image if "image" in spec and spec.image else server.no_image()
    named = image.name if "name" in image else None
    flavor = snapshot.read_snapshot_flavor(
        spec.flavor, make_printable_text(named) if named else None, image
    )
    return UnplacedRequest(
        servers=tuple(uuids),
        name=make_printable_text(instance.display_name or instance.uuid),
        flavor=flavor,
        state=str(instance.vm_state),
        fault=make_printable_text(instance.fault.message) if instance.fault is not None else None,
        request=request,
        ports=direct_ports.merge_equal_ports(
            direct_ports.direct_ports_of_spec(next(iter(port_request.spec), {}))
            for port_request in server.port_requests(
                spec.pci_requests if "pci_requests" in spec else None
            )
        ),
        group=_server_group_of(spec),
        members=_count_announced_members(spec),
        placement=_explain_by_placement(context, spec),
        notes=tuple(_list_constraints(spec)),
    )


def _explain_by_placement(context: Any, spec: objects.RequestSpec) -> str | None:
    """Explain the shortage in Placement, as nova-scheduler would log it now.

    None if a provider meets all requirements together, or a host was forced. Ports' own request
    groups are not stored with the request, so the check leaves them out.
    """
    if (
        spec.force_hosts
        or spec.force_nodes
        or not hpc_flavor.has_hpc_keys(spec.flavor.extra_specs or {})
    ):
        return None
    wanted = spec.obj_clone()
    wanted.requested_resources = []
    try:
        wanted.generate_request_groups_from_pci_requests()
        request_filter.process_reqspec(context, wanted)
        task = server.read_server_task(wanted)
        request_shortage = shortage.ask_for_shortage(context, wanted, task, None)
        host = request_shortage.nearest
        if not request_shortage.causes:
            return None
        document = _read_stats_of_provider(host) if host else None
        return request_shortage.why(
            make_printable_text(shortage.provider_name_of(host)) if host else "",
            document.withheld if document else {},
            withheld.count_withheld_by_alias(document, task),
        )
    except (exception.NovaException, shortage.ShortageUnansweredError, ValueError) as error:
        return f"that is unknown ({make_printable_text(str(error))})"


def _server_group_of(spec: objects.RequestSpec) -> str | None:
    """Return the UUID of the server group in the request's hint; None without one.

    Nova stores only the hint; its object of the group is of the moment.
    """
    hint_values = (spec.scheduler_hints or {}).get("group") if "scheduler_hints" in spec else None
    return (
        make_printable_text(str(hint_values[0]))
        if isinstance(hint_values, list) and len(hint_values) == 1
        else None
    )


def _count_announced_members(spec: objects.RequestSpec) -> int | None:
    try:
        return fabric.announced_members_of(spec)
    except fabric.HintError:
        return None


def _list_constraints(spec: objects.RequestSpec) -> Iterator[str]:
    """List further restrictions and requirements of the request beside its flavor."""
    if spec.availability_zone:
        yield f"availability zone {make_printable_text(spec.availability_zone)}"
    hints = spec.scheduler_hints if "scheduler_hints" in spec else None
    others = sorted(set(hints or ()) - {"group", fabric.HINT})
    if others:
        yield f"scheduler hints {make_printable_text(', '.join(others))}"
    for hosts in (spec.force_hosts, spec.force_nodes):
        if hosts:
            yield f"host {make_printable_text(', '.join(hosts))}"


def _read_stats_of_provider(uuid: str) -> StatsDocument | None:
    """Read the stats of the node with this UUID; None if they are missing or cannot be read."""
    context = nova_context.get_admin_context()
    for cell in objects.CellMappingList.get_all(context):
        if cell.disabled:
            continue
        with nova_context.target_cell(context, cell) as within:
            nodes = objects.ComputeNodeList.get_all_by_uuids(within, [uuid])
        for node in nodes:
            values = node.stats if node.obj_attr_is_set("stats") else None
            return stats.read_stats_or_none((values or {}).get(stats.KEY))
    return None
