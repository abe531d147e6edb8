# SPDX-License-Identifier: Apache-2.0
"""Set virtual functions before a guest starts, and put them back after it.

The planning is in :mod:`nova_hpc.tenancy.adapters.settings`; here the kernel is met,
through a backend for each kind of adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import attrs

from nova_hpc.tenancy.adapters import settings
from nova_hpc.tenancy.adapters.settings import AdapterError, AdapterFunction, AdapterSetting


class UnsupportedError(AdapterError):
    """The driver does not know this setting."""


class NoBackendError(AdapterError):
    """Nothing here can set functions of this adapter; the text says why."""


class AdapterBackend(Protocol):
    """The way in which one kind of adapter is set."""

    def write(self, function: AdapterFunction, setting: AdapterSetting) -> None:
        """Make one setting.

        :raises UnsupportedError: the driver does not know it.
        :raises AdapterError: it has failed.
        """

    def read(self, function: AdapterFunction) -> Mapping[str, Any]:
        """The settings that the driver shows, by their names.

        :raises NoBackendError: it shows none.
        :raises AdapterError: they cannot be read.
        """


Choose = Callable[[AdapterFunction], AdapterBackend]


@attrs.frozen
class FunctionChange:
    """The change of one function."""

    function: AdapterFunction
    #: What it goes back to.
    before: Mapping[str, Any] = attrs.field(hash=False)
    made: Mapping[str, Any] = attrs.field(hash=False)


def make_function_changes(
    choose: Choose, changes: Sequence[FunctionChange], strict: bool = True
) -> dict[str, list[str]]:
    """Make all settings and read them back; all or none.

    :param strict: False: a setting that a driver does not know is left out.
    :returns: address -> the settings that were left out.
    :raises AdapterError: one of them could not be made. Those that were made
        are taken back; the text also names what could not be.
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
    """Take from each function what it was given, and read back that it is gone.

    What somebody else has changed since is left alone. Nothing raises: each is
    tried, whatever happened to those before.

    :returns: address -> why it could not be put back; such a device must not be
        given to anybody else.
    """
    failed = {}
    for change in changes:
        try:
            _restore_function(choose(change.function), change)
        except AdapterError as error:
            failed[change.function.address] = str(error)
    return failed


def _write_settings(backend: AdapterBackend, change: FunctionChange, strict: bool) -> list[str]:
    function, unknown = change.function, []
    seen = backend.read(function)
    wrote = False
    for setting in settings.order_settings(change.made):
        # Some drivers refuse even what is so already, while the link is down.
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
    # A right that shows, and that the driver does not take away, is no trifle.
    excused = {name for name in unknown if name not in _RIGHTS or name not in seen}
    _expect_read_back(function, change.made, seen, excused)
    return unknown


_RIGHTS = ("spoof_check", "trust")


def _restore_function(backend: AdapterBackend, change: FunctionChange) -> None:
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
