# SPDX-License-Identifier: Apache-2.0
"""Product names of the devices of a node."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import attrs

from nova_hpc.topology.model import Node
from nova_hpc_tools.inventory import pci_names

LOG = logging.getLogger(__name__)


def with_names(node: Node) -> Node:
    """Fill in :attr:`PciFunction.model` of a node that was read from ``/``.

    The kernel has only numbers; udev's hardware database and the file ``pci.ids`` have
    ``GH100 [H100 SXM5 80GB]``. The names are only for people, so both sources may be missing.
    """
    names = _ask_udev()
    unnamed = {
        (function.vendor_id, function.product_id)
        for function in node.functions
        if function.vendor_id and function.product_id and not names.get(function.address)
    }
    products = pci_names.read_product_names(unnamed) if unnamed else {}
    return attrs.evolve(
        node,
        functions=tuple(
            attrs.evolve(
                function,
                model=names.get(function.address)
                or function.model
                or products.get((function.vendor_id or "", function.product_id or "")),
            )
            for function in node.functions
        ),
    )


def _ask_udev() -> Mapping[str, str | None]:
    try:
        # The import of pyudev loads libudev, which may be missing.
        import pyudev

        devices = pyudev.Context().list_devices(subsystem="pci")
        return {device.sys_name: device.get("ID_MODEL_FROM_DATABASE") for device in devices}
    except (ImportError, OSError, ValueError) as error:
        LOG.debug("no names from udev: %s", error)
        return {}
