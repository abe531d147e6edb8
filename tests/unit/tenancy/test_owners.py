# SPDX-License-Identifier: Apache-2.0
"""A device is free when Nova, libvirt and the kernel say so; all others keep it as it is."""

import itertools

import attrs
import pytest

from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
    unknown_guest_domains,
)
from nova_hpc.tenancy.holders import KernelHolder
from nova_hpc.tenancy.hygiene.step import HygieneStep
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.wire.ledger import SOMEBODY

from .hygiene_node import GPU, OTHER, make, settled

ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
BUSY, SILENT = (
    KernelHolder("a process has it open"),
    KernelHolder("cannot be opened", certain=False),
)


def guest(uuid, *addresses, condition=DomainCondition.RUNNING):
    has = PassedFunctions(frozenset(addresses))
    live = has if condition is DomainCondition.RUNNING else PassedFunctions()
    return NodeGuestDomain(uuid, f"instance-{uuid[:4]}", condition, live, has)


NONE = NodeGuestDomains()


def owners(records=(), domains=NONE, holders=None):
    known = holders or {}
    return DeviceOwners(
        lambda: frozenset(records),
        lambda: domains,
        lambda asked: {each: known[each] for each in asked if each in known},
    )


UNKNOWN = unknown_guest_domains("no socket")
BROKEN = NodeGuestDomains(
    (attrs.evolve(guest(TWO), live=PassedFunctions(problem="its XML is broken")),)
)


@pytest.mark.parametrize(
    ("domains", "holder"),
    [
        *itertools.product(
            (NONE, NodeGuestDomains((guest(TWO, GPU),)), UNKNOWN, BROKEN), (None, BUSY, SILENT)
        )
    ],
)
def test_free_is_what_all_say(domains, holder):
    found = owners(domains=domains, holders={GPU: holder} if holder else {}).held([GPU])
    assert (found == {}) == (domains == NodeGuestDomains() and holder is None)
    if domains.domains and domains is not BROKEN:
        assert found[GPU].server == TWO
    elif domains == NodeGuestDomains() and holder is BUSY:
        assert found[GPU].server == SOMEBODY
    elif found:
        assert found[GPU].server is None
        assert found[GPU].text.startswith("the node cannot say whether it is free: ")


def test_a_server_may_have_its_own():
    mine = NodeGuestDomains((guest(ONE, GPU),))
    assert owners(domains=mine, holders={GPU: BUSY}).held([GPU], ONE) == {}
    assert owners(domains=mine).held([GPU], TWO)[GPU].server == ONE
    assert owners(domains=mine, holders={OTHER: BUSY}).held([GPU, OTHER], ONE).keys() == {OTHER}


def test_libvirt_is_asked_once_and_the_kernel_of_what_no_guest_has():
    asked = []

    def holders(addresses):
        asked.append(list(addresses))
        return {}

    def domains():
        asked.append("libvirt")
        return NodeGuestDomains((guest(TWO, GPU),))

    found = DeviceOwners(frozenset, domains, holders).held([GPU, OTHER])
    assert found.keys() == {GPU}
    assert asked == ["libvirt", [OTHER]]
    assert DeviceOwners(frozenset, pytest.fail, pytest.fail).held([]) == {}


def test_busy():
    known = NodeGuestDomains((guest(TWO, GPU),))
    assert owners([OTHER], known).busy([GPU, OTHER]) == {GPU, OTHER}
    assert owners([OTHER], known).busy([GPU]) == {GPU}
    assert owners(domains=UNKNOWN).busy([GPU, OTHER]) == {GPU, OTHER}
    assert owners().busy([GPU, OTHER]) == frozenset()


# -- the step -----------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    return settled(make(tmp_path))


def sweep(node, who):
    return node.step().sweep(node.candidates(GPU, OTHER), who)


