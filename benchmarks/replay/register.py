# SPDX-License-Identifier: Apache-2.0
"""The hosts of a replay in the databases: some register themselves, the others are copies.

A host needs some eighty requests to Placement to register its devices. Its copies get the rows of
these requests, with keys, names and UUIDs of their own. Before that, copies are compared with
hosts that registered themselves (:mod:`benchmarks.selection.rows`). They also get the rows of its
PCI devices, which its resource tracker reads when it starts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from benchmarks.concurrency import computes
from benchmarks.concurrency.model import Cloud
from benchmarks.concurrency.stage import Stage
from benchmarks.selection import rows

#: Number of hosts that register themselves; copies are compared with the second one.
REAL: Final = 2
_DEVICES: Final = ("nova", "pci_devices")
_COMPUTES: Final = ("nova", "compute_nodes")
_PROVIDERS: Final = ("placement", "resource_providers")


def copy(made: Stage, cloud: Cloud) -> None:
    """Insert all hosts but the first ones, which have registered themselves.

    :raises AssertionError: a copy differs from a host that registered itself.
    """
    databases = rows.Databases(made)
    names = computes.names(cloud)
    template = databases.template(names[0])
    rows.check(databases, template, names[1:REAL])
    devices = databases.read(
        "nova",
        "SELECT d.* FROM pci_devices d JOIN compute_nodes c ON c.id = d.compute_node_id"
        " WHERE c.host = %s ORDER BY d.id",
        names[0],
    )
    maker = rows.copies(databases, template, seed=1)
    rng = random.Random(2)
    tables: dict[tuple[str, str], list[rows.Row]] = {}
    for name in names[REAL:]:
        host = maker.rows(name, root=computes.node_uuid(name))
        host[_DEVICES] = _devices(devices, template, host, rng)
        for table, some in host.items():
            tables.setdefault(table, []).extend(some)
    for table, every in tables.items():
        databases.write(table, every)
    databases.analyse()


def _devices(
    devices: Sequence[rows.Row],
    template: rows.Template,
    host: dict[tuple[str, str], list[rows.Row]],
    rng: random.Random,
) -> list[rows.Row]:
    """The PCI devices of a copy, with the copy's providers."""
    (compute,) = host[_COMPUTES]
    pairs = zip(template.providers, host[_PROVIDERS], strict=True)
    uuids = {old["uuid"]: new["uuid"] for old, new in pairs}
    found = []
    for row in devices:
        plain: dict[str, Any] = {key: value for key, value in row.items() if key != "id"}
        plain["uuid"] = rows.random_uuid(rng)
        plain["compute_node_id"] = compute["id"]
        plain["extra_info"] = rows.replaced(row["extra_info"], uuids)
        found.append(plain)
    return found
