# SPDX-License-Identifier: Apache-2.0
"""The devices that a node withholds, by the aliases that they would serve, from its own report.

Devices whose class the node does not report are in no alias's count.
"""

from __future__ import annotations

from nova_hpc.from_nova.pools import EVERYWHERE
from nova_hpc.from_nova.providers import DeviceKind
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.wire import stats
from nova_hpc.wire.stats import StatsDocument


def count_withheld_by_alias(document: StatsDocument | None, task: ServerTask) -> dict[str, int]:
    """Return alias -> number of withheld devices of a node that match it, without zero counts."""
    if document is None or not document.withheld or not document.kinds:
        return {}
    addresses_by_alias: dict[str, set[str]] = {}
    for device in task.devices:
        addresses_by_alias.setdefault(device.want.name, set()).update(
            _withheld_addresses_of_kind(document, device.kind)
        )
    return {name: len(addresses) for name, addresses in addresses_by_alias.items() if addresses}


def _withheld_addresses_of_kind(document: StatsDocument, kind: DeviceKind) -> set[str]:
    """List PCI addresses of withheld devices with the resource class and traits of *kind*."""
    serving = set()
    for address in document.withheld:
        kind_text = document.kinds.get(address)
        if kind_text is None:
            continue
        resource_class, traits = stats.parse_kind(kind_text)
        if resource_class == kind.resource_class and kind.traits <= traits | EVERYWHERE:
            serving.add(address)
    return serving
