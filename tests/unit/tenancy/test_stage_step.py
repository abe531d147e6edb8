# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers: nobody gets a device unclean, whoever is killed whenever."""

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.device_stage import (
    DeviceStage,
    StageAction,
    StageFacts,
    StageMode,
    StagePhase,
)
from nova_hpc.tenancy.stage.runner import StageOutcome, StageRunner
from nova_hpc.wire.ledger import SOMEBODY, DeviceState
from tests.unit.tenancy.hygiene_node import GPU, OTHER
from tests.unit.tenancy.stage_world import DEVICES, Killed, Service, killed_after, world

ONE, TWO = "server-1", "server-2"


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """The disk is not what is tested here."""
    monkeypatch.setattr("nova_hpc.topology.atomic_files.os.fsync", lambda handle: None)


@pytest.fixture
def found(tmp_path):
    return world(tmp_path / "node")


def _entry(found, address=GPU):
    return device_stage.load_stage(found.node.ledger.device(address).stage)


def test_the_ordinary_life(found):
    service = Service(found)
    assert service.update() == {}
    assert service.start(ONE, GPU)
    entry = _entry(found)
    assert (entry.phase, entry.server, entry.since) == (StagePhase.DUE, ONE, found.node.now[0])
    assert service.update() == {}
    service.end(ONE)
    # Before the next update, too: it is on the disk that nobody may have it.
    assert found.node.ledger.staged == {GPU}
    assert not service.start(TWO, GPU)
    assert service.update() == {GPU: "it waits to be cleaned between two servers"}
    assert found.traces == {GPU: ONE}
    service.attend()
    assert (found.traces, found.vms, len(found.seen)) == ({}, {}, 1)
    entry, device = _entry(found), found.node.ledger.device(GPU)
    assert entry.phase is StagePhase.CLEAN
    assert entry.seconds is not None
    assert (device.server, device.last_server, device.unreported) == (None, ONE, True)
    assert service.update() == {}
    assert service.start(TWO, GPU)
    assert _entry(found).seconds == entry.seconds
    assert (_entry(found).phase, _entry(found).server) == (StagePhase.DUE, TWO)


