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
from nova_hpc.tenancy.adapters.settings import AdapterError, Setting, VirtualFunction


class UnsupportedError(AdapterError):
    """The driver does not know this setting."""


class NoBackendError(AdapterError):
    """Nothing here can set functions of this adapter; the text says why."""


class Backend(Protocol):
    """How one kind of adapter is set."""

    def write(self, function: VirtualFunction, setting: Setting) -> None:
        """Make one setting.

        :raises UnsupportedError: the driver does not know it.
        :raises AdapterError: it has failed.
        """

    def read(self, function: VirtualFunction) -> Mapping[str, Any]:
        """The settings that the driver shows, as :func:`nova_hpc.tenancy.adapters.settings.values`.

        :raises NoBackendError: it shows none.
        :raises AdapterError: they cannot be read.
        """


Choose = Callable[[VirtualFunction], Backend]


@attrs.frozen
class Change:
    """What is done to one function."""

    function: VirtualFunction
    #: What it goes back to.
    before: Mapping[str, Any] = attrs.field(hash=False)
    made: Mapping[str, Any] = attrs.field(hash=False)


def make(choose: Choose, changes: Sequence[Change], strict: bool = True) -> dict[str, list[str]]:
    """Make all settings and read them back; all or none.

    :param strict: False: a setting that a driver does not know is left out.
    :returns: address -> the settings that were left out.
    :raises AdapterError: one of them could not be made. Those that were made
        are taken back; the text also names what could not be.
    """
    touched: list[Change] = []
    left_out = {}
    try:
        for change in changes:
            backend = choose(change.function)
            touched.append(change)
            unknown = _write(backend, change, strict)
            if unknown:
                left_out[change.function.address] = unknown
    except AdapterError as error:
        left = restore(choose, touched)
        if not left:
            raise
        rest = "; ".join(left.values())
        raise AdapterError(f"{error}; then it could not be put back: {rest}") from error
    return left_out


def restore(choose: Choose, changes: Sequence[Change]) -> dict[str, str]:
    """Take from each function what it was given, and read back that it is gone.

    What somebody else has changed since is left alone. Nothing raises: each is
    tried, whatever happened to those before.

    :returns: address -> why it could not be put back; such a device must not be
        given to anybody else.
    """
    failed = {}
    for change in changes:
        try:
            _restore(choose(change.function), change)
        except AdapterError as error:
            failed[change.function.address] = str(error)
    return failed


def _write(backend: Backend, change: Change, strict: bool) -> list[str]:
    function, unknown = change.function, []
    seen = backend.read(function)
    wrote = False
    for setting in settings.in_order(change.made):
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
    excused = {each for each in unknown if each not in _RIGHTS or each not in seen}
    _compare(function, change.made, seen, excused)
    return unknown


_RIGHTS = ("spoof_check", "trust")


def _restore(backend: Backend, change: Change) -> None:
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
    for setting in settings.in_order(wanted, clearing=True):
        try:
            backend.write(function, setting)
        except UnsupportedError:
            unknown.add(setting.name)
        except AdapterError as error:
            failed.append(str(error))
    if failed:
        raise AdapterError("; ".join(failed))
    if wanted:
        _compare(function, wanted, backend.read(function), unknown - set(settings.IDENTITY))


def _compare(
    function: VirtualFunction,
    wanted: Mapping[str, Any],
    seen: Mapping[str, Any],
    excused: Collection[str],
) -> None:
    wrong = [name for name in settings.differences(wanted, seen) if name not in excused]
    if wrong:
        raise AdapterError(f"{function.address}: read back otherwise: {', '.join(wrong)}")
