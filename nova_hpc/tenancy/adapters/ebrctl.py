# SPDX-License-Identifier: Apache-2.0
"""``ebrctl``: the command with which Nova plugs and unplugs an InfiniBand port (``ib_hostdev``).

Nova runs it through privsep, for a function that libvirt gives to the guest afterwards
(nova/virt/libvirt/vif.py: ``plug_ib_hostdev``; nova/privsep/libvirt.py: ``plug_infiniband_vif``,
all releases)::

    ebrctl add-port MAC SERVER PHYSICAL_NETWORK ib_hostdev PCI_ADDRESS
    ebrctl del-port PHYSICAL_NETWORK MAC

Upstream, only networking-mlnx has such a command. This one is installed as ``nova-hpc-ebrctl``, so
it replaces no other command; a link makes it Nova's. It sets the GUID for the MAC
(``derive_guid``) as the function's node GUID and port GUID, and removes it again. It needs no
service and stores nothing: ``del-port`` searches for the function with the GUID.

A function without a port gets GUIDs of zero and a link that is down. That is the driver's state
of a function that was never set (drivers/net/ethernet/mellanox/mlx5/core/sriov.c of Linux:
``sriov_restore_guids`` takes zero for "not set"), and no subnet manager makes a port of GUID zero
a member. The former GUID is not restored: it may have been another tenant's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nova_hpc.fabric.partitions.keys import derive_guid, format_guid
from nova_hpc.tenancy.adapters.function_changes import (
    FunctionChange,
    NoBackendError,
    make_function_changes,
)
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    LinkState,
    PortLayer,
    find_setting_differences,
    order_settings,
)
from nova_hpc.tenancy.adapters.virtual_functions import AdapterBackends, look_at_virtual_function
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc_common.outside.text import printable_text

_RDMA: Final = "/sys/class/infiniband"
_FUNCTION: Final = re.compile(r"virtfn\d{1,5}", re.ASCII)
_NOT_SET: Final = {"node_guid": 0, "port_guid": 0, "link_state": LinkState.DOWN}


def add_port(root: Path, mac: str, address: str) -> None:
    """Set the GUID of a port on a function; the function may already have it.

    Another function of this host with the GUID loses it first, because a fabric must not see a
    GUID twice.

    :param root: the folder that contains ``sys``.
    :param address: the function's PCI address.
    :raises AdapterError: it cannot be set; the text gives the reason.
    """
    guid = derive_guid(mac)
    tree = FileTree(root)
    with AdapterBackends(root) as backends:
        function = look_at_virtual_function(tree, address)
        if function.layer is not PortLayer.INFINIBAND:
            raise AdapterError(
                f"{address} is a function of an Ethernet port; ib_hostdev is for InfiniBand"
            )
        before = backends.of(function).read(function)
        holders, _ = _find_holders(tree, backends, guid)
        for other in holders:
            if other.address != function.address:
                _reset_function(backends, other)
        wanted = {"node_guid": guid, "port_guid": guid, "link_state": LinkState.AUTO}
        make_function_changes(backends.of, [FunctionChange(function, before, wanted)])


def delete_port(root: Path, mac: str) -> None:
    """Remove the GUID of a port from the functions of this host that have it, if any.

    :raises AdapterError: it cannot be removed.
    """
    guid = derive_guid(mac)
    with AdapterBackends(root) as backends:
        holders, unread = _find_holders(FileTree(root), backends, guid)
        for function in holders:
            _reset_function(backends, function)
    if unread:
        raise AdapterError(f"nobody knows whether another function has it: {'; '.join(unread)}")


def _reset_function(backends: AdapterBackends, function: AdapterFunction) -> None:
    backend = backends.of(function)
    # Take the link down first: a port without a GUID must not be up for a moment.
    for setting in order_settings(_NOT_SET, clearing=True):
        backend.write(function, setting)
    left = find_setting_differences(_NOT_SET, backend.read(function))
    if left:
        raise AdapterError(f"{function.address}: read back otherwise: {', '.join(left)}")


def _find_holders(
    tree: FileTree, backends: AdapterBackends, guid: int
) -> tuple[list[AdapterFunction], list[str]]:
    """Return the InfiniBand functions of this host with a GUID; and read errors of others."""
    holders, unread = [], []
    for address in _list_functions(tree):
        try:
            function = look_at_virtual_function(tree, address)
            if function.layer is not PortLayer.INFINIBAND:
                continue
            seen = backends.of(function).read(function)
        except NoBackendError:
            # No backend can set this function, so it has no GUID of this project.
            continue
        except AdapterError as error:
            unread.append(str(error))
            continue
        if guid in (seen.get("node_guid"), seen.get("port_guid")):
            holders.append(function)
    return holders, unread


def _list_functions(tree: FileTree) -> Iterator[str]:
    try:
        parents = {tree.target(f"{_RDMA}/{name}/device") for name in tree.names(_RDMA)}
        for parent in sorted(target.rpartition("/")[2] for target in parents if target):
            for name in tree.names(f"{DEVICES}/{parent}"):
                target = tree.target(f"{DEVICES}/{parent}/{name}") if _is_link(name) else None
                if target is not None:
                    yield target.rpartition("/")[2]
    except FileError as error:
        raise AdapterError(
            f"the InfiniBand adapters of this host cannot be read: {error}"
        ) from error


def _is_link(name: str) -> bool:
    return _FUNCTION.fullmatch(name) is not None


def main(arguments: Sequence[str] | None = None, root: Path = Path("/")) -> int:
    """Carry out Nova's command; return 0, or 1 with a line on standard error.

    Nova logs a failed ``add-port`` and continues: the guest starts with a function that is in no
    partition, so it is closed and not open, and its port becomes ``ERROR``.
    """
    options = _parse_arguments(arguments)
    try:
        if options.command == "add-port":
            add_port(root, options.mac, options.address)
        else:
            delete_port(root, options.mac)
    except (AdapterError, AddressError, OSError) as error:
        guid = format_guid(derive_guid(options.mac))
        line = f"ebrctl {options.command}: port {options.mac}, GUID {guid}: {error}"
        print(printable_text(line), file=sys.stderr)
        return 1
    return 0


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ebrctl", description="Sets GUIDs of InfiniBand functions for Nova (nova-hpc)."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add-port", help="give a function the GUID of a port")
    add.add_argument("mac", type=_read_mac, help="MAC address of the Neutron port")
    add.add_argument("server", help="the server's UUID; not used")
    add.add_argument("physical_network", help="not used: the function says where it is")
    add.add_argument("vif_type", choices=["ib_hostdev"])
    add.add_argument("address", type=_read_address, help="PCI address of the function")
    remove = commands.add_parser("del-port", help="take the GUID of a port back")
    remove.add_argument("physical_network", help="not used")
    remove.add_argument("mac", type=_read_mac, help="MAC address of the Neutron port")
    return parser.parse_args(arguments)


def _read_mac(text: str) -> str:
    try:
        derive_guid(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text.lower()


def _read_address(text: str) -> str:
    try:
        return normalise_address(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(printable_text(str(error))) from error


if __name__ == "__main__":
    sys.exit(main())
