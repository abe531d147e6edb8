# SPDX-License-Identifier: Apache-2.0
"""Addresses of virtual functions: local, stable, never the same twice on a node."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.adapters import plan as addresses
from nova_hpc.tenancy.adapters.plan import AddressPrefix, PrefixError

PREFIXES = st.binary(min_size=0, max_size=2).flatmap(
    lambda rest: st.sampled_from([0x02, 0x06, 0x0E, 0xFE]).map(
        lambda first: AddressPrefix(bytes([first]) + rest)
    )
)
SERVERS = st.uuids().map(str)


@given(PREFIXES, st.lists(st.tuples(SERVERS, st.integers(0, 63)), unique=True, max_size=20))
def test_they_are_local_in_the_clouds_range_and_never_the_same(prefix, functions):
    guids, macs = set(), set()
    for server, index in functions:
        for use in ("node", "port"):
            found = addresses.draw_guid(prefix, server, index, use, guids)
            # Locally administered, of one interface, and no broadcast.
            assert found >> 56 & 3 == 2
            assert found.to_bytes(8, "big").startswith(prefix.octets)
            assert 0 < found < (1 << 64) - 1
            assert found not in guids
            assert found == addresses.draw_guid(prefix, server, index, use, guids)
            guids.add(found)
        mac = addresses.draw_mac(prefix, server, index, macs)
        octets = bytes.fromhex(mac.replace(":", ""))
        assert len(octets) == 6
        assert octets.startswith(prefix.octets)
        assert octets[0] & 3 == 2
        assert mac not in macs
        macs.add(mac)
    assert len(guids) == 2 * len(functions)


@given(SERVERS, st.integers(0, 63), st.integers(1, 5))
def test_one_in_use_is_passed_over(server, index, used):
    prefix, taken, seen = AddressPrefix(b"\x0e"), set(), []
    for _ in range(used):
        found = addresses.draw_guid(prefix, server, index, "port", taken)
        assert found not in taken
        taken.add(found)
        seen.append(found)
    assert addresses.draw_guid(prefix, server, index, "port", ()) == seen[0]
    mac = addresses.draw_mac(prefix, server, index, ())
    assert addresses.draw_mac(prefix, server, index, [mac]) != mac


def test_many_servers():
    """No two of twenty thousand functions have the same, without asking one another."""
    names = [str(uuid.UUID(int=number)) for number in range(5_000)]
    prefix = AddressPrefix(b"\x0e")
    for draw in (
        lambda server, index: addresses.draw_guid(prefix, server, index, "node", ()),
        lambda server, index: addresses.draw_mac(prefix, server, index, ()),
    ):
        assert len({draw(name, index) for name in names for index in range(4)}) == 20_000


def test_they_do_not_change():
    """A release that changed them would give a running server others at its next restart."""
    server = "5b3b2a7e-6f1d-4c86-9a51-0d2f8f7c1a11"
    assert addresses.draw_guid(AddressPrefix(b"\x0e"), server, 0, "node", ()) == NODE
    assert addresses.draw_guid(AddressPrefix(b"\x0e"), server, 0, "port", ()) == PORT
    assert addresses.draw_mac(AddressPrefix(b"\x0e\x5a"), server, 1, ()) == MAC


NODE, PORT = 0x0EEBE4F83A87491D, 0x0EDD203FC1E0EAD8
MAC = "0e:5a:2f:1a:d8:ae"


def test_prefixes():
    assert AddressPrefix.parse(" 0E:5a ") == AddressPrefix(b"\x0e\x5a")
    for text in ("", "0", "0e:", "0e5a", "0e:5a:00:01", "zz", "0e\n0e", "\u0660e"):
        with pytest.raises(PrefixError, match=r"is not one to three octets"):
            AddressPrefix.parse(text)
    for text in ("00", "01", "0f", "fc"):
        with pytest.raises(PrefixError, match=r"has to be 2, 6, a or e"):
            AddressPrefix.parse(text)
