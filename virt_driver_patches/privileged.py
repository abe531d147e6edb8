# SPDX-License-Identifier: Apache-2.0
"""Actions that need root, for a service that does not run as root. Uses oslo.privsep.

A request contains the address of a device, for an adapter also the setting, and for a reset that
the device's cleaner declares its name. The daemon itself finds the adapter, the number of the
function there, the file or program of the reset and the bits for ports of switches. It reads
``sysfs_root``, the folder of the locks, the deadlines, the drivers and the cleaners in its own
configuration: a service that an attacker controls cannot make it write elsewhere.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from oslo_config import cfg
from oslo_privsep import capabilities, priv_context

from nova_hpc import conf as hpc_conf
from nova_hpc.placement.segment_shape import MOST_PARTS
from nova_hpc.tenancy import forbidden_vpd
from nova_hpc.tenancy import holders as tenancy_holders
from nova_hpc.tenancy.adapters import settings, virtual_functions
from nova_hpc.tenancy.adapters.function_changes import UnsupportedError
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    AdapterSetting,
    LinkState,
)
from nova_hpc.tenancy.adapters.virtual_functions import AdapterBackends
from nova_hpc.tenancy.holders import KernelHolder
from nova_hpc.tenancy.hygiene import cleaner
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.hygiene.cleaner import CleanerError
from nova_hpc.tenancy.hygiene.own_reset import OwnReset
from nova_hpc.tenancy.hygiene.reset import HeldError, ResetError
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.peer import acs_registers
from nova_hpc.tenancy.peer.acs_registers import PeerOutcome
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_file import SegmentError, SegmentFolder
from nova_hpc.tenancy.segments.segment_record import SegmentFileName
from nova_hpc.tenancy.stage import binding, host, process
from nova_hpc.tenancy.stage.binding import BindError
from nova_hpc.tenancy.stage.process import LateError
from nova_hpc.topology import confspace, handles, sysfs
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import AddressError, normalise_address
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.wire import tags

default = priv_context.PrivContext(
    "virt_driver_patches",
    cfg_section="nova_hpc_privileged",
    pypath=f"{__name__}.default",
    # For writing "reset", reading beyond the first 64 bytes of "config", opening VFIO groups
    # and disks, and setting virtual functions.
    capabilities=[
        capabilities.CAP_DAC_OVERRIDE,
        capabilities.CAP_NET_ADMIN,
        capabilities.CAP_SYS_ADMIN,
    ],
)

#: Seconds that a driver may take to bind or to release a device.
_BIND: Final = 60.0
#: Upper limit of a request's devices; no machine has more functions.
_MOST: Final = 1 << 16
#: Address -> drivers that the daemon unbound it from; it may be bound to them again.
_had: Final[dict[str, set[str]]] = {}
#: Settings that consist of two numbers.
_PAIRS: Final = ("vlan", "rate")
_NO_ANSWER: Final = "the privileged helper of nova-compute does not answer ({})"


class SettingsError(Exception):
    """Raised if the daemon's configuration is unusable, or differs from nova-compute's."""


@attrs.frozen
class HelperSettings:
    """Settings of the privileged daemon, which reads them from its own configuration files."""

    root: Path
    #: The locks of resets are stored beside this file.
    ledger: LedgerFile
    #: Seconds.
    reset_timeout: float
    #: Host drivers that a device may be bound to.
    drivers: frozenset[str]
    #: Seconds that the erase of a disk may take.
    clean_timeout: float
    #: A value of :class:`nova_hpc.topology.peer_wish.PeerWish`.
    peer_to_peer: str
    #: Role -> cleaner, an entry point.
    cleaners: Mapping[str, str] = attrs.field(hash=False)
    #: Entries of ``[pci]device_spec``: they give devices their roles.
    device_spec: tuple[str, ...]

    @classmethod
    def of(cls, conf: Any) -> HelperSettings:
        """Build the settings from oslo.config's object, with the groups ``[hpc]`` and ``[pci]``."""
        return cls(
            root=Path(conf.hpc.sysfs_root),
            ledger=LedgerFile.from_options(conf.hpc),
            reset_timeout=float(conf.hpc.reset_timeout),
            drivers=frozenset(conf.hpc.clean_drivers.values()),
            clean_timeout=float(conf.hpc.clean_timeout),
            peer_to_peer=conf.hpc.peer_to_peer,
            cleaners=conf.hpc.cleaners,
            device_spec=tuple(conf.pci.device_spec),
        )

    def words(self) -> dict[str, str]:
        """Map each option's name to its value as text, so that two processes can compare theirs."""
        return {
            "sysfs_root": str(self.root),
            "ledger_file": str(self.ledger.path),
            "reset_timeout": f"{self.reset_timeout:g}",
            "clean_drivers": " ".join(sorted(self.drivers)),
            "clean_timeout": f"{self.clean_timeout:g}",
            "peer_to_peer": self.peer_to_peer,
            **self._words_of_cleaners(),
        }

    def _words_of_cleaners(self) -> dict[str, str]:
        """Map "cleaners" and "device_spec" to text; {} if no cleaner declares resets of its own.

        A cleaner that cannot be loaded counts as one that declares resets.
        """
        words = []
        declared = False
        for role, name in sorted(self.cleaners.items()):
            try:
                resets = cleaner.find_cleaner_class(name).resets
            except CleanerError as error:
                words.append(f"{role}:{name} ({error})")
                declared = True
                continue
            declared = declared or bool(resets)
            words.append(f"{role}:{name}{' ' if resets else ''}{'; '.join(map(repr, resets))}")
        if not declared:
            return {}
        return {"cleaners": ", ".join(words), "device_spec": "\n".join(self.device_spec)}


