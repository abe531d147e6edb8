# SPDX-License-Identifier: Apache-2.0
"""The subnet manager that an option names, by its entry point."""

from __future__ import annotations

from typing import Any, Final

from stevedore import driver, exception

from nova_hpc.fabric.partitions.backends.base import Capabilities, SubnetManager, SubnetManagerError

NAMESPACE: Final = "nova_hpc.subnet_managers"


def read_capabilities(name: str) -> Capabilities:
    """Return the features of a subnet manager, without starting any part of it.

    :param name: of the entry point: ``opensm``.
    :raises SubnetManagerError: no entry point has that name.
    """
    found: Capabilities = _load_class(name).capabilities
    return found


def make_subnet_manager(name: str, conf: Any) -> SubnetManager:
    """Create the subnet manager with that name.

    :param conf: the group ``[hpc_fabric_agent]``.
    :raises SubnetManagerError: no entry point has the name, or its options cannot be used.
    """
    manager: SubnetManager = _load_class(name)(conf)
    return manager


def _load_class(name: str) -> Any:
    try:
        return driver.DriverManager(NAMESPACE, name, invoke_on_load=False).driver
    except (exception.NoMatches, exception.MultipleMatches, ImportError) as error:
        cure = "; install the wheel nova-hpc-ufm" if name == "ufm" else ""
        raise SubnetManagerError(
            f"subnet_manager {name!r} cannot be loaded: it is none of the entry points "
            f"{NAMESPACE} ({error}){cure}"
        ) from error
