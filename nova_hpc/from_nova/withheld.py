# SPDX-License-Identifier: Apache-2.0
"""Which of the devices that a node withholds would serve which alias, by the node's own word.

Devices of which the node does not say the class are in no alias's count.
"""

from __future__ import annotations

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova.pools import EVERYWHERE
from nova_hpc.from_nova.providers import DeviceKind
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.wire import stats
from nova_hpc.wire.stats import StatsDocument


def count_withheld_by_alias(document: StatsDocument | None, task: ServerTask) -> dict[str, int]:
    """Alias -> how many withheld devices would serve it; those of which there is one."""
    if document is None or not document.withheld or not document.kinds:
        return {}
    addresses_by_alias: dict[str, set[str]] = {}
    for device in task.devices:
        addresses_by_alias.setdefault(device.want.name, set()).update(
            _withheld_addresses_of_kind(document, device.kind)
        )
    return {name: len(addresses) for name, addresses in addresses_by_alias.items() if addresses}


def _withheld_addresses_of_kind(document: StatsDocument, kind: DeviceKind) -> set[str]:
    """Addresses of what is withheld and of a kind."""
    serving = set()
    for address in document.withheld:
        kind_text = document.kinds.get(address)
        if kind_text is None:
            continue
        resource_class, traits = stats.parse_kind(kind_text)
        if resource_class == kind.resource_class and kind.traits <= traits | EVERYWHERE:
            serving.add(address)
    return serving


def read_stats_of_provider(uuid: str) -> StatsDocument | None:
    """The stats of the node with this UUID; None: none that can be read."""
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
