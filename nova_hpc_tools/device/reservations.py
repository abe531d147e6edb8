# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device list --reserved``: reservations in Placement for this node's devices.

It reads only the ledger, so it works if nova-compute does not run, and after the driver was
switched back to Nova's own. It lists every reservation that this project has left, with the
command that lifts it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from nova_hpc.tenancy.ledger import LedgerFile, expect_whole
from nova_hpc.topology.model import address_key
from nova_hpc.wire.reservation import ReservedProvider
from nova_hpc_tools.base import CommandAnswer
from nova_hpc_tools.site import service_settings

_COLUMNS: Final = ("Address", "Provider", "Class", "Total", "Withheld", "Operator", "Lift")


def list_reserved(config: Sequence[str]) -> CommandAnswer:
    """List the reservations of this node, with the command that lifts each.

    nova-compute lifts its own reservations when a device is well again, and when
    ``[pci]device_spec`` has no ``hpc_*`` tags any more. The commands are for a node whose
    nova-compute runs another driver.

    :param config: ``--config-file`` and ``--config-dir`` options of nova-compute.
    :raises LedgerError: there is no ledger, or a damaged one without reservations.
    """
    options = service_settings.read_node_options(config, ("ledger_file",))
    file = LedgerFile.from_options(options.hpc)
    ledger = file.existing()
    providers = sorted(ledger.providers.items(), key=lambda item: address_key(item[0]))
    rows = [_format_reservation_row(address, provider) for address, provider in providers]
    print(f"Ledger: {file.path}", file=sys.stderr)
    for problem in ledger.problems:
        print(f"Problem: {problem}", file=sys.stderr)
    if not rows:
        expect_whole(ledger)
    return CommandAnswer(_COLUMNS, rows, nothing="Nothing is reserved in Placement.")


def _format_reservation_row(address: str, provider: ReservedProvider) -> tuple[object, ...]:
    lift = ""
    if provider.reserved > provider.operators or provider.earlier is not None:
        left = min(provider.operators, provider.total)
        lift = (
            "openstack resource provider inventory set --amend --resource "
            f"{provider.resource_class}:reserved={left} {provider.uuid}"
        )
    return (
        address,
        provider.uuid,
        provider.resource_class,
        provider.total,
        provider.ours,
        provider.operators,
        lift,
    )
