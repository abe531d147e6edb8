# SPDX-License-Identifier: Apache-2.0
"""The actions on all devices of a node, held against sets of devices.

The sets are how the update once decided: each was derived from the ones before it.
"""

import contextlib
import tempfile
from pathlib import Path

import attrs
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.tenancy.holders import KernelHolder
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.device_action import HygieneAction, HygieneFacts, decide_action
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import DeviceState, LedgerDevice, Trial
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, VF, FakeNode

#: Physical function -> its virtual function.
PAIRS = {PF: VF, "0000:44:00.0": "0000:44:00.1", "0000:45:00.0": "0000:45:00.1"}
PARENTS = {child: parent for parent, child in PAIRS.items()}
DEVICES = (GPU, OTHER, *PAIRS, *PARENTS)
#: A suspicion, and a fault that keeps everybody's hands off the device.
SIGNS = (HealthSign.LINK, HealthSign.SILENT)


@attrs.frozen
class Device:
    """One device, and whatever else is known of it."""

    offered: bool
    sign: HealthSign | None
    #: A server, or a process, uses it, or another process has its lock.
    holder: str | None
    server: str | None
    state: DeviceState
    #: Whether its next try is due, if it is suspect.
    due: bool
    proof: str | None
    stage: str | None
    master: bool
    driver: str

    @property
    def user(self):
        """The holder, as far as an update asks for it."""
        return self.holder if self.holder == "server" or self.offered or self.server else None

    @property
    def entry(self):
        trial = None if self.due else Trial(tries=9, tried=1000.0, boot="first")
        return LedgerDevice(
            state=self.state,
            reason="" if self.state is DeviceState.OFFERED else "it was bad",
            trial=trial if self.state is DeviceState.SUSPECT else None,
            server=self.server,
            proof=None if self.server else self.proof,
            stage=None if self.stage is None else {"phase": self.stage, "server": "server-9"},
        )


def _often(value, *others):
    return st.sampled_from((value, value, *others))


NODES = st.fixed_dictionaries(
    {
        address: st.builds(
            Device,
            offered=_often(True, False),
            sign=_often(None, *SIGNS),
            holder=_often(None, "server", "process", "lock"),
            server=_often(None, "server-1"),
            state=_often(*DeviceState),
            due=st.booleans(),
            proof=st.sampled_from((None, "")),
            stage=_often(None, "due", "clean"),
            master=st.booleans(),
            driver=_often("vfio-pci", "nvme"),
        )
        for address in DEVICES
    }
)


def _where(node, condition):
    return {address for address, device in node.items() if condition(device)}


def by_sets(node):
    """Address -> action, of all devices."""
    every = set(node)
    offered = _where(node, lambda device: device.offered)
    ill = _where(node, lambda device: device.sign is not None)
    used = _where(node, lambda device: device.user in ("server", "process"))
    waiting = _where(node, lambda device: device.user == "lock")
    marked = _where(node, lambda device: device.server is not None)
    quarantined = _where(node, lambda device: device.state is DeviceState.QUARANTINED)
    staged = _where(node, lambda device: device.stage == "due")
    proved = _where(node, lambda device: device.proof is not None) - marked
    well = offered - ill
    fit = well | offered & _where(node, lambda device: device.sign is HealthSign.LINK)
    mastering = fit & _where(node, lambda device: device.master and device.driver == "vfio-pci")
    busy = used | waiting
    # An update also looks for users of virtual functions that are neither offered nor marked.
    parents = {
        parent for parent, child in PAIRS.items() if node[child].holder is not None
    } & offered
    owing = fit - marked - (proved - mastering) - busy - quarantined - staged - parents
    left = marked - busy - parents | owing
    early = left & _where(node, lambda d: d.state is DeviceState.SUSPECT and not d.due)
    kept = left & quarantined
    cleaned = left - early - kept
    free = (well | ill) - busy - staged - quarantined - marked - left
    actions = dict.fromkeys(every, HygieneAction.LEAVE)
    for addresses, action in (
        (early, HygieneAction.WAIT),
        (kept, HygieneAction.UNMARK),
        (cleaned, HygieneAction.CLEAN),
        (free, HygieneAction.JUDGE),
    ):
        actions |= dict.fromkeys(addresses, action)
    return actions


def _facts(device, child):
    fit = device.offered and device.sign in (None, HealthSign.LINK)
    shared = child is not None and child.holder is not None
    look = DeviceSnapshot(master=device.master) if fit and device.user != "server" else None
    return HygieneFacts(
        entry=device.entry,
        early=device.state is DeviceState.SUSPECT and not device.due,
        taken=device.user in ("server", "process"),
        reason=""
        if device.user == "lock" or (shared and device.offered and device.server)
        else None,
        fault=device.sign and Symptom(device.sign, "it is ill"),
        look=look,
        masters=look is not None and device.master and device.driver == "vfio-pci",
        shared=shared and device.offered,
    )


