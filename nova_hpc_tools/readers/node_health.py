# SPDX-License-Identifier: Apache-2.0
"""The reports of all nodes of a cloud on their devices, from Nova's database."""

from __future__ import annotations

from collections.abc import Sequence

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova import node_stats
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import make_printable_text
from nova_hpc_tools.snapshot.node_health import NodeHealth


def read_node_health(arguments: Sequence[str] = ()) -> tuple[NodeHealth, ...]:
    """Read the device reports of all compute nodes in all cells, sorted by host.

    :param arguments: as for :func:`nova_hpc_tools.readers.snapshot.read_snapshot`.
    :raises nova_hpc_tools.snapshot.SnapshotError: it cannot be read; the text names the cure.
    """
    snapshot.configure_nova(arguments)
    with snapshot.explain_read_errors():
        return collect_node_health()


def collect_node_health() -> tuple[NodeHealth, ...]:
    """Read the nodes like :func:`read_node_health`, with Nova's configuration already loaded."""
    context = nova_context.get_admin_context()
    nova_context.load_cells()
    health_reports: list[NodeHealth | None] = []
    for cell in nova_context.CELLS:
        try:
            with nova_context.target_cell(context, cell) as in_cell:
                nodes = objects.ComputeNodeList.get_all(in_cell)
        except Exception as error:
            if not cell.disabled:
                raise
            # Its database may be away. Its nodes are unknown.
            problem = f"the cell is disabled and cannot be read: {type(error).__name__}"
            name = make_printable_text(cell.name or cell.uuid)
            health_reports.append(NodeHealth(f"cell {name}", notes=(problem,)))
            continue
        health_reports += [_read_health_of_node(node) for node in nodes]
    return tuple(
        sorted((report for report in health_reports if report is not None), key=_host_key_of)
    )


def _host_key_of(node: NodeHealth) -> str:
    return node.host


def _read_health_of_node(node: objects.ComputeNode) -> NodeHealth | None:
    """Read a node's report on its devices from its record.

    None if none of its devices is this project's, or if it has not reported yet.
    """
    host = make_printable_text(node.hypervisor_hostname or node.host or "")
    word = node_stats.node_word_of_record(node)
    if word.out is not None:
        return NodeHealth(host, notes=(make_printable_text(word.out),))
    document = word.document
    if document is None:
        return None
    return NodeHealth(
        host,
        document.withheld,
        document.in_use,
        document.states,
        document.notes,
        document.left_out,
    )
