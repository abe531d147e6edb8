# SPDX-License-Identifier: Apache-2.0
"""An alias is bound to one role, whatever Nova would give for it."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import DeviceGroup, DevicePool, FreeHost, Request, Want
from nova_hpc.placement.roles import (
    RoleConflictError,
    bind_alias_roles,
    restrict_to_roles,
    roles_played_by_hosts,
    roles_played_on_host,
)
from nova_hpc_common.level import AffinityPolicy, Level, Location


def want(name, key="0"):
    return Want(key, name, 1)


@pytest.mark.parametrize(
    ("alias", "found", "known", "role"),
    [
        ("vf", {"vf"}, (), "vf"),
        ("vf", {"ibvf", "vf"}, (), "vf"),
        # All that are called so are taken: still no other role.
        ("ethvf", {"ibvf"}, ("ethvf",), "ethvf"),
        # An operator's own name for the devices of one role.
        ("cx7", {"vf"}, ("gpu",), "vf"),
        # As configure names several products of a role.
        ("vf-101e", {"vf", "ibvf"}, (), "vf"),
        ("ib-vf-101e", {"ib", "ib-vf"}, (), "ib-vf"),
        ("ethvf-101e-15b3", {"ibvf"}, ("ethvf",), "ethvf"),
        ("gpu-pf", {"gpu", "accel"}, (), "gpu"),
        # Only begins like a role that its devices do not have.
        ("gpu-large", {"accel"}, ("gpu",), "accel"),
        ("gpus", {"accel"}, ("gpu",), "accel"),
        ("vf", set(), (), None),
    ],
)
def test_the_role_of_an_alias(alias, found, known, role):
    played = roles_played_on_host([({"0"}, each) for each in found])
    assert bind_alias_roles([want(alias)], played, known) == ({} if role is None else {"0": role})


def test_two_roles_that_the_alias_does_not_tell_apart():
    played = roles_played_on_host([({"0"}, "ibvf"), ({"0"}, "ethvf")])
    with pytest.raises(RoleConflictError, match=r"the alias fast .* roles ethvf and ibvf"):
        bind_alias_roles([want("fast")], played)


ROLES = st.sampled_from([None, "a", "b", "a-b"])
DEVICES = st.lists(st.tuples(st.frozensets(st.sampled_from("01")), ROLES), max_size=5)


@given(st.lists(DEVICES, max_size=4), st.randoms())
def test_order_and_division_into_hosts_do_not_matter(hosts, rng):
    wants = [want("a", "0"), want("x", "1")]

    def answer(some):
        try:
            return bind_alias_roles(wants, roles_played_by_hosts(map(roles_played_on_host, some)))
        except RoleConflictError as error:
            return str(error)

    everything = list(itertools.chain(*hosts))
    expected = answer([everything])
    rng.shuffle(everything)
    assert answer(hosts) == answer([[each] for each in everything]) == expected


@given(DEVICES)
def test_a_device_serves_only_its_own_role(devices):
    pools = tuple(
        DevicePool(str(number), f"pool{number}", Location(), 1, serves, role=role)
        for number, (serves, role) in enumerate(devices)
    )
    host, refused = restrict_to_roles(FreeHost("h", pools), {"0": "a"})
    for before, after in zip(pools, host.pools, strict=True):
        expected = {key for key in before.serves if key == "1" or before.role in (None, "a")}
        assert after.serves == expected
        assert attrs.evolve(after, serves=before.serves) == before
        named = any(text.startswith(f"{before.name}: ") for text in refused)
        assert named == bool(before.serves and not expected)


def test_a_claimed_device_of_another_role():
    pool = DevicePool("p", "0000:01:00.1", Location(), 1, frozenset({"0"}), role="ibvf")
    request = Request(
        (want("ethvf"),),
        (DeviceGroup({"0": 1}),),
        Level.HOST,
        AffinityPolicy.REQUIRED,
        roles={"0": "ethvf"},
    )
    answer = judge_claimed_devices(request, FreeHost("h", (pool,)), {"0": ["p"]})
    assert answer.miss.user == "a claimed ethvf has the role ibvf, not ethvf"
    same = attrs.evolve(request, roles={"0": "ibvf"})
    assert judge_claimed_devices(same, FreeHost("h", (pool,)), {"0": ["p"]}).sets
