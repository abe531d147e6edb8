# SPDX-License-Identifier: Apache-2.0
"""Make settings of adapters for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both. An address, a setting's name and its value go in: which adapter
that is, which number the function has there and by which device it is set, the daemon
reads in sysfs.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.adapters import find, settings
from nova_hpc.tenancy.adapters.apply import UnsupportedError
from nova_hpc.tenancy.adapters.find import Backends
from nova_hpc.tenancy.adapters.settings import AdapterError, LinkState, Setting, VirtualFunction
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import AddressError
from virt_driver_patches import privileged
from virt_driver_patches.privileged import default

_PAIRS = ("vlan", "rate")


@default.entrypoint
def _write(address: str, name: str, value: object) -> tuple[bool, str] | None:
    """Whether the driver does not know the setting, and why; None: it is made."""
    root = privileged.settings().root
    try:
        setting = settings.checked(name, _value(name, value))
        function = find.look(Tree(root), address)
        with Backends(root) as backends:
            backends.of(function).write(function, setting)
    except (AdapterError, AddressError) as error:
        return isinstance(error, UnsupportedError), str(error)
    return None


def _value(name: str, value: object) -> object:
    try:
        if name == "link_state":
            return LinkState(value)
        # What carries it knows no tuples, and no numbers of 64 bits with a sign.
        if name in _PAIRS:
            return tuple(value)  # type: ignore[arg-type]
        return int(str(value), 16) if name.endswith("_guid") else value
    except (TypeError, ValueError) as error:
        raise AdapterError(f"{str(value)[:40]!r} is no value of {name[:40]!r}") from error


def write(root: Path, function: VirtualFunction, setting: Setting) -> None:
    """As :meth:`nova_hpc.tenancy.adapters.apply.Backend.write`.

    :param root: the daemon's own; it is not told.
    """
    value = setting.value
    if isinstance(value, LinkState):
        value = value.value
    elif setting.name.endswith("_guid"):
        value = f"{value:016x}"
    try:
        failed = _write(function.address, setting.name, value)
    except privileged.SettingsError as error:
        raise AdapterError(str(error)) from error
    if failed is not None:
        unknown, why = failed
        raise (UnsupportedError if unknown else AdapterError)(why)
