# SPDX-License-Identifier: Apache-2.0
"""Which of the devices that a node withholds would serve which alias, by the node's own word.

A node of an earlier release does not say of which class its devices are: then nothing is
counted, and they are in no alias's count.
"""

from __future__ import annotations

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova.pools import EVERYWHERE
from nova_hpc.from_nova.providers import Kind
from nova_hpc.from_nova.server import Task
from nova_hpc.wire import stats
from nova_hpc.wire.stats import StatsDocument


def by_alias(document: StatsDocument | None, task: Task) -> dict[str, int]:
    """Alias -> how many withheld devices would serve it; those of which there is one."""
    if document is None or not document.withheld or not document.kinds:
        return {}
    found: dict[str, set[str]] = {}
    for device in task.devices:
        found.setdefault(device.want.name, set()).update(_serving(document, device.kind))
    return {name: len(addresses) for name, addresses in found.items() if addresses}


def _serving(document: StatsDocument, kind: Kind) -> set[str]:
    """Addresses of what is withheld and of a kind."""
    found = set()
    for address in document.withheld:
        said = document.kinds.get(address)
        if said is None:
            continue
        resource_class, traits = stats.parts_of(said)
        if resource_class == kind.resource_class and kind.traits <= traits | EVERYWHERE:
            found.add(address)
    return found


def said_by(uuid: str) -> StatsDocument | None:
    """What the node with this UUID says of itself; None: nothing that can be read."""
    context = nova_context.get_admin_context()
    for cell in objects.CellMappingList.get_all(context):
        if cell.disabled:
            continue
        with nova_context.target_cell(context, cell) as within:
            found = objects.ComputeNodeList.get_all_by_uuids(within, [uuid])
        for node in found:
            values = node.stats if node.obj_attr_is_set("stats") else None
            return stats.loads((values or {}).get(stats.KEY))
    return None
