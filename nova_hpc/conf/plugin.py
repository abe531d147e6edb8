# SPDX-License-Identifier: Apache-2.0
"""A plug-in that an option names by an entry point."""

from __future__ import annotations

from typing import Any

from stevedore import driver, exception


class PluginError(Exception):
    """No plug-in of that name can be used; the text names the option."""


def find_plugin(option: str, namespace: str, name: str, kind: type[Any]) -> type[Any]:
    """Load the class of a plug-in, without creating an object.

    :param option: as for :func:`load_plugin`.
    :param kind: the class that it must extend.
    :raises PluginError: it cannot be loaded, or is of another class.
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
    """Load a plug-in and create an object of it.

    :param option: the option that names it, for the error: ``cleaners``.
    :param kind: the class that the object must be an instance of.
    :param args: arguments of the class.
    :raises PluginError: it cannot be loaded, or is of another class.
    """
    try:
        manager: Any = driver.DriverManager(namespace, name, invoke_on_load=True, invoke_args=args)
    except (exception.NoMatches, exception.MultipleMatches, ImportError, TypeError) as error:
        raise PluginError(f"[hpc]{option}: {name!r} cannot be loaded: {error}") from error
    if not isinstance(manager.driver, kind):
        raise PluginError(f"[hpc]{option}: {name!r} is no {kind.__module__}.{kind.__qualname__}")
    return manager.driver