def read_helper_settings() -> HelperSettings:
    """Read the daemon's own configuration; for functions that run in the daemon.

    :raises SettingsError: ``[hpc]sysfs_root`` is missing, or users other than root can write to it.
    """
    # Nova defines ``state_path``.
    import nova.conf  # noqa: F401

    hpc_conf.register_all_options(cfg.CONF)
    own_settings = HelperSettings.of(cfg.CONF)
    try:
        state = os.stat(own_settings.root)  # noqa: PTH116
    except OSError as error:
        raise SettingsError(f"[hpc]sysfs_root: {error}") from error
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(
            f"[hpc]sysfs_root: others than root may write in {own_settings.root}; on a "
            f"compute node it "
            "is /"
        )
    return own_settings


# -- in the daemon ----------------------------------------------------------------------


@default.entrypoint
def _helper_words_of_settings() -> dict[str, str]:
    return read_helper_settings().words()


@default.entrypoint
def _reset_in_helper(address: str, name: str | None = None) -> tuple[bool, str] | None:
    """Reset a device. Returns None, or whether it is in use and the reason of the failure.

    :param name: of a reset that the device's cleaner declares; None: the kernel's.
    """
    own = read_helper_settings()
    try:
        address = normalise_address(address)
        declared = None if name is None else _find_declared_reset(own, address, name)
        hygiene_reset.reset_device(own.root, address, own.reset_timeout, own.ledger.locks, declared)
    except (AddressError, CleanerError, ResetError) as error:
        return isinstance(error, HeldError), str(error)
    return None


def _find_declared_reset(own: HelperSettings, address: str, name: str) -> OwnReset:
    """Find a reset of the cleaner that the daemon's own configuration gives a device.

    :raises CleanerError: the cleaner declares none of that name.
    """
    # Not needed for anything else here, and large.
    from nova_hpc.from_nova.claim import Specs

    node = sysfs.read_sysfs_node(own.root, hygiene_reset.list_busy_resets(own.ledger.locks))
    offer = Specs.parse(own.device_spec).offers(node).get(address)
    if offer is None:
        raise CleanerError("no entry of [pci]device_spec offers it, so it has no cleaner")
    return cleaner.find_declared_reset(own.cleaners, offer[1].get(tags.ROLE), name)


@default.entrypoint
def _find_holders_in_helper(addresses: list[str]) -> dict[str, tuple[str, bool]]:
    holders_found = tenancy_holders.find_kernel_holders(
        read_helper_settings().root, addresses[:_MOST]
    )
    return {address: (holder.text, holder.certain) for address, holder in holders_found.items()}


@default.entrypoint
def _read_configs_in_helper(addresses: list[str]) -> dict[str, bytes]:
    root = read_helper_settings().root
    configs = {}
    for address in addresses[:_MOST]:
        try:
            path = f"{DEVICES}/{normalise_address(address)}/config"
            with handles.kernel_file(root, path) as file:
                if file is not None:
                    configs[address] = handles.read_held_file(file, confspace.SIZE)
        except (AddressError, FileError, OSError):
            continue
    return configs


@default.entrypoint
def _bind_in_helper(address: str, driver: str) -> str | None:
    """Bind a device to a driver. Return the reason of a failure, None on success."""
    own = read_helper_settings()
    try:
        address = normalise_address(address)
        tree = FileTree(own.root)
        before = binding.driver_of(tree, address)
        allowed = own.drivers | binding.drivers_for_guests(tree, address) | _had.get(address, set())
        if driver not in {*allowed, before}:
            names = ", ".join(sorted(allowed))
            return f"it may be bound to {names} ([hpc]clean_drivers), and not to {driver[:40]!r}"
        binding.bind_device(own.root, address, driver, _BIND)
    except (AddressError, BindError, FileError) as error:
        return str(error)
    if before not in (None, driver):
        _had.setdefault(address, set()).add(before)
    return None


