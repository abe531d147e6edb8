# SPDX-License-Identifier: Apache-2.0
"""Reads what was asked for a server that has no host: from the server itself.

The entry point ``nova_hpc.readers``, with the name ``nova_asked``. The flavor and the image
are those of the request, though an operator may have changed the flavor since.
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
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotError, direct_ports, printable
from nova_hpc_tools.snapshot.unplaced_requests import Asked

#: Servers in ERROR that are looked at for a request.
_MOST: Final = 2000


def read(arguments: Sequence[str], name: str | None, request: str | None = None) -> Asked:
    """Read what was asked of the cloud that Nova's configuration names.

    :param arguments: as :func:`nova_hpc_tools.readers.snapshot.read` takes them.
    :param name: name or UUID of a server without a host.
    :param request: or the ID of a request that left servers in ERROR.
    :raises SnapshotError: there is none such; the text says what there is.
    """
    snapshot.configure(arguments)
    with snapshot.explained():
        return find(name, request)


def find(name: str | None, request: str | None = None) -> Asked:
    """The same with the configuration that is in force.

    :raises SnapshotError: there is none such.
    """
    context = nova_context.get_admin_context()
    found: list[tuple[objects.Instance, str | None]]
    if request is not None:
        found = [(one, request) for one in _servers(context, None) if _is_of(one, request)]
        if not found:
            raise SnapshotError(
                f"no server in ERROR was made by the request {request!r}; openstack server event "
                "list names the requests of a server"
            )
    else:
        found = [(one, _request_of(one)) for one in _servers(context, name)]
        if not found:
            raise SnapshotError(f"there is no server {name!r} that is waiting or in ERROR")
        if len({one.uuid for one, _ in found}) > 1:
            which = ", ".join(one.uuid for one, _ in found[:5])
            raise SnapshotError(f"{len(found)} servers are called {name!r}; give a UUID: {which}")
    first, made_by = found[0]
    return _asked(context, first, sorted({one.uuid for one, _ in found}), made_by)


def _servers(context: Any, name: str | None) -> Iterator[objects.Instance]:
    """Servers without a host, of all cells; those with this name or UUID, or in ERROR."""
    if name is None:
        wanted: list[dict[str, object]] = [{"vm_state": "error"}]
    else:
        wanted = [{"uuid": name}, {"name": f"^{re.escape(name)}$"}]
    for cell in objects.CellMappingList.get_all(context):
        with nova_context.target_cell(context, cell) as within:
            for filters in wanted:
                found = objects.InstanceList.get_by_filters(
                    within,
                    {"deleted": False, "host": None, **filters},
                    limit=_MOST,
                    expected_attrs=["fault"],
                )
                for one in found:
                    if one.host is None and name in (None, one.uuid, one.display_name):
                        yield one


def _is_of(one: objects.Instance, request: str) -> bool:
    found = objects.InstanceAction.get_by_request_id(one._context, one.uuid, request)
    return found is not None


def _request_of(one: objects.Instance) -> str | None:
    """The request that made the server; it is the first of its actions."""
    actions = objects.InstanceActionList.get_by_instance_uuid(one._context, one.uuid)
    made = [action for action in actions if action.action == "create"]
    return str(made[-1].request_id) if made else None


def _asked(context: Any, one: objects.Instance, uuids: Iterable[str], request: str | None) -> Asked:
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, one.uuid)
    except exception.RequestSpecNotFound:
        raise SnapshotError(
            f"what was asked for server {one.uuid} is not stored any more; ask about its flavor "
            "with --flavor"
        ) from None
    image = spec.image if "image" in spec and spec.image else server.no_image()
    named = image.name if "name" in image else None
    flavor = snapshot.flavor_of(spec.flavor, printable(named) if named else None, image)
    return Asked(
        servers=tuple(uuids),
        name=printable(one.display_name or one.uuid),
        flavor=flavor,
        state=str(one.vm_state),
        fault=printable(one.fault.message) if one.fault is not None else None,
        request=request,
        ports=direct_ports.added(
            direct_ports.asked_of(next(iter(each.spec), {}))
            for each in server.port_requests(spec.pci_requests if "pci_requests" in spec else None)
        ),
        group=_group(spec),
        members=_members(spec),
        placement=_placement_says(context, spec),
        notes=tuple(_notes(spec)),
    )


def _placement_says(context: Any, spec: objects.RequestSpec) -> str | None:
    """What no host has by Placement, as the log of nova-scheduler would say it now.

    None: each wish is met somewhere together with the others, or a host was forced. Ports'
    own request groups are not stored with the request, and not in it.
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
        task = server.read_task(wanted)
        found = shortage.look(context, wanted, task, None)
        host = found.nearest
        if not found.causes:
            return None
        document = withheld.said_by(host) if host else None
        return found.why(
            printable(shortage.name_of(host)) if host else "",
            document.withheld if document else {},
            withheld.by_alias(document, task),
        )
    except (exception.NovaException, shortage.NoAnswerError, ValueError) as error:
        return f"that cannot be told ({printable(str(error))})"


def _group(spec: objects.RequestSpec) -> str | None:
    """The server group; Nova keeps it as a hint, the object is of the moment."""
    found = (spec.scheduler_hints or {}).get("group") if "scheduler_hints" in spec else None
    return printable(str(found[0])) if isinstance(found, list) and len(found) == 1 else None


def _members(spec: objects.RequestSpec) -> int | None:
    try:
        return fabric.announced(spec)
    except fabric.HintError:
        return None


def _notes(spec: objects.RequestSpec) -> Iterator[str]:
    """What narrows the hosts down, or asks for more, beside the flavor."""
    if spec.availability_zone:
        yield f"availability zone {printable(spec.availability_zone)}"
    hints = spec.scheduler_hints if "scheduler_hints" in spec else None
    others = sorted(set(hints or ()) - {"group", fabric.HINT})
    if others:
        yield f"scheduler hints {printable(', '.join(others))}"
    for hosts in (spec.force_hosts, spec.force_nodes):
        if hosts:
            yield f"host {printable(', '.join(hosts))}"
