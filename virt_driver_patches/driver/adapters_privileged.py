# SPDX-License-Identifier: Apache-2.0
"""Make settings of adapters for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both. An address, a setting's name and its value go in: which adapter
that is, which number the function has there and by which device it is set, the daemon
reads in sysfs.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.adapters import settings, virtual_functions
from nova_hpc.tenancy.adapters.function_changes import UnsupportedError
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    AdapterSetting,
    LinkState,
)
from nova_hpc.tenancy.adapters.virtual_functions import AdapterBackends
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import AddressError
from virt_driver_patches import privileged
from virt_driver_patches.privileged import default

_PAIRS = ("vlan", "rate")


@default.entrypoint
def _write_setting_in_helper(address: str, name: str, value: object) -> tuple[bool, str] | None:
    """Whether the driver does not know the setting, and why; None: it is made."""
    root = privileged.read_helper_settings().root
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
        # What carries it knows no tuples, and no numbers of 64 bits with a sign.
        if name in _PAIRS:
            return tuple(value)  # type: ignore[arg-type]
        return int(str(value), 16) if name.endswith("_guid") else value
    except (TypeError, ValueError) as error:
        raise AdapterError(f"{str(value)[:40]!r} is no value of {name[:40]!r}") from error


def write_setting_by_helper(root: Path, function: AdapterFunction, setting: AdapterSetting) -> None:
    """As :meth:`nova_hpc.tenancy.adapters.function_changes.AdapterBackend.write`.

    :param root: the daemon's own; it is not told.
    """
    value = setting.value
    if isinstance(value, LinkState):
        value = value.value
    elif setting.name.endswith("_guid"):
        value = f"{value:016x}"
    try:
        failed = _write_setting_in_helper(function.address, setting.name, value)
    except privileged.SettingsError as error:
        raise AdapterError(str(error)) from error
    if failed is not None:
        unknown, reason = failed
        raise (UnsupportedError if unknown else AdapterError)(reason)