@default.entrypoint
def _erase_disk_in_helper(address: str) -> tuple[str, str]:
    """Erase an unused NVMe disk that this daemon has taken from a VFIO driver.

    :returns: the output of its check, and the reason if there is none.
    """
    own = read_helper_settings()
    try:
        address = normalise_address(address)
        lent = _had.get(address, set()) & binding.drivers_for_guests(FileTree(own.root), address)
        if not lent or host.ERASE not in own.drivers:
            return "", "it was not taken from a VFIO driver to be erased ([hpc]clean_drivers)"
        user = tenancy_holders.find_kernel_holders(own.root, [address]).get(address)
        if user is not None:
            return "", user.text
        argv = host.build_check_command(own.root, address, [host.ERASE], {})
        return process.run_stage_program(argv, own.clean_timeout), ""
    except (AddressError, FileError, LateError) as error:
        return "", str(error)


@default.entrypoint
def _read_vpd_in_helper(address: str) -> tuple[bytes | None, str]:
    """Return the VPD, and the reason if it cannot be read."""
    try:
        return forbidden_vpd.read_vpd_in_time(read_helper_settings().root, address), ""
    except (AddressError, FileError) as error:
        return None, str(error)


@default.entrypoint
def _write_setting_in_helper(address: str, name: str, value: object) -> tuple[bool, str] | None:
    """Make a setting. Return None, or whether the driver lacks it, and why it failed."""
    root = read_helper_settings().root
    try:
        setting = settings.check_setting(name, _parse_helper_value(name, value))
        function = virtual_functions.look_at_virtual_function(FileTree(root), address)
        with AdapterBackends(root) as backends:
            backends.of(function).write(function, setting)
    except (AdapterError, AddressError) as error:
        return isinstance(error, UnsupportedError), str(error)
    return None


def _parse_helper_value(name: str, value: object) -> object:
    try:
        if name == "link_state":
            return LinkState(value)
        # The channel turns tuples into lists, and GUIDs are sent as hexadecimal text.
        if name in _PAIRS:
            return tuple(value)  # type: ignore[arg-type]
        return int(str(value), 16) if name.endswith("_guid") else value
    except (TypeError, ValueError) as error:
        raise AdapterError(f"{str(value)[:40]!r} is no value of {name[:40]!r}") from error


@default.entrypoint
def _apply_wish_in_helper() -> tuple[str, list[str], dict[str, str], list[str]]:
    own = read_helper_settings()
    outcome = acs_registers.apply_peer_wish(own.root, PeerWish(own.peer_to_peer))
    return own.peer_to_peer, list(outcome.made), dict(outcome.failed), list(outcome.lacks)


@default.entrypoint
def _write_members_in_helper(file: str, members: list[list[Any]]) -> str | None:
    """Write the owner of each part into shared memory. Return the reason of a failure, or None."""
    read_helper_settings()
    name = segment_record.parse_file_name(file)
    try:
        servers = {int(part): str(uuid.UUID(server)) for part, server in members[:MOST_PARTS]}
        path = Path(cfg.CONF.hpc.shared_memory_dir)
        if name is None:
            return f"{file[:40]!r} is no file of shared memory"
        # SegmentFolder checks that only the owner, the service, can write to the folder.
        SegmentFolder(path, owner=path.lstat().st_uid).write_members(name, servers)
    except (OSError, SegmentError, TypeError, ValueError) as error:
        return str(error)
    return None


# -- in the service ---------------------------------------------------------------------


def expect_same_settings(conf: Any) -> None:
    """Start the daemon, and compare its configuration with the service's.

    :raises SettingsError: they differ, or the daemon's own is unusable.
    """
    own_words, helper_words = HelperSettings.of(conf).words(), _helper_words_of_settings()
    for option, value in own_words.items():
        if helper_words.get(option) != value:
            raise SettingsError(
                f"the privileged helper goes by another configuration: [hpc]{option} is "
                f"{helper_words.get(option)!r} there and {value!r} here; give it the same files by "
                "[nova_hpc_privileged]helper_command, and restart nova-compute"
            )


def read_vpd_by_helper(address: str) -> bytes | None:
    """Read a device's VPD in the daemon, as ``nova_hpc.tenancy.forbidden_vpd.read_vpd_in_time``.

    :raises FileError: the VPD is unreadable, or the daemon does not answer.
    """
    try:
        data, reason = _read_vpd_in_helper(address)
    except Exception as error:  # the daemon has ended, or does not start
        raise FileError(_word_silent_helper(error)) from error
    if reason:
        raise FileError(reason)
    vpd: bytes | None = data
    return vpd


