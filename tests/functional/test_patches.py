# SPDX-License-Identifier: Apache-2.0
"""The wraps of Nova's functions: where they are, that the page shows them, that they are gated."""

from __future__ import annotations

import functools
import inspect
import os
from pathlib import Path
from types import SimpleNamespace

import attrs
import nova.version
import pytest
from nova import exception
from nova.compute import manager as compute_manager
from nova.compute import resource_tracker
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from docs import gated_patches as page
from nova_hpc.from_nova import gate, nova_sources
from nova_hpc.from_nova.cache import Once
from nova_hpc.from_nova.contract import RELIED_ON, running_nova_release
from nova_hpc.from_nova.nova_sources import DIGESTS
from nova_hpc.from_nova.patches import numa_fit, scheduler
from tests.functional import fixtures
from tests.functional.unit_scheduler.states import HostStates, pci_request, pool
from tools import nova_digests as nova_digests_tool
from virt_driver_patches import patches
from virt_driver_patches.patches import moves, overrides, pci_devices, reasons, refuse_early


@pytest.mark.parametrize(
    "patch", [*patches.ALL, *scheduler.ALL, *overrides.ALL], ids=lambda patch: patch.name
)
def test_it_is_where_it_is_said_to_be(patch):
    """Nova's file and lines, in the release that runs the tests."""
    function = patch.function()
    assert set(patch.lines) == set(nova_sources.READ)
    known = running_nova_release()
    if nova.version.version_string() == nova_sources.READ.get(known):
        source = inspect.getsourcefile(function)
        assert source.endswith(patch.file)
        # Decorators are part of the range.
        lines, first = inspect.getsourcelines(function)
        assert patch.lines[known] == (first, first + len(lines) - 1)


def test_every_function_was_read() -> None:
    assert sorted(DIGESTS) == nova_digests_tool.targets(), "run tools/nova_digests.py"


def test_nova_is_as_it_was_read() -> None:
    """Also of Nova's master, once a week: what has changed since the last release is told."""
    folder, known = Path(nova.__file__).parent, running_nova_release()
    read = nova_sources.READ.get(known)
    found = nova_sources.find_changed_functions(
        folder, known if read else max(nova_sources.READ), DIGESTS
    )
    text = "; ".join(map(str, found))
    if nova.version.version_string() != read and not os.environ.get("NOVA_HPC_NEXT_NOVA"):
        pytest.skip(f"{read} was read, and this is another Nova: {text or 'nothing has changed'}")
    assert not found, f"{text}: read it, and run tools/nova_digests.py"


@pytest.mark.skipif(
    running_nova_release() not in nova_sources.READ, reason="nobody has read this Nova yet"
)
def test_a_body_that_has_changed_is_told_once(monkeypatch, caplog) -> None:
    """Services go on: distributions patch Nova."""
    monkeypatch.setattr(gate, "_ONCE", Once())
    for logger in (gate.LOG.logger, gate.LOG.logger.parent):
        monkeypatch.setattr(logger, "propagate", True)
    target = numa_fit.FIT.target
    changed = {**DIGESTS, target: dict.fromkeys(nova_sources.READ, "another")}
    monkeypatch.setattr(nova_sources, "DIGESTS", changed)
    fresh = functools.cache(nova_sources.find_changed_functions)
    monkeypatch.setattr(gate, "_find_changed_functions", fresh)
    with caplog.at_level("WARNING", logger=gate.LOG.logger.name):
        for _ in range(2):
            scheduler.install_scheduler_patches()
    (told,) = [each.getMessage() for each in caplog.records if "functional tests" in each.message]
    read = nova_sources.READ[running_nova_release()]
    assert told.startswith(
        f"Nova's numa_fit_instance_to_host in nova/virt/hardware.py is not that of Nova {read}"
    )
    assert set(RELIED_ON) <= set(DIGESTS)


def test_the_page_shows_all() -> None:
    found = page.FILE.read_text(encoding="utf-8")
    assert found == page.tables(), "run: PYTHONPATH=. python docs/gated_patches.py"
    text = page.FILE.with_suffix(".rst").read_text(encoding="utf-8")
    assert f".. include:: {page.FILE.name}\n" in text


def test_targets_are_named_once() -> None:
    targets = [patch.target for patch in (*patches.ALL, *scheduler.ALL)]
    assert len(set(targets)) == len(targets)


def test_an_unknown_function_is_refused() -> None:
    (first, *_) = patches.ALL
    for changed in (
        attrs.evolve(first, target=f"{first.module}:{first.owner}.no_such_method"),
        attrs.evolve(first, target=f"{first.module}:NoSuchClass.{first.name}"),
        attrs.evolve(first, parameters=("no_such_parameter",)),
    ):
        with pytest.raises(exception.InvalidConfiguration, match="is not as nova-hpc needs it"):
            changed.function()


@pytest.mark.parametrize("version", ["31.0.1", "35.0.0", "x"])
def test_an_unknown_release_installs_nothing(monkeypatch, version):
    monkeypatch.setattr(nova.version, "version_string", lambda: version)
    with pytest.raises(exception.InvalidConfiguration, match="supports Nova 32, 33, 34"):
        patches.install_all_wraps(None, lambda *_: None, {}, None)


