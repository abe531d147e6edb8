# SPDX-License-Identifier: Apache-2.0
"""Every class of this project's below one of Nova's, and every method that it overrides."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest

from virt_driver_patches import patches
from virt_driver_patches.patches import overrides

PACKAGES = ("nova_hpc", "nova_hpc_tools", "scheduler_filters", "virt_driver_patches")
#: Classes of Nova that hold data, and have nothing to override.
DATA = ("nova.exception", "nova.objects", "nova.notifications")
DRIVER = overrides.DRIVER[0].ours


def _subclasses() -> dict[str, type]:
    """``module:Class`` -> each class of this project's that has one of Nova's as its base."""
    found = {}
    for package in PACKAGES:
        top = importlib.import_module(package)
        for each in pkgutil.walk_packages(top.__path__, f"{package}."):
            if ".shim" in each.name or each.name.endswith(".masakari_task"):
                continue  # the driver by its other name; a task of Masakari's, with its options
            module = importlib.import_module(each.name)
            for name, cls in vars(module).items():
                if isinstance(cls, type) and cls.__module__ == each.name and _of_nova(cls):
                    found[f"{each.name}:{name}"] = cls
    return found


def _of_nova(cls: type) -> list[type]:
    bases = [each for each in cls.__mro__[1:] if each.__module__.startswith("nova.")]
    return [] if any(each.__module__.startswith(DATA) for each in bases) else bases


def _overridden(cls: type) -> dict[str, Any]:
    """Name of each method in place of one of Nova's -> Nova's class that has it."""
    found = {}
    for name, value in vars(cls).items():
        if inspect.isfunction(value):
            owner = next((each for each in _of_nova(cls) if name in vars(each)), None)
            if owner is not None:
                found[name] = owner
    return found


CLASSES = _subclasses()


def test_there_are_classes() -> None:
    assert len(CLASSES) >= 5
    assert DRIVER in CLASSES


@pytest.mark.parametrize("path", sorted(CLASSES))
def test_every_method_is_listed(path: str) -> None:
    listed = {}
    for patch in (*patches.ALL, *overrides.ALL):
        # Private ones of the driver stand with the wraps, beside others that are only called.
        ours = getattr(patch, "ours", DRIVER if patch.overridden else None)
        if ours == path and patch.name in vars(CLASSES[path]):
            listed[patch.name] = patch.of()
    assert listed == _overridden(CLASSES[path])


@pytest.mark.parametrize("path", sorted(CLASSES))
def test_what_nova_hands_over_is_taken(path: str) -> None:
    """Every parameter of Nova's method, by its place and by its name."""
    cls = CLASSES[path]
    for name, owner in _overridden(cls).items():
        theirs = inspect.signature(inspect.unwrap(vars(owner)[name])).parameters.values()
        mine = inspect.signature(vars(cls)[name])
        names = [each.name for each in theirs if each.kind is each.POSITIONAL_OR_KEYWORD]
        mine.bind(names[0], **{each: each for each in names[1:]})
        for given, value in mine.bind(*names).arguments.items():
            if mine.parameters[given].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                assert given == value, f"{path}.{name}: {value} arrives as {given}"
