# SPDX-License-Identifier: Apache-2.0
"""What only root may do, for a service that is not root: by oslo.privsep.

The service says which device and no more. Where ``sys`` is, where locks are kept, how long
is waited and which drivers there are for devices, the daemon reads in its own
configuration: a service that was taken over cannot have it write elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_config import cfg
from oslo_privsep import capabilities, priv_context

from nova_hpc import conf as hpc_conf
from nova_hpc.tenancy import forbidden_vpd as never_read
from nova_hpc.tenancy import holders as tenancy_holders
from nova_hpc.tenancy.holders import Holder
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.reset import HeldError, ResetError
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.service_vm import binding
from nova_hpc.tenancy.service_vm.binding import BindError
from nova_hpc.topology import confspace, handles
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

#: Seconds for a driver to take or to leave a device.
_BIND: Final = 60.0
#: More functions than any machine has.
_MOST: Final = 1 << 16
#: Address -> drivers from which it was taken: it may go back.
_had: Final[dict[str, set[str]]] = {}
_NO_ANSWER: Final = "the privileged helper of nova-compute does not answer ({})"


class SettingsError(Exception):
    """The daemon's own configuration cannot be used, or is not that of the service."""


@attrs.frozen
class Settings:
    """What the daemon goes by."""

    root: Path
    #: Beside it the locks of resets are kept.
    ledger: LedgerFile
    #: Seconds.
    reset_timeout: float
    #: Those of the host to which a device may be given.
    drivers: frozenset[str]
    #: A word of :class:`nova_hpc.topology.peer_wish.Wish`.
    peer_to_peer: str

    @classmethod
    def of(cls, conf: Any) -> Settings:
        """As a configuration says."""
        return cls(
            root=Path(conf.hpc.sysfs_root),
            ledger=LedgerFile.from_options(conf.hpc),
            reset_timeout=float(conf.hpc.reset_timeout),
            drivers=frozenset(conf.hpc.clean_drivers.values()),
            peer_to_peer=conf.hpc.peer_to_peer,
        )

    def words(self) -> dict[str, str]:
        """The same for people, by option."""
        return {
            "sysfs_root": str(self.root),
            "ledger_file": str(self.ledger.path),
            "reset_timeout": f"{self.reset_timeout:g}",
            "clean_drivers": " ".join(sorted(self.drivers)),
            "peer_to_peer": self.peer_to_peer,
        }


def settings() -> Settings:
    """What the daemon's own configuration says; for functions that run in the daemon.

    :raises SettingsError: others than root may write where it would write.
    """
    # ``state_path`` is Nova's.
    import nova.conf  # noqa: F401

    hpc_conf.register(cfg.CONF)
    found = Settings.of(cfg.CONF)
    try:
        state = os.stat(found.root)  # noqa: PTH116
    except OSError as error:
        raise SettingsError(f"[hpc]sysfs_root: {error}") from error
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(
            f"[hpc]sysfs_root: others than root may write in {found.root}; on a compute node it "
            "is /"
        )
    return found


# -- in the daemon ----------------------------------------------------------------------


@default.entrypoint
def _words() -> dict[str, str]:
    return settings().words()


@default.entrypoint
def _reset(address: str) -> tuple[bool, str] | None:
    """Why the reset has failed, and whether somebody has the device; None: it has not."""
    own = settings()
    try:
        hygiene_reset.reset(own.root, address, own.reset_timeout, own.ledger.locks)
    except (AddressError, ResetError) as error:
        return isinstance(error, HeldError), str(error)
    return None


@default.entrypoint
def _holders(addresses: list[str]) -> dict[str, tuple[str, bool]]:
    found = tenancy_holders.holders(settings().root, addresses[:_MOST])
    return {each: (one.text, one.certain) for each, one in found.items()}


@default.entrypoint
def _read_configs(addresses: list[str]) -> dict[str, bytes]:
    root = settings().root
    found = {}
    for address in addresses[:_MOST]:
        try:
            path = f"{DEVICES}/{normalise_address(address)}/config"
            with handles.kernel_file(root, path) as file:
                if file is not None:
                    found[address] = handles.read(file, confspace.SIZE)
        except (AddressError, FileError, OSError):
            continue
    return found


@default.entrypoint
def _bind(address: str, driver: str) -> str | None:
    """Why a device is not with a driver; None: it is."""
    own = settings()
    try:
        address = normalise_address(address)
        tree = Tree(own.root)
        before = binding.driver_of(tree, address)
        known = own.drivers | binding.drivers_for_guests(tree, address) | _had.get(address, set())
        if driver not in {*known, before}:
            names = ", ".join(sorted(known))
            return f"it may be bound to {names} ([hpc]clean_drivers), and not to {driver[:40]!r}"
        binding.bind(own.root, address, driver, _BIND)
    except (AddressError, BindError, FileError) as error:
        return str(error)
    if before not in (None, driver):
        _had.setdefault(address, set()).add(before)
    return None


@default.entrypoint
def _read_vpd(address: str) -> tuple[bytes | None, str]:
    """The VPD, and why it cannot be read."""
    try:
        return never_read.read(settings().root, address), ""
    except (AddressError, FileError) as error:
        return None, str(error)


# -- in the service ---------------------------------------------------------------------


def expect_same(conf: Any) -> None:
    """Start the daemon, and see whether it goes by the same configuration.

    :raises SettingsError: it does not, or cannot use its own.
    """
    mine, other = Settings.of(conf).words(), _words()
    for option, value in mine.items():
        if other.get(option) != value:
            raise SettingsError(
                f"the privileged helper goes by another configuration: [hpc]{option} is "
                f"{other.get(option)!r} there and {value!r} here; give it the same files by "
                "[nova_hpc_privileged]helper_command, and restart nova-compute"
            )


def read_vpd(address: str) -> bytes | None:
    """As :func:`nova_hpc.tenancy.forbidden_vpd.read`."""
    try:
        data, why = _read_vpd(address)
    except Exception as error:  # the daemon has ended, or does not start
        raise FileError(_silence(error)) from error
    if why:
        raise FileError(why)
    found: bytes | None = data
    return found


def bind(root: Path, address: str, driver: str, timeout: float) -> None:
    """As :func:`nova_hpc.tenancy.service_vm.binding.bind`.

    :param root: the daemon's own; it is not told.
    :param timeout: likewise.
    """
    try:
        why = _bind(address, driver)
    except SettingsError as error:
        why = str(error)
    if why is not None:
        raise BindError(why)


def reset(address: str) -> None:
    """As :func:`nova_hpc.tenancy.hygiene.reset.reset`."""
    try:
        failed = _reset(address)
    except SettingsError as error:
        raise ResetError(str(error)) from error
    if failed is not None:
        held, why = failed
        raise HeldError(why) if held else ResetError(why)


def holders(addresses: Iterable[str]) -> dict[str, Holder]:
    """As :func:`nova_hpc.tenancy.holders.holders`."""
    wanted = list(addresses)
    try:
        found = _holders(wanted)
    except Exception as error:  # the daemon has ended, or does not start
        return dict.fromkeys(wanted, Holder(_silence(error), certain=False))
    return {each: Holder(text, certain) for each, (text, certain) in found.items()}


def read_configs(addresses: Sequence[str]) -> Mapping[str, bytes]:
    """Address -> configuration space, as far as it can be read."""
    found: Mapping[str, bytes] = _read_configs(list(addresses))
    return found


def _silence(error: Exception) -> str:
    return (
        str(error) if isinstance(error, SettingsError) else _NO_ANSWER.format(type(error).__name__)
    )
