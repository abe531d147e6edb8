# SPDX-License-Identifier: Apache-2.0
"""The wraps of Nova's functions: where they are, that the page shows them, that they are gated."""

from __future__ import annotations

import inspect

import attrs
import nova.version
import pytest
from nova import exception
from nova.compute import manager as compute_manager

from docs import gated_patches as page
from nova_hpc.from_nova.contract import SUPPORTED, release
from virt_driver_patches import patches
from virt_driver_patches.patches import gate, refuse_early


@pytest.mark.parametrize("patch", patches.ALL, ids=lambda patch: patch.name)
def test_it_is_where_it_is_said_to_be(patch):
    """Nova's file and lines, in the release that runs the tests."""
    function = patch.function()
    assert set(patch.lines) == set(SUPPORTED)
    known = release()
    if nova.version.version_string() == gate.READ[known]:
        source = inspect.getsourcefile(function)
        assert source.endswith(patch.file)
        # Decorators are part of the range.
        lines, first = inspect.getsourcelines(function)
        assert patch.lines[known] == (first, first + len(lines) - 1)


def test_the_page_shows_all() -> None:
    text = page.PAGE.read_text()
    assert page.replace(text) == text, "run: PYTHONPATH=. python docs/gated_patches.py"


def test_targets_are_named_once() -> None:
    targets = [patch.target for patch in patches.ALL]
    assert len(set(targets)) == len(targets)


def test_an_unknown_function_is_refused() -> None:
    (first, *_) = patches.ALL
    for changed in (
        attrs.evolve(first, target=f"{first.module}:{first.owner}.no_such_method"),
        attrs.evolve(first, target=f"{first.module}:NoSuchClass.{first.name}"),
        attrs.evolve(first, parameters=("no_such_parameter",)),
    ):
        with pytest.raises(exception.InvalidConfiguration, match="is not as nova-hpc knows it"):
            changed.function()


@pytest.mark.parametrize("version", ["31.0.1", "35.0.0", "x"])
def test_an_unknown_release_installs_nothing(monkeypatch, version):
    monkeypatch.setattr(nova.version, "version_string", lambda: version)
    with pytest.raises(exception.InvalidConfiguration, match="supports Nova 32, 33, 34"):
        patches.install(None, lambda *_: None, {})


def test_a_process_without_a_compute_manager_is_refused() -> None:
    with pytest.raises(exception.InvalidConfiguration, match="has no ResourceTracker"):
        patches.install(None, lambda *_: None, {})


def test_a_call_has_its_arguments_by_name_and_can_change_them() -> None:
    manager = compute_manager.ComputeManager.__new__(compute_manager.ComputeManager)
    seen = []
    manager.reboot_instance = lambda *args, **kwargs: seen.append((args, kwargs)) or "done"
    calls = []

    def around(call):
        calls.append(dict(call.given))
        return call() if len(calls) == 1 else call(reboot_type="SOFT")

    gate.wrap(manager, refuse_early.ACTIONS["reboot_instance"], around)
    for _ in range(2):
        assert manager.reboot_instance("c", "i", None, reboot_type="HARD") == "done"
    given = {"context": "c", "instance": "i", "block_device_info": None, "reboot_type": "HARD"}
    assert calls == [given, given]
    # As it came; and with the change.
    assert seen == [
        (("c", "i", None), {"reboot_type": "HARD"}),
        (("c", "i", None, "SOFT"), {}),
    ]
