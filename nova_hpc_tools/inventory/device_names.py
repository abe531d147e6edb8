# SPDX-License-Identifier: Apache-2.0
"""Names that people have for the devices of a node."""

from __future__ import annotations

import logging

import attrs

from nova_hpc.topology.model import Node

LOG = logging.getLogger(__name__)


def with_names(node: Node) -> Node:
    """Fill in :attr:`PciFunction.model` of a node that was read from ``/``.

    The kernel has numbers; udev's hardware database has ``GH100 [H100 SXM5 80GB]``.
    For people only, so where udev is missing or silent there are no names.
    """
    try:
        # pyudev loads libudev when it is imported; it may not be there.
        import pyudev

        devices = pyudev.Context().list_devices(subsystem="pci")
        names = {device.sys_name: device.get("ID_MODEL_FROM_DATABASE") for device in devices}
    except (ImportError, OSError, ValueError) as error:
        LOG.debug("no names from udev: %s", error)
        return node
    return attrs.evolve(
        node,
        functions=tuple(
            attrs.evolve(function, model=names.get(function.address) or function.model)
            for function in node.functions
        ),
    )
