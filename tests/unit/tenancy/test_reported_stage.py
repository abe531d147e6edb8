# SPDX-License-Identifier: Apache-2.0
"""Reported devices in their stage: tested once, judged by the test alone, and no other waits."""

import threading

import attrs
import pytest

from nova_hpc.tenancy.stage import device_stage
from nova_hpc.tenancy.stage.device_stage import StageMode, StagePhase
from nova_hpc.tenancy.stage.runner import StageOutcome, StageRunner
from nova_hpc.tenancy.watch import owner_report
from nova_hpc.wire.ledger import DeviceState
from nova_hpc_common.wire.server_faults import FaultWord
from tests.unit.tenancy.hygiene_node import GPU, OTHER
from tests.unit.tenancy.stage_world import DEVICES, Killed, Service, killed_after, world

ONE, TWO = "server-1", "server-2"


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    """The disk is not what is tested here."""
    monkeypatch.setattr("nova_hpc.topology.atomic_files.os.fsync", lambda handle: None)


@attrs.define
class HardwareTester(StageRunner):
    """The test of the hardware, in the world's own service VMs."""

    found: object
    outcomes: list = attrs.field(factory=list)
    tested: list = attrs.field(factory=list)
    #: The test ends when this is set.
    hold: threading.Event = attrs.field(factory=threading.Event)

    def holder(self):
        return self.found.holder()

    def run(self, holder, devices):
        device = self.found.node.ledger.device(next(iter(devices)))
        assert (device.stage["holder"], device.server) == (holder, holder)
        self.found.tick()
        self.tested.append(tuple(devices))
        self.hold.wait(20.0)
        self.found.tick()
        return self.outcomes.pop(0) if self.outcomes else StageOutcome(dict.fromkeys(devices, ""))

    def end(self, holder, devices):
        return self.found.end(holder, devices)


def serve(found, tester, spawn=None):
    """One life of nova-compute whose role gpu has a test; its second thread runs at once."""
    service = Service(found)
    lanes = {"gpu": ("burn",)}
    stage = service.stage
    service.stage = attrs.evolve(
        stage,
        tests=lanes,
        testers={StageMode.SERVICE_VM: tester},
        spawn=spawn or (lambda attend: attend() if attend.__name__ == "process" else None),
    )
    return service


@pytest.fixture
def found(tmp_path):
    return world(tmp_path / "node")


@pytest.fixture
def tester(found):
    made = HardwareTester(found)
    made.hold.set()
    return made


def report(service, server, *addresses):
    words = {FaultWord.SLOW: 1767225600.0}
    service.hygiene.records.change(
        lambda ledger: {
            each: owner_report.put_reported_words(ledger.device(each), server, words)
            for each in addresses
        }
    )


def judged(found, address=GPU):
    entry = owner_report.load_owner_report(found.node.ledger.device(address).report)
    return None if entry is None else (entry.server, entry.judged is not None)


def end(service, server):
    service.end(server)
    service.update()
    service.attend()


def test_a_reported_device_is_tested_once_and_others_never(found, tester):
    service = serve(found, tester)
    service.update()
    assert service.start(ONE, GPU)
    assert service.start(TWO, OTHER)
    report(service, ONE, GPU)
    # A word withholds nothing while the server has the device.
    assert service.update() == {}
    end(service, ONE)
    assert tester.tested == [(GPU,)]
    assert len(found.seen) == 1  # its own stage, as always, before the test
    assert judged(found) == (ONE, True)
    end(service, TWO)
    assert service.update() == {}
    assert tester.tested == [(GPU,)]
    # The report of an earlier owner asks for no second test.
    assert service.start("server-3", *DEVICES)
    end(service, "server-3")
    assert (tester.tested, service.update()) == ([(GPU,)], {})
    assert judged(found) == (ONE, True)


