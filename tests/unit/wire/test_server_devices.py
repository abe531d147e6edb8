# SPDX-License-Identifier: Apache-2.0
"""What an owner reads of a server's devices and of its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_devices import ServerDevices, count_device_groups

_ROLES = st.text("abcdefghijklmnop_.-", min_size=1, max_size=64)


def test_devices_by_role_and_group() -> None:
    found = count_device_groups([("gpu", 0), ("vf", 0), ("gpu", 1), ("vf", 1), ("gpu", 2)])
    assert found["roles"] == {"gpu": 3, "vf": 2}
    assert found["groups"] == ((1, {"gpu": 1}), (2, {"gpu": 1, "vf": 1}))


def test_groups_that_do_not_hold_all_devices_are_not_told() -> None:
    found = count_device_groups([("gpu", 0), ("vf", None)])
    assert found == {"roles": {"gpu": 1, "vf": 1}, "groups": ()}


@given(
    st.dictionaries(_ROLES, st.integers(1, 16), max_size=8),
    st.lists(st.tuples(st.integers(1, 8), st.dictionaries(_ROLES, st.integers(1, 8), max_size=3))),
)
def test_it_is_never_too_long_and_always_read(roles, groups) -> None:
    """A value of more than 255 characters would fail the server's save."""
    made = ServerDevices(Level.SWITCH, AffinityPolicy.REQUIRED, Level.NUMA, roles, tuple(groups))
    text = made.dumps()
    assert len(text) <= 255
    found = server_devices.read_server_devices(text)
    assert (found.asked, found.reached) == (Level.SWITCH, Level.NUMA)
    assert found.roles in (roles, {})
    assert found.groups in (made.groups, ())


@given(st.lists(st.text("0123456789abcdef", min_size=1, max_size=12), max_size=40))
def test_rails_that_do_not_fit_are_left_out(rails) -> None:
    domains = {level: f"{level[0]}-0123456789" for level in position.LEVELS}
    text = Position(domains, tuple(rails)).dumps()
    assert len(text) <= 255
    found = position.read_position(text)
    assert found.domains in (domains, {key: domains[key] for key in domains if key != "core"})
    assert found.rails in (tuple(rails), ())


@pytest.mark.parametrize("missing", [{"block", "sub_domain"}, {"core", "sub_domain"}])
def test_eight_rails_fit(missing) -> None:
    domains = {level: f"{level[0]}-0123456789" for level in position.LEVELS if level not in missing}
    made = Position(domains, tuple(f"r-{number:010x}" for number in range(8)))
    assert position.read_position(made.dumps()) == made


def test_the_core_goes_before_the_rails_where_three_tiers_are_left() -> None:
    levels = set(position.LEVELS) - {"sub_domain"}
    domains = {level: f"{level[0]}-0123456789" for level in position.LEVELS if level in levels}
    rails = tuple(f"r-{number:010x}" for number in range(8))
    found = position.read_position(Position(domains, rails).dumps())
    assert (set(found.domains), found.rails) == (levels - {"core"}, rails)


def test_what_a_user_has_written_is_unknown() -> None:
    assert server_devices.server_devices_of_metadata({}) is None
    for text in ("", "x", json.dumps({"v": 1, "roles": {"gpu": 0}}), '{"v":9}'):
        assert server_devices.server_devices_of_metadata({server_devices.KEY: text}) is None
