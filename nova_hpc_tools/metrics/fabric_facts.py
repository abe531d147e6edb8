# SPDX-License-Identifier: Apache-2.0
"""The metrics of a subnet manager's host: the rows of ``fabric check``, as numbers."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from nova_hpc.fabric.partitions.backends.base import AuditRow
from nova_hpc_tools.fabric.check_command import FabricFindings, examine_fabric
from nova_hpc_tools.metrics import catalogue
from nova_hpc_tools.metrics.samples import OTHER, MetricSample, list_count_samples

#: Rows of single things -> they have no series each.
_SINGLE: Final = ("agent ", "port ")
#: One row for each port that is wrong, as far as they are shown; the row "tables" has the verdict.
_TABLE: Final = "table"
#: Different rows that have a label of their own, and agents.
_MOST_NAMES: Final = 64
_MOST_AGENTS: Final = 16


def read_fabric_samples(config: Sequence[str], cloud: str | None) -> tuple[MetricSample, ...]:
    """Check the subnet manager of this host, and return the metrics.

    :param config: ``--config-file=FILE`` and ``--config-dir=DIR`` as the agent takes them.
    :param cloud: name in clouds.yaml of the cloud whose agents and ports are read; None for none.
    :raises Exception: one of ``CheckFabric.errors``, and CommandError.
    """
    return tuple(list_fabric_samples(examine_fabric(config, cloud)))


def list_fabric_samples(findings: FabricFindings) -> Iterator[MetricSample]:
    """Yield the metrics of the findings on a fabric."""
    counts: Counter[tuple[str, ...]] = Counter()
    names: set[str] = set()
    for row in findings.rows:
        if row.name == _TABLE:
            continue
        name = _name_row(row)
        if name not in names and len(names) >= _MOST_NAMES:
            name = OTHER
        names.add(name)
        needed = "yes" if row.needed else "no"
        counts[name, row.requirement, needed, row.state.value] += 1
    yield from list_count_samples(catalogue.FABRIC_CHECKS, counts)
    if findings.layout is not None:
        partitions = findings.layout.partitions
        yield MetricSample(catalogue.FABRIC_PARTITIONS, len(partitions))
        yield MetricSample(catalogue.FABRIC_MEMBERS, sum(map(len, partitions.values())))
    if findings.agents is not None:
        yield from _list_agent_samples(findings.agents)


def _name_row(row: AuditRow) -> str:
    return next((word.strip() for word in _SINGLE if row.name.startswith(word)), row.name)


def _list_agent_samples(agents: Iterable[Any]) -> Iterator[MetricSample]:
    ordered = sorted(agents, key=lambda agent: str(agent.host))
    for agent in ordered[:_MOST_AGENTS]:
        host = str(agent.host)
        yield MetricSample(catalogue.FABRIC_ALIVE, bool(agent.is_alive), (host,))
        moment = _parse_heartbeat(agent.last_heartbeat_at)
        if moment is not None:
            yield MetricSample(catalogue.FABRIC_HEARTBEAT, moment, (host,))


def _parse_heartbeat(text: object) -> float | None:
    """Parse a time of Neutron, ``2026-01-01 00:00:00`` in UTC, to Unix time; None if unreadable."""
    try:
        moment = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
