# SPDX-License-Identifier: Apache-2.0
"""Nova's own judgement of entries and aliases for ``nova-hpc doctor``, if Nova is installed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nova_hpc.topology.model import Node
from nova_hpc_tools.doctor import checks_entries
from nova_hpc_tools.doctor.checks_entries import Entries
from nova_hpc_tools.site import nova_rules, spec_entries
from nova_hpc_tools.site.nova_rules import PciSettings
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers


def read_entries_with_nova(
    root: Path | None, node: Node, nova: Any, expected: Iterable[str]
) -> Entries:
    """Read the entries of nova-compute, and Nova's refusals of them.

    Without Nova only this project's copy of Nova's rules is applied. Then *unasked* of the result
    has the reason if there are foreign entries or aliases.

    :param root: the folder with the node's files; None if unknown.
    :param nova: options with the groups ``[pci]`` and ``[filter_scheduler]``.
    :param expected: the entries that ``nova-hpc configure`` would write.
    """
    told = PciSettings(
        device_spec=tuple(nova.pci.device_spec),
        aliases=tuple(nova.pci.alias),
        report=nova.pci.report_in_placement,
        in_placement=nova.filter_scheduler.pci_in_placement,
    )
    ours, others = checks_entries.ours_and_others(told.device_spec)
    unasked = None
    refusals: Iterable[nova_rules.NovaRefusal] = ()
    if told.device_spec or told.aliases:
        try:
            refusals = cloud_readers.check_pci_settings(told, node, root or Path("/"))
        except SnapshotError as error:
            if told.report:
                refusals = nova_rules.placement_refusals_of(
                    spec_entries.split_entries(told.device_spec), node
                )
            if others or not all(map(checks_entries.is_plain, told.aliases)):
                unasked = str(error)
    if ours:
        mixed = nova_rules.driver_refusals(spec_entries.split_entries(told.device_spec), node)
        refused_names = {refusal.what for refusal in refusals}
        refusals = [*refusals, *(refusal for refusal in mixed if refusal.what not in refused_names)]
    return Entries(
        node=node,
        others=others,
        ours=ours,
        expected=tuple(expected),
        aliases=told.aliases,
        refusals=tuple(refusals),
        unasked=unasked,
    )
