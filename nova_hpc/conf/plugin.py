# SPDX-License-Identifier: Apache-2.0
"""A plug-in that an option names by an entry point."""

from __future__ import annotations

from typing import Any

from stevedore import driver, exception


class PluginError(Exception):
    """There is none of that name that can be used; the text names the option."""


def find_plugin(option: str, namespace: str, name: str, kind: type[Any]) -> type[Any]:
    """Load the class of one, and make none.

    :param option: as for :func:`load_plugin`.
    :param kind: the class that it has to extend.
    :raises PluginError: see there.
    """
    try:
        manager: Any = driver.DriverManager(namespace, name, invoke_on_load=False)
    except (exception.NoMatches, exception.MultipleMatches, ImportError) as error:
        raise PluginError(f"[hpc]{option}: {name!r} cannot be loaded: {error}") from error
    loaded = manager.driver
    if not (isinstance(loaded, type) and issubclass(loaded, kind)):
        raise PluginError(f"[hpc]{option}: {name!r} is no {kind.__module__}.{kind.__qualname__}")
    return loaded


def load_plugin(option: str, namespace: str, name: str, kind: type[Any], *args: object) -> Any:
    """Load and make one.

    :param option: that names it, for the error: ``cleaners``.
    :param kind: what it has to be an instance of.
    :param args: it is made with.
    :raises PluginError: see there.
    """
    try:
        manager: Any = driver.DriverManager(namespace, name, invoke_on_load=True, invoke_args=args)
    except (exception.NoMatches, exception.MultipleMatches, ImportError, TypeError) as error:
        raise PluginError(f"[hpc]{option}: {name!r} cannot be loaded: {error}") from error
    if not isinstance(manager.driver, kind):
        raise PluginError(f"[hpc]{option}: {name!r} is no {kind.__module__}.{kind.__qualname__}")
    return manager.driver
