# SPDX-License-Identifier: Apache-2.0
"""Guests against Nova's records: what is a difference, and what is not."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import kept_devices
from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
)
from nova_hpc.tenancy.kept_devices import GuestDifference, PromisedDevices, PromiseLook

A, B, C = "0000:41:00.0", "0000:42:00.0", "0000:43:00.1"
ONE, TWO = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


def guest(
    server: str, *devices: str, ports: tuple[str, ...] = (), **more: object
) -> NodeGuestDomain:
    live = PassedFunctions(frozenset(devices), frozenset(ports))
    return NodeGuestDomain(server, "instance-1", DomainCondition.RUNNING, live=live, **more)  # type: ignore[arg-type]


def promised(server: str, *devices: str, settled: bool = True) -> PromisedDevices:
    return PromisedDevices(server, frozenset(devices), settled)


def compare(given_: PromisedDevices, domain: NodeGuestDomain) -> tuple[GuestDifference, ...]:
    return kept_devices.find_guest_differences([given_], NodeGuestDomains((domain,)))


def test_both_directions_and_ports() -> None:
    assert compare(promised(ONE, A, C), guest(ONE, A, ports=(C,))) == ()
    assert compare(promised(ONE, A, C), guest(ONE, A)) == (GuestDifference(ONE, gone=(C,)),)
    assert compare(promised(ONE, A), guest(ONE, A, B)) == (GuestDifference(ONE, more=(B,)),)
    assert compare(promised(ONE, A), guest(ONE, B)) == (GuestDifference(ONE, gone=(A,), more=(B,)),)


def test_what_is_no_difference() -> None:
    """A server that is changed, one that is off or saved, one without a guest, a foreign guest."""
    assert compare(promised(ONE, A, settled=False), guest(ONE)) == ()
    for condition in (DomainCondition.SAVED, DomainCondition.SHUT_OFF, DomainCondition.UNKNOWN):
        assert compare(promised(ONE, A), attrs.evolve(guest(ONE), condition=condition)) == ()
    assert compare(promised(ONE, A), guest(TWO, B)) == ()
    paused = attrs.evolve(guest(ONE), condition=DomainCondition.PAUSED)
    assert compare(promised(ONE, A), paused) == (GuestDifference(ONE, gone=(A,)),)


def test_a_guest_that_cannot_be_read_in_full() -> None:
    hidden = attrs.evolve(guest(ONE, B), live=PassedFunctions(frozenset({B}), problem="no address"))
    # The missing one may be the one that could not be read; the other is there for certain.
    assert compare(promised(ONE, A), hidden) == (GuestDifference(ONE, more=(B,)),)


def test_a_word_for_each_device_and_server() -> None:
    found = kept_devices.find_guest_differences(
        [promised(ONE, A), promised(TWO, B, C)], NodeGuestDomains((guest(ONE, B), guest(TWO, A, C)))
    )
    assert kept_devices.difference_words_of(found) == {
        (ONE, A): kept_devices.GONE,
        (ONE, B): kept_devices.MORE,
        (TWO, B): kept_devices.GONE,
        (TWO, A): kept_devices.MORE,
    }
    assert kept_devices.difference_words_of(()) == {}


def test_the_cure_is_named_for_each_device() -> None:
    found = kept_devices.find_guest_differences(
        [promised(ONE, A), promised(TWO, B)], NodeGuestDomains((guest(ONE, B), guest(TWO, A)))
    )
    texts = kept_devices.reasons_of_differences(found)
    assert texts.keys() == {A, B}
    for text in texts.values():
        assert f"hard reboot of server {ONE}" in text
        assert f"hard reboot of server {TWO}" in text


def test_a_difference_holds_when_it_is_seen_again() -> None:
    lost = GuestDifference(ONE, gone=(A,))
    first = PromiseLook().then([lost])
    assert first.known == ()
    assert first.then([lost]).known == (lost,)
    # Another one than before, as when ports come and go, is new again.
    other = GuestDifference(ONE, gone=(B,))
    assert first.then([other]).known == ()
    assert first.then([]).then([lost]).known == ()


ADDRESSES = st.frozensets(st.sampled_from([A, B, C, "0000:44:00.0"]))


@given(ADDRESSES, ADDRESSES, ADDRESSES)
def test_the_two_sides_are_what_they_are(
    records: frozenset[str], hostdevs: frozenset[str], ports: frozenset[str]
) -> None:
    found = compare(promised(ONE, *records), guest(ONE, *hostdevs, ports=tuple(ports)))
    live = hostdevs | ports
    gone = {each for one in found for each in one.gone}
    more = {each for one in found for each in one.more}
    assert (live - more) | gone == records
    assert gone <= records
    assert not more & records
    assert kept_devices.reasons_of_differences(found).keys() == gone | more