def test_a_process_without_a_compute_manager_is_refused() -> None:
    with pytest.raises(exception.InvalidConfiguration, match="has no ResourceTracker"):
        patches.install_all_wraps(None, lambda *_: None, {}, None)


def test_a_call_has_its_arguments_by_name_and_can_change_them() -> None:
    manager = compute_manager.ComputeManager.__new__(compute_manager.ComputeManager)
    seen = []
    manager.reboot_instance = lambda *args, **kwargs: seen.append((args, kwargs)) or "done"
    calls = []

    def around(call):
        calls.append(dict(call.given))
        return call() if len(calls) == 1 else call(reboot_type="SOFT")

    gate.wrap_method(manager, refuse_early.ACTIONS["reboot_instance"], around)
    for _ in range(2):
        assert manager.reboot_instance("c", "i", None, reboot_type="HARD") == "done"
    given = {"context": "c", "instance": "i", "block_device_info": None, "reboot_type": "HARD"}
    assert calls == [given, given]
    # As it came; and with the change.
    assert seen == [
        (("c", "i", None), {"reboot_type": "HARD"}),
        (("c", "i", None, "SOFT"), {}),
    ]


def _manager() -> compute_manager.ComputeManager:
    manager = compute_manager.ComputeManager.__new__(compute_manager.ComputeManager)
    manager.rt = _tracker()
    return manager


def _tracker() -> resource_tracker.ResourceTracker:
    return resource_tracker.ResourceTracker.__new__(resource_tracker.ResourceTracker)


def test_one_function_that_is_not_known_leaves_nova_as_it_is(monkeypatch) -> None:
    """The last of all is looked at before the first is wrapped."""
    *others, last = patches.ALL
    changed = attrs.evolve(last, parameters=("no_such_parameter",))
    monkeypatch.setattr(patches, "ALL", (*others, changed))
    # Of the class itself: put back whatever happens.
    monkeypatch.setattr(moves, "bind_claims", lambda: None)
    manager = _manager()
    with pytest.raises(exception.InvalidConfiguration, match="is not as nova-hpc needs it"):
        patches.install_all_wraps(SimpleNamespace(_compute=manager), lambda *_: None, {}, None)
    assert vars(manager) == {"rt": manager.rt}
    assert vars(manager.rt) == {}


@pytest.mark.parametrize(
    ("hosts", "retries"),
    [
        ([], False),
        ([{"service_host": "another"}], True),
        # Nova does not say whether there is another: it may try.
        (None, True),
    ],
)
def test_only_the_last_host_keeps_the_reason(hosts, retries) -> None:
    manager, seen = _manager(), []
    function = reasons.LAST_HOST.function()
    parameters = [each for each in inspect.signature(function).parameters if each != "self"]
    manager._do_build_and_run_instance = lambda *args: seen.append(
        dict(zip(parameters, args, strict=True))
    )
    gate.wrap_method(manager, reasons.LAST_HOST, reasons._stay_at_last_host)
    given = dict.fromkeys(parameters)
    given["instance"] = SimpleNamespace(
        flavor=SimpleNamespace(extra_specs={"hpc:affinity": "host"})
    )
    given["filter_properties"] = {"retry": {"num_attempts": 1}}
    given["host_list"] = hosts
    manager._do_build_and_run_instance(*given.values())
    assert [("retry" in each["filter_properties"]) for each in seen] == [retries]


class Devices:
    """Stands for Nova's PCI tracker."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def update_devices_from_hypervisor_resources(self, text: str) -> None:
        self.told.append(text)


def test_the_pci_tracker_hears_of_devices_when_they_have_changed() -> None:
    tracker = _tracker()
    tracker.pci_tracker = Devices()
    tracker._setup_pci_tracker = lambda *args: None
    pci_devices.follow_pci_devices(tracker)
    one, other = {"address": "0000:40:00.0"}, {"address": "0000:41:00.0"}

    def update(*devices: dict[str, object]) -> int:
        resources = {"pci_passthrough_devices": jsonutils.dumps(devices)}
        tracker._setup_pci_tracker("context", "node", resources)
        return len(tracker.pci_tracker.told)

    assert update(one, other) == 1
    assert update(one, other) == 1
    assert update(other, one) == 1  # libvirt lists them in any order
    assert update(other) == 2
    assert update(other, one) == 3


class BindTest(HostStates):
    """The requests of a move, and what the scheduler has allocated."""

    def bound(self, amount: int, *counts: int) -> list[str]:
        """What requests for so many devices become, of one provider with four."""
        requests = [pci_request(count) for count in counts]
        allocations = {uuids.gpu1: {"resources": {fixtures.GPU_CLASS: amount}}}
        moves.bind_chosen_providers(requests, self.host(pool(1, count=4)).pci_stats, allocations)
        return [each["rp_uuids"] for request in requests for each in request.spec]

    def test_each_takes_its_own(self) -> None:
        mine = str(uuids.gpu1)
        self.assertEqual([mine, f"{mine},{mine}"], self.bound(3, 1, 2))

    def test_what_one_has_taken_the_next_does_not_get(self) -> None:
        for amount, counts in ((2, (3,)), (2, (1, 2)), (1, (1, 1))):
            self.assertRaises(exception.ComputeResourcesUnavailable, self.bound, amount, *counts)
