# SPDX-License-Identifier: Apache-2.0
"""Make settings of adapters for a service that is not root: by oslo.privsep.

In the same daemon as :mod:`virt_driver_patches.privileged`, so that one entry
of rootwrap serves both.
"""

from __future__ import annotations

from pathlib import Path

from nova_hpc.tenancy.adapters.apply import UnsupportedError
from nova_hpc.tenancy.adapters.find import Backends
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    Layer,
    LinkState,
    Setting,
    VirtualFunction,
)
from virt_driver_patches.privileged import default

_PAIRS = ("vlan", "rate")


@default.entrypoint
def ready() -> None:
    """Do nothing: whether the daemon starts."""


@default.entrypoint
def _write(
    root: str, function: dict[str, str | int | None], name: str, value: object
) -> tuple[bool, str] | None:
    """Whether the driver does not know the setting, and why; None: it is made."""
    known = {**function, "layer": Layer(function["layer"])}
    setting = Setting(name, _value(name, value))
    try:
        with Backends(Path(root)) as backends:
            found = VirtualFunction(**known)  # type: ignore[arg-type]
            backends.of(found).write(found, setting)
    except AdapterError as error:
        return isinstance(error, UnsupportedError), str(error)
    return None


def _value(name: str, value: object) -> object:
    if name == "link_state":
        return LinkState(value)
    # What carries it knows no tuples, and no numbers of 64 bits with a sign.
    if name in _PAIRS:
        return tuple(value)  # type: ignore[arg-type]
    return int(str(value), 16) if name.endswith("_guid") else value


def write(root: Path, function: VirtualFunction, setting: Setting) -> None:
    """As :meth:`nova_hpc.tenancy.adapters.apply.Backend.write`."""
    plain = {
        "address": function.address,
        "index": function.index,
        "layer": function.layer.value,
        "driver": function.driver,
        "net": function.net,
        "rdma": function.rdma,
    }
    value = setting.value
    if isinstance(value, LinkState):
        value = value.value
    elif setting.name.endswith("_guid"):
        value = f"{value:016x}"
    failed = _write(str(root), plain, setting.name, value)
    if failed is not None:
        unknown, why = failed
        raise (UnsupportedError if unknown else AdapterError)(why)