def test_a_stage_waits_until_nova_has_freed_the_device(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.hygiene.after_end(ONE, service.view, found.owners())
    service.stage.after_end(ONE, service.view, found.owners())
    assert service.attend() is True
    assert found.seen == []
    service.free(ONE)
    assert service.attend() is False
    assert len(found.seen) == 1


def test_a_device_that_is_claimed_meanwhile_is_left_alone(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    service.update()
    answers = [frozenset(), frozenset({GPU})]
    asked = attrs.evolve(found.owners(), records=lambda: answers.pop(0))
    service.stage._work.owners = asked
    service.attend()
    assert (answers, found.seen) == ([], [])
    assert _entry(found).phase is StagePhase.DUE


def test_a_restart_keeps_the_devices(found):
    """And a server from before the option was set makes its devices due."""
    before = Service(found, modes={})
    before.update()
    assert before.start(ONE, GPU)
    assert found.node.ledger.staged == frozenset()
    service = Service(found)
    service.update()
    assert found.node.ledger.staged == {GPU}
    service.end(ONE)
    assert service.update() == {GPU: "it waits to be cleaned between two servers"}
    service.settle()
    assert found.traces == {}


def test_a_device_that_is_claimed_during_an_update_is_not_made_due(found):
    """Its start would be refused for nothing: only the first update looks for old servers."""
    service = Service(found)
    service.update()
    found.claimed[GPU] = TWO
    service.update()
    assert found.node.ledger.staged == frozenset()
    del found.claimed[GPU]


def test_an_option_that_is_taken_back(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    after = Service(found, modes={})
    assert after.update() == {}
    after.attend()
    assert found.node.ledger.staged == frozenset()
    assert after.update() == {}


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        (StageOutcome({GPU: "MIG is on"}), DeviceState.QUARANTINED, "MIG is on"),
        (StageOutcome(problem="the service VM gave no answer"), DeviceState.SUSPECT, "no answer"),
        (StageOutcome(problem="the node has 3 MiB", host=True), DeviceState.SUSPECT, "3 MiB"),
        (StageOutcome({}), DeviceState.SUSPECT, "says nothing"),
    ],
)
def test_a_stage_that_does_not_pass(found, outcome, state, words):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    assert service.start(TWO, OTHER)
    service.end(ONE)
    found.outcomes = [outcome]
    service.update()
    service.attend()
    device = found.node.ledger.device(GPU)
    assert device.state is state
    assert words in device.reason
    assert device.server is None
    assert words in service.update()[GPU]
    assert not service.start("server-3", GPU)
    # Nobody else is harmed.
    assert found.node.ledger.device(OTHER).state is DeviceState.OFFERED
    assert found.vms == {}
    found.node.later(1000.0)
    service.settle()
    if state is DeviceState.QUARANTINED:
        assert service.update()[GPU]  # an operator has the next word
        service.hygiene.release(service.view().candidate(GPU), found.owners())
        assert GPU in service.update(), "an operator's release is no stage"
        service.settle()
    assert service.update() == {}
    assert GPU not in found.traces


def test_a_suspect_device_is_not_tried_all_the_time(found):
    """And however often its stage comes to no answer, it is in no quarantine for it."""
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    found.outcomes = [StageOutcome(problem="the service VM gave no answer")] * 30
    for _ in range(60):
        service.update()
        service.attend()
        found.node.later(10.0)
    tried = 30 - len(found.outcomes)
    assert 3 <= tried <= 6  # at once, then after 0, 60, 120 and 240 seconds
    assert found.node.ledger.device(GPU).state is DeviceState.SUSPECT
    found.outcomes.clear()
    found.node.later(1000.0)
    service.settle()
    assert service.update() == {}


def test_a_vm_that_cannot_be_ended(found):
    """It keeps the device, and is ended when libvirt answers again."""
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    found.stuck = True
    found.outcomes = [StageOutcome(problem="libvirt does not answer")]
    service.settle()
    assert len(found.seen) == 1
    assert "is being cleaned in service VM" in service.update()[GPU]
    assert not service.start(TWO, GPU)
    found.stuck = False
    service.settle()
    assert found.vms == {}
    assert service.update() == {}
    assert found.traces == {}


def test_a_vm_that_stays_after_its_answer(found):
    service = Service(found)
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    service.update()
    found.stuck = True
    service.attend()
    assert list(found.vms.values()) == [(GPU,)]
    assert _entry(found).phase is StagePhase.BEGUN
    assert not service.start(TWO, GPU)


def test_a_device_that_cannot_be_reset_after_its_vm_is_not_clean(found):
    @attrs.define
    class Breaks(StageRunner):
        def holder(self):
            return found.holder()

        def run(self, holder, devices):
            outcome = found.run(holder, devices)
            (found.node.devices / GPU / "reset").unlink()
            return outcome

        def end(self, holder, devices):
            return found.end(holder, devices)

    service = Service(found)
    service.stage.runners[StageMode.SERVICE_VM] = Breaks()
    service.update()
    assert service.start(ONE, GPU)
    service.end(ONE)
    service.update()
    service.attend()
    assert _entry(found).phase is StagePhase.DUE
    assert GPU in service.update()
    assert not service.start(TWO, GPU)


def test_a_ledger_that_was_lost_leaves_no_vm(found):
    found.vms["0d6a4f6e-0000-4000-8000-000000000001"] = (GPU,)
    service = Service(found)
    assert GPU in service.update()  # libvirt says that somebody has it
    service.attend()
    assert found.vms == {}


def _life(found):
    service = Service(found)
    service.update()
    service.attend()
    assert service.start(ONE, *DEVICES)
    service.update()
    service.end(ONE)
    service.update()
    service.attend()
    service.update()
    if service.start(TWO, GPU):
        service.end(TWO)
    service.update()
    service.attend()


@pytest.mark.long
def test_the_service_is_killed_at_every_step(tmp_path):
    steps = 0
    while True:
        found = world(tmp_path / str(steps))
        try:
            with killed_after(found, steps):
                _life(found)
        except Killed:
            pass
        else:
            break
        # A new service: the servers of before go on, or go.
        service = Service(found)
        service.update()
        service.attend()
        for server in (ONE, TWO):
            service.free(server)
        assert service.settle() == {}, f"killed after {steps} steps"
        assert (found.vms, found.traces) == ({}, {}), f"killed after {steps} steps"
        assert not found.node.ledger.staged
        assert service.start("server-3", *DEVICES)
        steps += 1
    assert steps > 30
    print(f"killed at {steps} steps")


_STEPS = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(DEVICES)),
    st.tuples(st.just("end"), st.sampled_from(DEVICES)),
    st.tuples(st.just("update"), st.integers(0, 400)),
    st.tuples(st.just("attend"), st.integers(0, 12)),
    st.tuples(st.just("outcome"), st.sampled_from(["no", "problem"])),
    st.tuples(st.just("killed"), st.integers(0, 12)),
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(_STEPS, max_size=25))
def test_random_histories(tmp_path_factory, steps):
    """Servers come and go, stages fail, the service is killed: the world's assertions hold."""
    found = world(tmp_path_factory.mktemp("node") / "node")
    service = Service(found)
    service.update()
    for number, (what, value) in enumerate(steps):
        try:
            if what == "start":
                service.start(f"server-{number}", value)
            elif what == "end" and value in found.claimed:
                service.end(found.claimed[value])
            elif what == "update":
                found.node.later(float(value))
                service.update()
            elif what == "outcome":
                problem = StageOutcome(problem="it hung")
                found.outcomes = [problem if value == "problem" else StageOutcome({GPU: "bad"})]
            else:
                with killed_after(found, value if what == "killed" else None):
                    service.update()
                    service.attend()
        except Killed:
            service = Service(found)
            service.update()
    found.outcomes.clear()
    for server in set(found.claimed.values()):
        service.end(server)
    service.settle(8)
    assert found.vms == {}
    held = found.node.ledger.quarantined.keys()
    assert found.traces.keys() <= held
    assert service.update().keys() <= held


