"""Set virtual functions before a guest starts, and clear them after it.

The planning is in :mod:`nova_hpc.fabric.adapter`; here the kernel is met,
through a backend for each kind of adapter. Nothing in this package calls it:
the GUIDs of virtual functions are the fabric service's to give, and the MAC and
the VLAN of a port are set by libvirt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from nova_hpc.fabric import adapter
from nova_hpc.fabric.adapter import AdapterError, Settings, Step, VirtualFunction


class UnsupportedError(AdapterError):
    """The driver does not know this setting."""


class Backend(Protocol):
    """How one kind of adapter is set."""

    def write(self, function: VirtualFunction, step: Step) -> None:
        """Make one setting.

        :raises UnsupportedError: the driver does not know it.
        :raises AdapterError: it has failed.
        """

    def read(self, function: VirtualFunction) -> Mapping[str, Any]:
        """The settings that the driver shows, as :func:`nova_hpc.fabric.adapter.values`.

        :raises AdapterError: they cannot be read.
        """


Choose = Callable[[VirtualFunction], Backend]


def make(choose: Choose, wanted: Sequence[tuple[VirtualFunction, Settings]]) -> None:
    """Make all settings and read them back; all or none.

    :raises AdapterError: one of them could not be made. Those that were made
        are cleared again; the text also names what could not be cleared.
    """
    touched: list[VirtualFunction] = []
    try:
        for function, settings in wanted:
            if settings.layer is not function.layer:
                raise AdapterError(
                    f"{function.address}: its adapter speaks {function.layer.value}, and the "
                    f"settings are for {settings.layer.value}"
                )
            backend = choose(function)
            touched.append(function)
            _write(backend, function, settings)
    except AdapterError as error:
        left = clear(choose, touched)
        if not left:
            raise
        rest = "; ".join(left.values())
        raise AdapterError(f"{error}; then it could not be cleared: {rest}") from error


def clear(choose: Choose, functions: Sequence[VirtualFunction]) -> dict[str, str]:
    """Take from each function what it was given, and read back that it is gone.

    Nothing raises: each is tried, whatever happened to those before.

    :returns: address -> why it could not be cleared; such a device must not be
        given to anybody else.
    """
    failed = {}
    for function in functions:
        try:
            _clear(choose(function), function)
        except AdapterError as error:
            failed[function.address] = str(error)
    return failed


def _write(backend: Backend, function: VirtualFunction, settings: Settings) -> None:
    before = backend.read(function)
    for step in adapter.steps(settings):
        # Some drivers refuse even what is so already, while the link is down.
        if before.get(step.name) == step.value:
            continue
        try:
            backend.write(function, step)
        except UnsupportedError:
            if not adapter.may_be_missing(step):
                raise
    _compare(function, settings, backend.read(function), frozenset())


def _clear(backend: Backend, function: VirtualFunction) -> None:
    settings = adapter.CLEARED[function.layer]
    before = backend.read(function)
    unknown, failed = set(), []
    for step in adapter.steps(settings, clearing=True):
        if before.get(step.name) == step.value:
            continue
        try:
            backend.write(function, step)
        except UnsupportedError:
            unknown.add(step.name)  # so it has never been made either
        except AdapterError as error:
            failed.append(str(error))
    if failed:
        raise AdapterError("; ".join(failed))
    _compare(function, settings, backend.read(function), unknown - set(adapter.IDENTITY))


def _compare(
    function: VirtualFunction,
    settings: Settings,
    seen: Mapping[str, Any],
    unknown: Collection[str],
) -> None:
    wrong = [name for name in adapter.differences(settings, seen) if name not in unknown]
    if wrong:
        raise AdapterError(f"{function.address}: read back otherwise: {', '.join(wrong)}")
