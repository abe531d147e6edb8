# SPDX-License-Identifier: Apache-2.0
"""What only root may do, for a service that is not root: by oslo.privsep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from oslo_privsep import capabilities, priv_context

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.topology import confspace
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import AddressError, normalise_address

default = priv_context.PrivContext(
    "virt_driver_patches",
    cfg_section="nova_hpc_privileged",
    pypath=f"{__name__}.default",
    # To write "reset", to read beyond the first 64 bytes of "config", and to set
    # virtual functions (see adapters_privileged).
    capabilities=[
        capabilities.CAP_DAC_OVERRIDE,
        capabilities.CAP_NET_ADMIN,
        capabilities.CAP_SYS_ADMIN,
    ],
)


@default.entrypoint
def _reset(root: str, address: str, timeout: float, folder: str) -> str | None:
    """Why the reset has failed; None: it has not."""
    try:
        hygiene_reset.reset(Path(root), address, timeout, Path(folder))
    except ResetError as error:
        return str(error)
    return None


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


def reset(root: Path, address: str, timeout: float, folder: Path) -> None:
    """As :func:`nova_hpc.tenancy.hygiene.reset.reset`."""
    why = _reset(str(root), address, timeout, str(folder))
    if why is not None:
        raise ResetError(why)


def read_configs(root: Path, addresses: Sequence[str]) -> Mapping[str, bytes]:
    """Address -> configuration space, as far as it can be read."""
    found: Mapping[str, bytes] = _read_configs(str(root), list(addresses))
    return found