def bind_by_helper(root: Path, address: str, driver: str, timeout: float) -> None:
    """Bind a device in the daemon, as :func:`nova_hpc.tenancy.stage.binding.bind_device` does.

    :param root: unused: the daemon uses its own setting.
    :param timeout: unused, for the same reason.
    :raises BindError: the device cannot be bound.
    """
    try:
        reason = _bind_in_helper(address, driver)
    except SettingsError as error:
        reason = str(error)
    if reason is not None:
        raise BindError(reason)


def erase_disk_by_helper(address: str) -> str:
    """Erase an NVMe disk in the daemon, and return the output of the check ``nvme``.

    See :mod:`nova_hpc.tenancy.hygiene.clean_nvme`.

    :raises LateError: there is no output.
    """
    try:
        answer, reason = _erase_disk_in_helper(address)
    except Exception as error:  # the daemon has ended, or does not start
        raise LateError(_word_silent_helper(error)) from error
    if reason:
        raise LateError(reason)
    return str(answer)


def reset_by_helper(address: str, own: OwnReset | None = None, /) -> None:
    """Reset a device in the daemon, as :func:`nova_hpc.tenancy.hygiene.reset.reset_device` does.

    :param own: only its name is sent: the daemon reads the declaration itself.
    :raises HeldError: something holds the device, so it was not reset.
    :raises ResetError: the reset failed.
    """
    try:
        failed = _reset_in_helper(address, None if own is None else own.name)
    except SettingsError as error:
        raise ResetError(str(error)) from error
    if failed is not None:
        held, reason = failed
        raise HeldError(reason) if held else ResetError(reason)


def find_holders_by_helper(addresses: Iterable[str]) -> dict[str, KernelHolder]:
    """Find in the daemon the kernel's holders of the devices; map address to holder.

    It is as :func:`nova_hpc.tenancy.holders.find_kernel_holders`. If the daemon does not answer,
    each device has a holder that is not certain.
    """
    wanted = list(addresses)
    try:
        answers = _find_holders_in_helper(wanted)
    except Exception as error:  # the daemon has ended, or does not start
        return dict.fromkeys(wanted, KernelHolder(_word_silent_helper(error), certain=False))
    return {address: KernelHolder(text, certain) for address, (text, certain) in answers.items()}


def read_configs_by_helper(addresses: Sequence[str]) -> Mapping[str, bytes]:
    """Return address -> configuration space, for the devices whose space can be read."""
    configs: Mapping[str, bytes] = _read_configs_in_helper(list(addresses))
    return configs


def write_setting_by_helper(root: Path, function: AdapterFunction, setting: AdapterSetting) -> None:
    """Write an adapter's setting in the daemon, as ``AdapterBackend.write`` does itself.

    :param root: unused: the daemon uses its own setting.
    :raises AdapterError: the setting could not be written.
    """
    value = setting.value
    if isinstance(value, LinkState):
        value = value.value
    elif setting.name.endswith("_guid"):
        value = f"{value:016x}"
    try:
        failed = _write_setting_in_helper(function.address, setting.name, value)
    except SettingsError as error:
        raise AdapterError(str(error)) from error
    if failed is not None:
        unknown, reason = failed
        raise (UnsupportedError if unknown else AdapterError)(reason)


def write_members_by_helper(name: SegmentFileName, servers: Mapping[int, str]) -> None:
    """Write the list of a segment's members in the daemon.

    It is as :meth:`nova_hpc.tenancy.segments.segment_file.SegmentFolder.write_members`.

    :param servers: number of the part -> UUID of the server that has it.
    :raises SegmentError: the file could not be written, or the daemon does not answer.
    """
    try:
        reason = _write_members_in_helper(str(name), [list(item) for item in servers.items()])
    except Exception as error:  # the daemon has ended, or does not start
        raise SegmentError(_word_silent_helper(error)) from error
    if reason is not None:
        raise SegmentError(reason)


def apply_wish_by_helper(root: Path, wish: PeerWish) -> PeerOutcome:
    """Write the ACS registers in the daemon by ``[hpc]peer_to_peer``, and return the outcome.

    It is as :func:`nova_hpc.tenancy.peer.acs_registers.apply_peer_wish`, but raises without answer.

    :param root: unused: the daemon uses its own setting.
    :raises SettingsError: the daemon's setting differs from *wish*.
    """
    word, made, failed, lacks = _apply_wish_in_helper()
    if word != wish.value:
        raise SettingsError(
            f"the privileged helper goes by [hpc]peer_to_peer = {word}, and this service by "
            f"{wish.value}: restart nova-compute"
        )
    return PeerOutcome(tuple(made), dict(failed), tuple(lacks))


def _word_silent_helper(error: Exception) -> str:
    return (
        str(error) if isinstance(error, SettingsError) else _NO_ANSWER.format(type(error).__name__)
    )