@given(NODES)
def test_actions_are_those_of_the_sets(node):
    actions = {
        address: decide_action(_facts(device, node.get(PAIRS.get(address))))
        for address, device in node.items()
    }
    assert actions == by_sets(node)


@settings(
    # The smallest node with a fault would take minutes to find.
    max_examples=60,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),
)
@given(NODES)
def test_an_update_does_to_each_device_what_the_sets_say(node):
    """Read from files, with locks, holders and the ledger as they are."""
    with tempfile.TemporaryDirectory() as folder:
        _update_and_compare(node, FakeNode(Path(folder)))


def _update_and_compare(node, fake):
    fake.boot("first")
    for address in DEVICES:
        fake.add(address, physfn=PARENTS.get(address), master=node[address].master)
        fake.bind(address, node[address].driver)
    fake.file.change(
        lambda ledger: attrs.evolve(
            ledger.put({address: device.entry for address, device in node.items()}), compared=True
        )
    )
    resets = []

    def reset(address):
        resets.append(address)
        fake.config(address)

    holders = {
        address: KernelHolder("a process has it", True)
        for address in _where(node, lambda device: device.holder == "process")
    }
    used = frozenset(_where(node, lambda device: device.user == "server"))
    owners = DeviceOwners(
        lambda: used,
        NodeGuestDomains,
        lambda asked: {address: holders[address] for address in asked if address in holders},
    )
    offered = fake.candidates(*sorted(_where(node, lambda device: device.offered)))
    ill = {
        address: Symptom(device.sign, "it is ill")
        for address, device in node.items()
        if device.sign is not None
    }
    with contextlib.ExitStack() as stack:
        for address in _where(node, lambda device: device.holder == "lock"):
            stack.enter_context(fake.file.locked(address, 0))
        reasons = fake.step(reset=reset).sweep(offered, owners, ill)
    for address, action in by_sets(node).items():
        device, entry = node[address], fake.ledger.device(address)
        about = f"{address} {action} {device} {entry}"
        cleaned = action is HygieneAction.CLEAN
        # A driver of the host vouches for its device, and the device is not reset.
        assert resets.count(address) == (cleaned and device.driver == "vfio-pci"), about
        assert (entry.cleaned, entry.failed) == (cleaned, 0), about
        if action is HygieneAction.UNMARK:
            assert (entry.server, entry.state) == (None, DeviceState.QUARANTINED), about
        if action is HygieneAction.WAIT:
            assert reasons.get(address) == (None if device.sign else "it was bad"), about
            assert entry.server == device.server, about
        if device.user == "lock":
            expected = "it is being checked" if device.sign is None else None
            assert reasons.get(address) == expected, about
        if device.offered and device.sign is None:
            judged = cleaned or action is HygieneAction.JUDGE
            on = device.master and device.driver == "vfio-pci" and not cleaned
            assert (entry.baseline is not None) == (judged and not on), about
        elif action is HygieneAction.JUDGE:
            assert entry.baseline is None, about
            suspect = device.sign is HealthSign.SILENT and device.due
            # An update also asks for the users of an offered device's virtual functions, and a
            # device with a known user is left as it is.
            parent = node.get(PARENTS.get(address))
            if device.holder == "process" and parent is not None and parent.offered:
                assert entry.state is device.state, about
            elif suspect:
                assert entry.state is DeviceState.SUSPECT, about


@pytest.mark.parametrize("mark", [None, "server-1"])
@pytest.mark.parametrize("is_held", [False, True])
def test_a_function_that_is_not_offered_protects_its_device(tmp_path, is_held, mark):
    """Before, only users of offered or marked functions were looked for, and a mark hid them."""
    fake = FakeNode(tmp_path)
    fake.boot("first")
    (child, parent), *_ = PARENTS.items()
    fake.add(parent)
    fake.add(child, physfn=parent)
    for address in (parent, child):
        fake.bind(address, "vfio-pci")
    resets = []

    def reset(address):
        resets.append(address)
        fake.config(address)

    held = {child: KernelHolder("a process has it", True)} if is_held else {}
    owners = DeviceOwners(
        frozenset,
        NodeGuestDomains,
        lambda asked: {address: held[address] for address in asked if address in held},
    )
    # Without a proof of cleanness the device is reset before it is offered.
    fake.file.change(
        lambda ledger: attrs.evolve(ledger.put({parent: LedgerDevice(server=mark)}), compared=True)
    )
    reasons = fake.step(reset=reset).sweep(fake.candidates(parent), owners, {})
    expected = "one of its virtual functions is in use" if is_held and mark else None
    assert reasons.get(parent) == expected
    assert resets == ([] if is_held else [parent])
    assert fake.ledger.device(child).server is None
