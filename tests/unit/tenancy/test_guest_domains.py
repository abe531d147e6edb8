# SPDX-License-Identifier: Apache-2.0
"""What the XML of guest domains says of PCI devices; broken XML is unknown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
    parse_passed_functions,
)

GPU, VF = "0000:41:00.0", "0000:43:00.1"


def domain(*devices):
    return f"<domain type='kvm'><devices>{''.join(devices)}</devices></domain>"


def address(text, kind=""):
    parts = (text[:4], text[5:7], text[8:10], text[11:])
    names = ("domain", "bus", "slot", "function")
    attributes = " ".join(f"{n}='0x{p}'" for n, p in zip(names, parts, strict=True))
    return f"<address {kind} {attributes}/>"


def hostdev(text):
    place = address("0000:05:00.0", "type='pci'")
    source = f"<source>{address(text)}</source>"
    return f"<hostdev mode='subsystem' type='pci' managed='no'>{source}{place}</hostdev>"


def interface(text):
    place = address(text, "type='pci'")
    return f"<interface type='hostdev'><source>{place}</source></interface>"


def test_all_forms():
    nvme = f"<source type='pci' managed='yes' namespace='1'>{address('0000:45:00.0')}</source>"
    xml = domain(
        hostdev(GPU),
        hostdev("0001:C1:00.7"),
        interface(VF),
        "<hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>",
        "<interface type='bridge'><source bridge='br0'/></interface>",
        f"<disk type='nvme'>{nvme}</disk>",
        f"<disk type='file'><backingStore>{nvme.replace('0x45', '0x46')}</backingStore></disk>",
    )
    expected = {GPU, "0001:c1:00.7", "0000:45:00.0", "0000:46:00.0"}
    assert parse_passed_functions(xml) == PassedFunctions(frozenset(expected), frozenset({VF}))


def test_libvirt_reads_decimal_numbers_and_what_is_missing_as_zero():
    text = "<hostdev type='pci'><source><address bus='65'/></source></hostdev>"
    assert parse_passed_functions(domain(text)).all == {GPU}


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<domain>",
        "no XML",
        "<network/>",
        None,
        "<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain",
        domain("<hostdev type='pci'/>"),
        domain("<hostdev type='pci'><source/></hostdev>"),
        domain("<hostdev type='pci'><source><address bus='x'/></source></hostdev>"),
        domain("<hostdev type='pci'><source><address bus='0x1ff'/></source></hostdev>"),
        domain("<hostdev type='pci'><source><address slot='-1'/></source></hostdev>"),
        domain("<interface type='hostdev'><source dev='eth0'/></interface>"),
    ],
)
def test_what_is_broken_is_unknown(xml):
    assert parse_passed_functions(xml).problem


def test_what_can_be_read_is_kept_beside_what_cannot():
    found = parse_passed_functions(domain(hostdev(GPU), "<hostdev type='pci'/>"))
    assert found.all == {GPU}
    assert found.problem


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda b: b.decode("latin-1")))
def test_it_never_raises(text):
    found = parse_passed_functions(text)
    assert found.problem or not found.all


class Virtual:
    """A virDomain."""

    def __init__(self, name, state=1, live="", following=None, saved=0):
        self._name, self._state, self._saved = name, state, saved
        self._live, self._following = live, live if following is None else following

    def name(self):
        return self._name

    def UUIDString(self):
        return f"UUID-{self._name}"

    def info(self):
        return [self._state, 0, 0, 0, 0]

    def hasManagedSaveImage(self, flags):
        return self._saved

    def XMLDesc(self, flags):
        text = self._following if flags & 2 else self._live
        if isinstance(text, Exception):
            raise text
        return text


class GoneError(Exception):
    pass


def read(*handles):
    return guest_domains.read_guest_domains(
        lambda: handles, lambda error: isinstance(error, GoneError)
    )


@pytest.mark.parametrize(
    ("state", "saved", "condition", "live"),
    [
        (0, 0, DomainCondition.RUNNING, {GPU}),
        (1, 0, DomainCondition.RUNNING, {GPU}),
        (2, 0, DomainCondition.RUNNING, {GPU}),
        (3, 0, DomainCondition.PAUSED, {GPU}),
        (4, 0, DomainCondition.RUNNING, {GPU}),
        (5, 0, DomainCondition.SHUT_OFF, set()),
        (5, 1, DomainCondition.SAVED, set()),
        (6, 0, DomainCondition.RUNNING, {GPU}),
        (7, 0, DomainCondition.PAUSED, {GPU}),
        (99, 0, DomainCondition.RUNNING, {GPU}),
    ],
)
def test_conditions(state, saved, condition, live):
    found = read(Virtual("a", state, domain(hostdev(GPU)), domain(interface(VF)), saved))
    (one,) = found.domains
    assert (one.condition, one.live.all, one.following.all) == (condition, live, {VF})
    assert (one.uuid, found.unknown) == ("uuid-a", None)
    assert found.having(VF) is one
    assert (found.having(GPU) is one) == bool(live)


def test_one_that_cannot_be_read_hides_no_other():
    found = read(
        Virtual("broken", live=RuntimeError("the monitor\ndoes not answer")),
        Virtual("good", live=domain(hostdev(GPU))),
        Virtual("ended", live=GoneError()),
    )
    assert [each.name for each in found.domains] == ["broken", "good"]
    assert found.having(GPU).name == "good"
    assert found.having(VF) is None
    assert found.problem is None
    expected = (
        "guest domain broken (in an unknown state) cannot be read: "
        "RuntimeError: the monitor does not answer"
    )
    assert found.unknown == expected


def test_a_libvirt_that_does_not_answer():
    def listing():
        raise ConnectionError("no socket")

    found = guest_domains.read_guest_domains(listing, lambda error: False)
    assert found == NodeGuestDomains(
        problem="libvirt does not say which guest domains there are (ConnectionError: no socket)"
    )
    assert found.unknown == found.problem


def test_a_domain_that_runs_comes_before_one_that_is_defined():
    defined = NodeGuestDomain(
        "1", "a", DomainCondition.SHUT_OFF, following=PassedFunctions(frozenset({GPU}))
    )
    running = NodeGuestDomain(
        "2", "b", DomainCondition.RUNNING, live=PassedFunctions(frozenset({GPU}))
    )
    found = NodeGuestDomains((defined, running))
    assert found.having(GPU) is running
    assert found.of("1") is defined
    assert found.of("3") is None
    assert str(running) == "guest domain b (running)"