@pytest.mark.parametrize(
    ("who", "mark"),
    [
        (owners(domains=NodeGuestDomains((guest(TWO, GPU),))), TWO),
        (
            owners(domains=NodeGuestDomains((guest(TWO, GPU, condition=DomainCondition.SAVED),))),
            TWO,
        ),
        (owners(domains=NodeGuestDomains((guest("", GPU),))), SOMEBODY),
        (owners(holders={GPU: BUSY}), SOMEBODY),
        (owners(holders={GPU: SILENT}), None),
        (owners(domains=UNKNOWN), None),
        (owners(domains=BROKEN), None),
    ],
)
@pytest.mark.parametrize("before", [None, ONE])
def test_what_somebody_has_is_left_alone(node, who, mark, before):
    if before:
        node.step().give(before, node.candidates(GPU))
    known = node.ledger.device(GPU)
    for _ in range(2):
        assert sweep(node, who)[GPU]
        # Whoever had it first may be the one that has it: the mark is not replaced.
        proof = None if before or mark else known.proof
        then = attrs.evolve(known, server=before or mark, proof=proof)
        assert node.ledger.device(GPU) == then
        assert not node.resets(GPU)
    assert node.ledger.device(OTHER).server is None
    assert node.ledger.quarantined == {}
    # It is free again, and clean when somebody has had it.
    assert sweep(node, owners()) == {}
    assert node.resets(GPU) == bool(before or mark)
    assert node.ledger.device(GPU).server is None


def test_it_is_no_baseline(tmp_path):
    node = make(tmp_path)
    sweep(node, owners(domains=NodeGuestDomains((guest(TWO, GPU),)), holders={OTHER: SILENT}))
    assert node.ledger.device(GPU).baseline is None
    assert node.ledger.device(OTHER).baseline is None
    sweep(node, owners())
    assert node.ledger.device(GPU).baseline is not None


@pytest.mark.parametrize("who", [owners(domains=UNKNOWN), owners(holders={GPU: BUSY})])
def test_before_a_server_starts(node, who):
    refused = HygieneStep.give(node.step(), ONE, node.candidates(GPU, OTHER), who)
    assert GPU in refused
    assert node.ledger.marked == {}
    assert node.ledger.quarantined == {}


def test_the_mark_of_a_server_that_is_gone_is_not_cleaned_under_a_guest(node):
    node.step().give(ONE, node.candidates(GPU))
    who = owners(domains=NodeGuestDomains((guest(ONE, GPU),)))
    assert "guest domain" in HygieneStep.give(node.step(), TWO, node.candidates(GPU), who)[GPU]
    assert not node.resets(GPU)
    assert node.ledger.device(GPU).server == ONE


@pytest.mark.parametrize(
    "who", [owners(domains=UNKNOWN), owners(domains=NodeGuestDomains((guest(ONE, GPU),)))]
)
def test_after_a_server(node, who):
    node.step().give(ONE, node.candidates(GPU, OTHER))
    held = HygieneStep.take_back(node.step(), ONE, {}, who)
    assert GPU in held
    assert node.ledger.device(GPU).server == ONE
    assert not node.resets(GPU)
    assert node.resets(OTHER) == (OTHER not in held)


def test_a_group_that_is_taken_while_it_is_reset_is_no_failure(node):
    """The look finds it free; the process that resets finds somebody in."""
    node.step().give(ONE, node.candidates(GPU))
    with node.held(GPU):
        assert "/dev/vfio/" in sweep(node, owners())[GPU]
        assert "/dev/vfio/" in HygieneStep.take_back(node.step(), ONE, {}, owners())[GPU]
    found = node.ledger.device(GPU)
    assert (found.server, found.failed, node.ledger.quarantined) == (ONE, 0, {})
    assert sweep(node, owners()) == {}
    assert node.resets(GPU)


def test_a_device_that_is_given_meanwhile_is_not_looked_at(node):
    """Its guest may be starting: to ask the kernel could make it fail."""
    asked = []

    def domains():
        # Between the look at the ledger and the kernel.
        node.step().give(ONE, node.candidates(GPU))
        return NodeGuestDomains()

    def holders(addresses):
        asked.extend(addresses)
        return {}

    node.step().sweep(node.candidates(GPU, OTHER), DeviceOwners(frozenset, domains, holders))
    assert asked == [OTHER]


@pytest.mark.parametrize("what", ["accept", "release"])
@pytest.mark.parametrize(
    "who",
    [owners([GPU]), owners(domains=UNKNOWN), owners(holders={GPU: BUSY})],
    ids=["Nova", "libvirt", "kernel"],
)
def test_what_an_operator_asks_for(node, what, who):
    (candidate,) = node.candidates(GPU).values()
    node.file.quarantine({GPU: "burnt"})
    with pytest.raises(LedgerError, match=GPU):
        getattr(node.step(), what)(candidate, who)
    assert not node.resets(GPU)
    assert node.ledger.quarantined == {GPU: "burnt"}
