# SPDX-License-Identifier: Apache-2.0
"""What is decided about a device goes by signs, whatever words the reasons have."""

from __future__ import annotations

import functools
import itertools
import json
import pathlib

import attrs
import pytest

from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.step import NodeView
from nova_hpc.topology import device as topology_device
from nova_hpc.topology import sysfs
from nova_hpc.wire import announcements
from nova_hpc.wire.announcements import Accepted
from nova_hpc.wire.ledger import DeviceState
from tests.unit.tenancy import test_soak
from tests.unit.tenancy.hygiene_node import GPU, NodeHygiene, make
from tests.unit.tenancy.test_soak import GPUS, World


def look(node, step: NodeHygiene) -> NodeView:
    """One update, as the driver makes it."""
    from nova_hpc.tenancy import health
    from nova_hpc.tenancy.health import OfferedFunction

    reading = sysfs.read_sysfs_node(node.root)
    ill = health.judge_offered_functions(reading, [OfferedFunction(GPU)], node.ledger, health.FRESH)
    view = NodeView(reading, {GPU: "gpu"}, ill=ill)
    step.withhold(view, node.owners())
    return view


@pytest.mark.parametrize(
    "words", ["config: all ones, so the device does not answer", "it reads as ones only", "!"]
)
def test_a_silent_device_is_quarantined_however_that_is_said(tmp_path, monkeypatch, words):
    """A sentence that was reworded turned "quarantined after 8 tries" into "tried for ever"."""
    monkeypatch.setattr(topology_device, "SILENT", words)
    node = make(tmp_path, GPU)
    step = node.step()
    look(node, step)
    (node.devices / GPU / "config").write_bytes(b"\xff" * 4096)
    for _ in range(HealthRules().suspect_tries):
        assert node.ledger.device(GPU).state is not DeviceState.QUARANTINED
        node.later(HealthRules().suspect_retry_most + 1)
        look(node, step)
    found = node.ledger.device(GPU)
    assert (found.state, found.trial.sign) == (DeviceState.QUARANTINED, "silent")
    assert words in found.reason


def reword(monkeypatch) -> itertools.count:
    """Give every reason that is made from now on words that nobody has ever read."""
    from nova_hpc.tenancy.sign import Symptom

    numbers = itertools.count()
    made = Symptom.__init__

    @functools.wraps(made)
    def other(self, sign, reason, change=""):
        made(self, sign, f"<{sign.name} {next(numbers)}>", change)

    monkeypatch.setattr(Symptom, "__init__", other)

    def unread(self, text):
        self.reasons.append(f"<{next(numbers)}>")

    monkeypatch.setattr(topology_device._Attributes, "reason", unread)
    return numbers


def history(root: pathlib.Path, seed: int, updates: int = 45) -> list[object]:
    """Everything that is decided in many updates of a busy node, and no word of why."""
    root.mkdir()
    world = World(root, seed)
    said: list[object] = []
    world.now_offered = frozenset(world.update())
    for number in range(updates):
        world.happen(number)
        if number == updates // 4:
            victim = next(each for each in GPUS if each not in world.used)
            world.glitches.pop(victim, None)
            world.silent.add(victim)
            (world.node.devices / victim / "config").write_bytes(b"\xff" * 4096)
        if number == updates // 2:
            world.firmware()
        if number == updates // 2 + 3:
            world.accept()
        world.now_offered = frozenset(world.update())
        ledger = world.node.ledger
        accepted = [each.change for each in ledger.accepted]
        said.append((sorted(world.now_offered), len(world.alarms), accepted))
        said.append(
            {each: attrs.evolve(one, reason="") for each, one in sorted(ledger.devices.items())}
        )
    return said


def test_other_words_decide_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(test_soak, "PFS", test_soak.PFS[:3])
    before = history(tmp_path / "before", 11)
    reworded = reword(monkeypatch)
    assert history(tmp_path / "after", 11) == before
    assert next(reworded) > 100


def test_an_accepted_change_goes_by_the_ledger_s_words(tmp_path, monkeypatch):
    """What an operator has accepted with one release is accepted with the next."""
    node = make(tmp_path)
    step = node.step()
    devices = node.candidates(*(each.name for each in node.devices.iterdir()))
    step.sweep(devices)
    step.accept(devices[GPU])
    change = "its capabilities have changed: none gone, 05@80 new"
    node.file.change(
        lambda now: attrs.evolve(
            now,
            accepted=(
                Accepted(
                    baseline.snapshot_model_of(baseline.load_snapshot(now.device(GPU).baseline)),
                    change,
                    "ok",
                ),
            ),
        )
    )
    reword(monkeypatch)
    node.config(GPU, capabilities=(0x01, 0x10, 0x05))
    assert step.sweep(devices) == {}, step.changes(devices.values())
    assert node.ledger.device(GPU).state is DeviceState.OFFERED
    node.config(GPU, capabilities=(0x01, 0x10, 0x06))
    assert step.sweep(devices).keys() == {GPU}


def test_the_words_of_a_change_are_a_format():
    """They stand in ledgers: a release that writes others takes every acceptance back."""
    field = announcements.describe_field_change("device_id", "by the kernel", "2330", "2331")
    assert field == "its device_id is 2331 by the kernel, and was 2330"
    assert announcements.describe_bar_change(["0 1M"], []) == "its BARs are none, and were 0 1M"
    many = [f"{each:02x}" for each in range(12)]
    assert announcements.describe_capability_change(many, ["10"]) == (
        f"its capabilities have changed: {', '.join(many)} gone, 10 new"
    )


def test_changes_that_begin_alike_are_two():
    """Cut after eight capabilities they were one, and what was accepted was not what came."""
    many = [f"{each:02x}" for each in range(9)]
    first = announcements.describe_capability_change([*many, "20", "21"], [])
    assert first != announcements.describe_capability_change([*many, "20", "22"], [])


def test_what_vpd_has_said_is_kept_as_a_sign(tmp_path):
    """Beside the ledger, for both releases: the one before wrote a sentence there."""
    from tests.unit.tenancy import test_forbidden

    node = make(tmp_path, GPU)
    node.add(test_forbidden.PF)
    for name, text in {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}.items():
        node.write(test_forbidden.PF, name, text)
    node.config(test_forbidden.PF, vendor=0x15B3, device=0x1021)
    view = test_forbidden.view(node)
    step = test_forbidden.step(node, lambda address: test_forbidden.MANAGER)
    assert step.reasons(view, [test_forbidden.PF]).keys() == {test_forbidden.PF}
    kept = json.loads((node.root / "vpd").read_text())
    assert kept == {"boot": "first", "known": {test_forbidden.PF: "never"}}
    for said in ("NVSwitches are managed by it", "nobody knows of this sentence", "never"):
        (node.root / "vpd").write_text(json.dumps({**kept, "known": {test_forbidden.PF: said}}))
        again = test_forbidden.step(node, lambda address: None)
        again.begin(view)
        assert again.reasons(view, [test_forbidden.PF]).keys() == {test_forbidden.PF}
