# SPDX-License-Identifier: Apache-2.0
"""Sets virtual functions before a guest starts, and restores them after it.

:mod:`nova_hpc.tenancy.adapters.settings` plans the changes; this module makes them in the kernel,
through a backend for each kind of adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from nova_hpc.tenancy.adapters import settings
from nova_hpc.tenancy.adapters.settings import AdapterError, AdapterFunction, AdapterSetting


class UnsupportedError(AdapterError):
    """The driver of an adapter does not support this setting of a virtual function."""


class NoBackendError(AdapterError):
    """No backend can set functions of this adapter; the text gives the reason."""


class AdapterBackend(Protocol):
    """Interface that reads and sets virtual functions of one kind of network adapter."""

    def write(self, function: AdapterFunction, setting: AdapterSetting) -> None:
        """Write one setting of a virtual function to the adapter.

        :raises UnsupportedError: the driver does not support it.
        :raises AdapterError: it has failed.
        """

    def read(self, function: AdapterFunction) -> Mapping[str, Any]:
        """Return the settings that the driver shows, by their names.

        :raises NoBackendError: it shows none.
        :raises AdapterError: they cannot be read.
        """


Choose = Callable[[AdapterFunction], AdapterBackend]


@attrs.frozen
class FunctionChange:
    """The change of one virtual function: its settings before, and the settings that were made."""

    function: AdapterFunction
    #: Settings to restore later.
    before: Mapping[str, Any] = attrs.field(hash=False)
    made: Mapping[str, Any] = attrs.field(hash=False)


def make_function_changes(
    choose: Choose, changes: Sequence[FunctionChange], strict: bool = True
) -> dict[str, list[str]]:
    """Make all settings and read them back; all or none.

    :param strict: if False, a setting that a driver does not support is left out.
    :returns: address -> the settings that were left out.
    :raises AdapterError: a setting could not be made. The others are
        restored; the text also names functions that could not be restored.
    """
    touched: list[FunctionChange] = []
    left_out = {}
    try:
        for change in changes:
            backend = choose(change.function)
            touched.append(change)
            unknown = _write_settings(backend, change, strict)
            if unknown:
                left_out[change.function.address] = unknown
    except AdapterError as error:
        left = restore_functions(choose, touched)
        if not left:
            raise
        rest = "; ".join(left.values())
        raise AdapterError(f"{error}; then it could not be put back: {rest}") from error
    return left_out


def restore_functions(choose: Choose, changes: Sequence[FunctionChange]) -> dict[str, str]:
    """Remove from each function its settings, and read back that they are gone.

    Values that another process has changed since then are kept. Never raises: each function is
    tried, whatever happened to the others.

    :returns: address -> why it could not be restored; no other server may get
        such a device.
    """
    failed = {}
    for change in changes:
        try:
            _restore_function(choose(change.function), change)
        except AdapterError as error:
            failed[change.function.address] = str(error)
    return failed


def _write_settings(backend: AdapterBackend, change: FunctionChange, strict: bool) -> list[str]:
    """Write the settings that differ from the present ones, and read all of them back.

    :returns: names of the settings that the driver does not support.
    :raises AdapterError: a write failed, or a setting reads back with another value.
    """
    function, unknown = change.function, []
    seen = backend.read(function)
    wrote = False
    for setting in settings.order_settings(change.made):
        # Some drivers refuse even the present value while the link is down.
        if seen.get(setting.name) == setting.value:
            continue
        wrote = True
        try:
            backend.write(function, setting)
        except UnsupportedError:
            if settings.may_be_missing(setting):
                continue
            if strict:
                raise
            unknown.append(setting.name)
    if not wrote:
        return []
    seen = backend.read(function)
    # A right that the driver shows and does not remove is never excused.
    excused = {name for name in unknown if name not in _RIGHTS or name not in seen}
    _expect_read_back(function, change.made, seen, excused)
    return unknown


_RIGHTS = ("spoof_check", "trust")


def _restore_function(backend: AdapterBackend, change: FunctionChange) -> None:
    """Restore the former settings of one function.

    A setting is restored only if the function still shows the value that was made. An identity
    must be readable: otherwise another server could start with this server's address.

    :raises AdapterError: a setting could not be restored, or its state is unknown.
    """
    function = change.function
    seen = backend.read(function)
    wanted = {
        name: change.before[name]
        for name, value in change.made.items()
        if name in change.before and change.before[name] != value and seen.get(name) == value
    }
    unknown, failed = set(), []
    for name in settings.IDENTITY:
        if name in change.made and name not in seen:
            raise AdapterError(f"{function.address}: its {name} cannot be read")
    for setting in settings.order_settings(wanted, clearing=True):
        try:
            backend.write(function, setting)
        except UnsupportedError:
            unknown.add(setting.name)
        except AdapterError as error:
            failed.append(str(error))
    if failed:
        raise AdapterError("; ".join(failed))
    if wanted:
        _expect_read_back(
            function, wanted, backend.read(function), unknown - set(settings.IDENTITY)
        )


def _expect_read_back(
    function: AdapterFunction,
    wanted: Mapping[str, Any],
    seen: Mapping[str, Any],
    excused: Collection[str],
) -> None:
    wrong = [
        name for name in settings.find_setting_differences(wanted, seen) if name not in excused
    ]
    if wrong:
        raise AdapterError(f"{function.address}: read back otherwise: {', '.join(wrong)}")