@given(
    st.builds(
        StageFacts,
        st.one_of(st.none(), st.builds(DeviceStage, st.sampled_from(StagePhase))),
        st.sampled_from(StageMode),
        *[st.booleans()] * 4,
    )
)
def test_nothing_begins_on_what_somebody_has(seen):
    action = device_stage.decide_stage_action(seen)
    if action is StageAction.BEGIN:
        assert seen.stage.phase is StagePhase.DUE
        assert not any((seen.taken, seen.mine, seen.quarantined, seen.early))
        assert seen.mode is not StageMode.NONE
    if action is StageAction.END:
        assert seen.stage.phase is StagePhase.BEGUN
        assert not seen.mine
    if action is StageAction.FORGET:
        assert seen.mode is StageMode.NONE
        assert not seen.taken


def test_nobody_gets_a_device_that_is_being_cleaned():
    due = device_stage.make_stage_due(None, ONE, 0.0)
    assert (
        device_stage.refusal_of_stage(due, ONE) is None
    )  # its start failed, and it is tried again
    assert device_stage.refusal_of_stage(due, TWO) == "it waits to be cleaned between two servers"
    begun = device_stage.begin_stage(due, "vm", 1.0)
    for server in (ONE, TWO):
        assert (
            device_stage.refusal_of_stage(begun, server) == "it is being cleaned in service VM vm"
        )
    assert device_stage.refusal_of_stage(device_stage.pass_stage(begun, 1.0, 2.0), TWO) is None


@pytest.mark.parametrize(
    "body",
    [
        *({"": ""}, {"phase": "gone"}, {"phase": 1}, {"phase": "due", "since": "x"}),
        *({"phase": []}, {"phase": "clean", "seconds": float("nan")}),
        {"phase": "due", "holder": 3},
        {"phase": "clean", "since": 10**400},
    ],
)
def test_a_damaged_entry_is_due(body):
    found = device_stage.load_stage(body)
    assert found.phase is StagePhase.DUE
    assert device_stage.refusal_of_stage(found, ONE) is not None


def test_what_is_written_is_read_again():
    entry = DeviceStage(StagePhase.BEGUN, ONE, "vm", 12.5, 3.25)
    assert device_stage.load_stage(entry.dumps()) == entry
    assert device_stage.load_stage(None) is None
    assert attrs.evolve(entry, server=SOMEBODY).pending
