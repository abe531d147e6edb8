"""Where the supported Nova releases differ, and which they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Signature
from typing import Any

import nova.version
from nova import exception, safe_utils
from nova.virt.libvirt.driver import LibvirtDriver

#: Major versions of Nova that this release was tested with.
SUPPORTED = (32, 33, 34)


def nova_release() -> int | None:
    """Major version of the Nova that runs; None: it cannot be told."""
    major = nova.version.version_string().split(".")[0]
    return int(major) if major.isdigit() else None


def fresh_pci_devices() -> Callable[[LibvirtDriver], str]:
    """Nova's reading of the PCI devices, without the cache that 34 has.

    A device that changes while the service runs would never be noticed.
    """
    method = LibvirtDriver._get_pci_passthrough_devices
    return getattr(method, "__wrapped__", method)


def expect(owner: Any, name: str, *parameters: str) -> tuple[Callable[..., Any], Signature]:
    """A method of Nova's that this project wraps, and its signature.

    :raises nova.exception.InvalidConfiguration: it is not there, or does not
        take the *parameters* that are relied on.
    """
    method = getattr(owner, name, None)
    if method is not None:
        signature = inspect.signature(method)
        if "args" in signature.parameters:
            # One of Nova's decorators hides what is below.
            inner = safe_utils.get_wrapped_function(getattr(type(owner), name))
            signature = inspect.signature(inner.__get__(owner))
        if signature.parameters.keys() >= set(parameters):
            return method, signature
    raise exception.InvalidConfiguration(
        f"This Nova's {type(owner).__name__}.{name} is not as nova-hpc knows it. Install "
        "releases that fit together, or set [DEFAULT]compute_driver = libvirt.LibvirtDriver."
    )


def manager_of(virtapi: Any) -> Any:
    """The compute manager of this process; None where there is none."""
    return getattr(virtapi, "_compute", None)
