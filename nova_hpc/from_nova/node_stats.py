# SPDX-License-Identifier: Apache-2.0
"""The report in the stats of a compute node's record in Nova's database."""

from __future__ import annotations

from nova import objects

from nova_hpc.wire import stats, tags


def node_word_of_record(node: objects.ComputeNode) -> stats.NodeWord:
    """Return the node's report about its devices, and whether it may have ``hpc:`` servers."""
    values = node.stats if node.obj_attr_is_set("stats") else None
    pools = node.pci_device_pools if node.obj_attr_is_set("pci_device_pools") else None
    tagged = any(tags.has_tags(pool.tags or {}) for pool in pools or ())
    return stats.judge_node_stats((values or {}).get(stats.KEY), tagged)