@pytest.mark.parametrize(
    ("outcome", "state", "words"),
    [
        (StageOutcome({GPU: "row 7 is lost"}), DeviceState.QUARANTINED, "report: row 7 is lost"),
        (StageOutcome({GPU: ""}), DeviceState.OFFERED, ""),
        # A test that cannot be made must not withhold what a tenant reports.
        (StageOutcome(problem="no program burn"), DeviceState.OFFERED, ""),
        (StageOutcome(problem="no memory", host=True), DeviceState.OFFERED, ""),
        (StageOutcome({}), DeviceState.OFFERED, ""),
    ],
)
def test_the_verdict_of_the_test_decides(found, tester, outcome, state, words):
    service = serve(found, tester)
    service.update()
    assert service.start(ONE, GPU)
    report(service, ONE, GPU)
    tester.outcomes = [outcome]
    end(service, ONE)
    device = found.node.ledger.device(GPU)
    assert device.state is state
    assert device.reason.endswith(words)
    # A test without an answer has checked nothing.
    assert judged(found) == (ONE, not outcome.problem)
    assert found.node.ledger.device(OTHER).state is DeviceState.OFFERED
    for _ in range(3):
        found.node.later(1000.0)
        service.update()
        service.attend()
    assert len(tester.tested) == 1
    assert (service.update() == {}) is (state is DeviceState.OFFERED)


def test_a_stage_without_an_answer_is_tested_when_it_has_passed(found, tester):
    service = serve(found, tester)
    service.update()
    assert service.start(ONE, GPU)
    report(service, ONE, GPU)
    found.outcomes = [StageOutcome(problem="it hung")]
    end(service, ONE)
    assert (tester.tested, judged(found)) == ([], (ONE, False))
    service.settle()
    assert (tester.tested, judged(found)) == ([(GPU,)], (ONE, True))
    assert service.update() == {}


def test_a_stage_that_fails_needs_no_test(found, tester):
    service = serve(found, tester)
    service.update()
    assert service.start(ONE, GPU)
    report(service, ONE, GPU)
    found.outcomes = [StageOutcome({GPU: "MIG is on"})]
    end(service, ONE)
    assert (tester.tested, judged(found)) == ([], (ONE, True))
    assert found.node.ledger.device(GPU).reason.endswith("its stage: MIG is on")


def test_no_other_device_waits_for_a_test(found, tester):
    """A tenant who reports all its devices slows only their own return."""
    threads = []

    def spawn(attend):
        if attend.__name__ == "process":
            threads.append(threading.Thread(target=attend, daemon=True))
            threads[-1].start()

    service = serve(found, tester, spawn)
    service.update()
    assert service.start(ONE, GPU)
    assert service.start(TWO, OTHER)
    report(service, ONE, GPU)
    tester.hold.clear()
    end(service, ONE)
    for _ in range(2):
        end(service, TWO)
        assert device_stage.load_stage(found.node.ledger.device(OTHER).stage).phase is (
            StagePhase.CLEAN
        )
        service.update()
        assert service.start(TWO, OTHER)
    assert not service.start("server-3", GPU)
    assert len(threads) == 1
    tester.hold.set()
    threads[0].join(60.0)
    assert service.update() == {}
    assert service.start("server-3", GPU)


@pytest.mark.slow
def test_the_service_is_killed_at_every_step(tmp_path):
    """The device is offered in the end, with a test that was begun again only by a kill."""
    steps = 0
    while True:
        found = world(tmp_path / str(steps))
        tester = HardwareTester(found)
        tester.hold.set()
        service = serve(found, tester)
        service.update()
        assert service.start(ONE, GPU)
        report(service, ONE, GPU)
        killed = False
        try:
            with killed_after(found, steps):
                end(service, ONE)
        except Killed:
            killed = True
        service = serve(found, tester)
        service.update()
        service.free(ONE)
        assert service.settle(6) == {}, f"killed after {steps} steps"
        assert (found.vms, found.traces) == ({}, {}), f"killed after {steps} steps"
        assert judged(found) == (ONE, True)
        assert 1 <= len(tester.tested) <= 2
        if not killed:
            break
        steps += 1
    assert steps > 15
    assert len(tester.tested) == 1
