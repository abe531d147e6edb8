# SPDX-License-Identifier: Apache-2.0
"""What only root may do, for a service that is not root: by oslo.privsep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oslo_privsep import capabilities, priv_context

from nova_hpc.tenancy import holders as tenancy_holders
from nova_hpc.tenancy import never_read
from nova_hpc.tenancy.holders import Holder
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.reset import HeldError, ResetError
from nova_hpc.tenancy.service_vm import binding
from nova_hpc.tenancy.service_vm.binding import BindError
from nova_hpc.topology import confspace
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import AddressError, normalise_address

default = priv_context.PrivContext(
    "virt_driver_patches",
    cfg_section="nova_hpc_privileged",
    pypath=f"{__name__}.default",
    # To write "reset", to read beyond the first 64 bytes of "config", to open VFIO groups
    # and disks, and to set virtual functions (see adapters_privileged).
    capabilities=[
        capabilities.CAP_DAC_OVERRIDE,
        capabilities.CAP_NET_ADMIN,
        capabilities.CAP_SYS_ADMIN,
    ],
)


@default.entrypoint
def _reset(root: str, address: str, timeout: float, folder: str) -> tuple[bool, str] | None:
    """Why the reset has failed, and whether somebody has the device; None: it has not."""
    try:
        hygiene_reset.reset(Path(root), address, timeout, Path(folder))
    except ResetError as error:
        return isinstance(error, HeldError), str(error)
    return None


@default.entrypoint
def _holders(root: str, addresses: list[str]) -> dict[str, tuple[str, bool]]:
    found = tenancy_holders.holders(Path(root), addresses)
    return {each: (one.text, one.certain) for each, one in found.items()}


@default.entrypoint
def _read_configs(root: str, addresses: list[str]) -> dict[str, bytes]:
    tree = Tree(Path(root))
    found = {}
    for address in addresses:
        try:
            path = f"{DEVICES}/{normalise_address(address)}/config"
            found[address] = tree.read(path, confspace.SIZE) or b""
        except (AddressError, FileError):
            continue
    return found


@default.entrypoint
def _bind(root: str, address: str, driver: str, timeout: float) -> str | None:
    """Why a device is not with a driver; None: it is."""
    try:
        binding.bind(Path(root), address, driver, timeout)
    except BindError as error:
        return str(error)
    return None


@default.entrypoint
def _read_vpd(root: str, address: str) -> tuple[bytes | None, str]:
    """The VPD, and why it cannot be read."""
    try:
        return never_read.read(Path(root), address), ""
    except FileError as error:
        return None, str(error)


def read_vpd(root: Path, address: str) -> bytes | None:
    """As :func:`nova_hpc.tenancy.never_read.read`."""
    try:
        data, why = _read_vpd(str(root), address)
    except Exception as error:  # the daemon has ended, or does not start
        text = f"the privileged helper of nova-compute does not answer ({type(error).__name__})"
        raise FileError(text) from error
    if why:
        raise FileError(why)
    found: bytes | None = data
    return found


def bind(root: Path, address: str, driver: str, timeout: float) -> None:
    """As :func:`nova_hpc.tenancy.service_vm.binding.bind`."""
    why = _bind(str(root), address, driver, timeout)
    if why is not None:
        raise BindError(why)


def reset(root: Path, address: str, timeout: float, folder: Path) -> None:
    """As :func:`nova_hpc.tenancy.hygiene.reset.reset`."""
    failed = _reset(str(root), address, timeout, str(folder))
    if failed is not None:
        held, why = failed
        raise HeldError(why) if held else ResetError(why)


def holders(root: Path, addresses: Iterable[str]) -> dict[str, Holder]:
    """As :func:`nova_hpc.tenancy.holders.holders`."""
    wanted = list(addresses)
    try:
        found = _holders(str(root), wanted)
    except Exception as error:  # the daemon has ended, or does not start
        why = f"the privileged helper of nova-compute does not answer ({type(error).__name__})"
        return dict.fromkeys(wanted, Holder(why, certain=False))
    return {each: Holder(text, certain) for each, (text, certain) in found.items()}


def read_configs(root: Path, addresses: Sequence[str]) -> Mapping[str, bytes]:
    """Address -> configuration space, as far as it can be read."""
    found: Mapping[str, bytes] = _read_configs(str(root), list(addresses))
    return found
