# SPDX-License-Identifier: Apache-2.0
"""Finds the virtual function of an adapter at an address, and its backend."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from nova_hpc.tenancy.adapters.function_changes import AdapterBackend, NoBackendError
from nova_hpc.tenancy.adapters.mlx5 import Mlx5Backend
from nova_hpc.tenancy.adapters.netlink import NetlinkBackend
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    AdapterSetting,
    PortLayer,
    layer_of,
)
from nova_hpc.topology import classes, device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.function_places import place_functions
from nova_hpc.topology.model import AddressError, Node, PciFunction, normalise_address

_LINK: Final = re.compile(r"virtfn(\d{1,5})", re.ASCII)


class SettingWriter(Protocol):
    """Interface of a function that writes one setting through a process with more rights."""

    def __call__(self, root: Path, function: AdapterFunction, setting: AdapterSetting) -> None:
        """See :meth:`nova_hpc.tenancy.adapters.function_changes.AdapterBackend.write`."""


def parent_of(node: Node, address: str) -> PciFunction | None:
    """Return the adapter of the virtual function at *address*; None if none has it."""
    function = node.function(address)
    if function is None or function.physical_function is None:
        return None
    parent = node.function(function.physical_function)
    return parent if parent and classes.is_adapter(parent.class_code) else None


def index_of(tree: FileTree, parent: str, address: str) -> int:
    """Return the number of the virtual function at *address* on its adapter *parent*.

    :raises AdapterError: the adapter does not have it.
    """
    folder = f"{DEVICES}/{parent}"
    try:
        for name in tree.names(folder):
            match = _LINK.fullmatch(name)
            target = tree.target(f"{folder}/{name}") if match else None
            if match and target is not None and target.rpartition("/")[2] == address:
                return int(match[1])
    except FileError as error:
        raise AdapterError(f"{address}: {error}") from error
    raise AdapterError(f"{address} is no virtual function of {parent} any more")


def find_virtual_function(tree: FileTree, node: Node, address: str) -> AdapterFunction:
    """Return the virtual function at *address*, with data of its adapter.

    :param tree: the tree of the reading; the function's number is not in the inventory.
    :raises NoBackendError: its port's layer is unknown, or no backend
        can set it.
    :raises AdapterError: there is no such virtual function.
    """
    parent = parent_of(node, address)
    if parent is None:
        raise AdapterError(f"{address} is no virtual function of a network adapter of this node")
    if parent.driver is None:
        raise NoBackendError(f"{parent.address}, the adapter of {address}, is bound to no driver")
    layer = layer_of(parent)
    if layer is None:
        raise NoBackendError(
            f"{parent.address}, the adapter of {address}, does not say whether its port is "
            "Ethernet or InfiniBand"
        )
    function = AdapterFunction(
        address=address,
        index=index_of(tree, parent.address, address),
        layer=layer,
        driver=parent.driver,
        net=next((name[4:] for name in parent.os_devices if name.startswith("net ")), None),
        rdma=next((rdma_device.name for rdma_device in parent.rdma), None),
    )
    _expect_backend(tree, function)
    return function


def look_at_virtual_function(tree: FileTree, address: str) -> AdapterFunction:
    """Return the virtual function like :func:`find_virtual_function`, reading only two functions.

    :raises AddressError: *address* is not an address.
    """
    address = normalise_address(address)
    parent = ""
    try:
        target = tree.target(f"{DEVICES}/{address}/physfn")
        parent = "" if target is None else normalise_address(target.rpartition("/")[2])
    except (AddressError, FileError) as error:
        raise AdapterError(f"{address}: {error}") from error
    if not parent:
        raise AdapterError(f"{address} is no virtual function of a network adapter of this node")
    raws = [device.read_pci_function(tree, place_address) for place_address in (parent, address)]
    functions, _ = place_functions(raws, (), {})
    return find_virtual_function(tree, Node(source="", functions=tuple(functions)), address)


def _expect_backend(tree: FileTree, function: AdapterFunction) -> None:
    """Check that a backend can set a function.

    GUIDs need a network device (IPoIB) or the files of NVIDIA's driver. Ethernet needs a
    network device whose adapter is not in switchdev mode.

    :raises NoBackendError: no backend can set it.
    """
    if function.layer is PortLayer.INFINIBAND:
        if function.net is None and not Mlx5Backend.has(tree, function):
            raise NoBackendError(
                f"{function.address}: its adapter has no network device; GUIDs of virtual "
                "functions need the module ib_ipoib, or NVIDIA's own driver (DOCA-OFED)"
            )
        return
    if function.net is None:
        raise NoBackendError(f"{function.address}: its adapter has no network device")
    switch = None
    # Reading the file fails if the driver does not support it.
    with contextlib.suppress(FileError):
        switch = tree.text(f"/sys/class/net/{function.net}/phys_switch_id")
    if switch:
        raise NoBackendError(
            f"{function.address}: its adapter is in switchdev mode, in which the switch of the "
            "host decides about its functions"
        )


class AdapterBackends:
    """Cache of the adapter backends of one operation; a context manager, for one thread."""

    def __init__(self, root: Path, write: SettingWriter | None = None) -> None:
        """Open nothing yet.

        :param write: makes settings in place of the backends themselves.
        """
        self._root = root
        self._write = write
        self._netlink: NetlinkBackend | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> AdapterBackends:
        """See the class."""
        self._stack.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the open backends."""
        self._stack.close()

    def of(self, function: AdapterFunction) -> AdapterBackend:
        """Return the backend of a function.

        :raises AdapterError: it cannot be opened.
        """
        if function.layer is PortLayer.INFINIBAND and Mlx5Backend.has(
            FileTree(self._root), function
        ):
            backend: AdapterBackend = Mlx5Backend(self._root)
        else:
            if self._netlink is None:
                self._netlink = self._stack.enter_context(NetlinkBackend.session())
            backend = self._netlink
        return backend if self._write is None else _HelperBackend(self._root, backend, self._write)


class _HelperBackend:
    """Adapter backend that reads settings in this process and writes them through *write*.

    *write* passes each setting to a helper process with more rights.
    """

    def __init__(
        self,
        root: Path,
        backend: AdapterBackend,
        write: Callable[[Path, AdapterFunction, AdapterSetting], None],
    ) -> None:
        self._root = root
        self._write = write
        self.read = backend.read

    def write(self, function: AdapterFunction, setting: AdapterSetting) -> None:
        """Write one setting of an adapter's function through the helper process; return nothing."""
        self._write(self._root, function, setting)
