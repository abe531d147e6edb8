# SPDX-License-Identifier: Apache-2.0
"""Members, ports and user data that a command must not harm, or has to check before it begins."""

from __future__ import annotations

import contextlib
import random
import re
from typing import Any

import attrs
import pytest

from nova_hpc_client.cluster import user_data
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle import commands, decide, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.run import ClusterError
from nova_hpc_client.cluster.user_data import UserDataError, encoded_size_of, merge_user_data
from nova_hpc_client.cluster.wish import Secrets, WishError
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from tests.unit.cluster.model_cloud import ModelCloud
from tests.unit.cluster.test_renamed import PACE, cluster_of, create, names_of, server_of

NET = "11111111-2222-4333-8444-555555555555"
PORTS = ClusterWish("k", frozenset({1, 2}), "42", image="img", nics=(Nic(NET, "direct"),))
HOSTS = ClusterWish("k", frozenset({1, 2}), "42", image="img", hosts=True)


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)


def noise(size: int) -> bytes:
    """A script whose text hardly packs."""
    return b"#!/bin/sh\n" + random.Random(1).randbytes(size).hex().encode()


def longest_that_fits(spare: int) -> bytes:
    """The longest such script with which a new cluster can be made now."""
    keys = user_data.make_member_keys()
    low, high = 1000, 60000
    while high - low > 1:
        size = (low + high) // 2
        try:
            merge_user_data(noise(size), keys, "k", spare=spare)
            low = size
        except UserDataError:
            high = size
    return noise(low)


def test_too_long_user_data_with_keys_say_sizes_that_can_be_compared() -> None:
    own = noise(50000)
    with pytest.raises(UserDataError) as refused:
        merge_user_data(own, user_data.make_member_keys(), "k")
    sizes = re.search(r"has (\d+) bytes in gzip .* \((\d+) without\)", str(refused.value))
    assert sizes
    assert user_data.MOST < int(sizes[2]) < int(sizes[1]) < int(sizes[2]) + 3000


def test_keys_of_later_members_always_fit() -> None:
    own = longest_that_fits(user_data.SPARE)
    wish = attrs.evolve(HOSTS, **Secrets(own).digests)
    with contextlib.suppress(WishError):  # Other keys may need a few bytes more.
        wishes.check_cluster_wish(wish, Secrets(own))
    sizes = [encoded_size_of(wishes.build_user_data(wish, Secrets(own))) for _ in range(50)]
    assert max(sizes) <= user_data.MOST
    assert max(sizes) > user_data.MOST - 2 * user_data.SPARE
    with pytest.raises(WishError, match="65535, less 512 for the keys of later members"):
        wishes.check_cluster_wish(wish, Secrets(own + noise(400)))


@pytest.mark.parametrize("command", ["replace", "scale", "resume"])
def test_user_data_are_checked_before_a_member_is_deleted(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    cloud = ModelCloud()
    secrets = Secrets(noise(30000))
    wish = attrs.evolve(HOSTS, **secrets.digests)
    commands.create_cluster(cloud, wish, secrets, Nearness(), "a77e", PACE)
    if command == "resume":
        server = server_of(cloud, "k-2")
        server.update({"status": "ERROR", "OS-SRV-USG:launched_at": None})
    cloud.log.clear()
    monkeypatch.setattr(user_data, "MOST", 40000)
    cluster = cluster_of(cloud)
    run = {
        "replace": lambda: commands.replace_members(cloud, cluster, [2], secrets, PACE),
        "scale": lambda: commands.scale_cluster(cloud, cluster, {1, 2, 3}, secrets, PACE),
        "resume": lambda: commands.resume_cluster(cloud, cluster, None, secrets, PACE),
    }[command]
    with pytest.raises(ClusterError, match="longer than Nova takes: 40000; nothing has changed"):
        run()
    assert cloud.log == []


def lend_port(cloud: ModelCloud, name: str) -> dict[str, Any]:
    """A port that its user has given to a server of his own."""
    cloud.servers["mine"] = {
        "id": "mine",
        "name": "mine",
        "status": "ACTIVE",
        "OS-EXT-STS:task_state": None,
    }
    (port,) = (port for port in cloud.ports.values() if port["name"] == name)
    port["device_id"] = "mine"
    return port


def test_a_port_that_another_server_has_stays() -> None:
    cloud = create(PORTS)
    port = lend_port(cloud, "k-2.0")
    for which in ([1], [2]):
        commands.replace_members(cloud, cluster_of(cloud), which, Secrets(), PACE)
        assert cloud.ports[port["id"]]["device_id"] == "mine"
    assert names_of(cloud) == ["k-1", "k-2", "mine"]
    new = [port for port in cloud.ports.values() if port["device_id"] != "mine"]
    assert sorted(port["name"] for port in new) == ["k-1.0", "k-2.0"]
    assert {cloud.servers[port["device_id"]]["name"] for port in new} == {"k-1", "k-2"}
    commands.delete_cluster(cloud, cluster_of(cloud), PACE)
    assert cloud.ports == {port["id"]: port}
    # Nothing of the cluster is listed any more.
    assert cloud.clusters() == []


def test_a_host_list_has_no_address_of_a_port_that_another_server_has() -> None:
    cloud = create(attrs.evolve(PORTS, hosts=True))
    port = lend_port(cloud, "k-2.0")
    commands.replace_members(cloud, cluster_of(cloud), [2], Secrets(), PACE)
    address = port["fixed_ips"][0]["ip_address"]
    assert address not in str(server_of(cloud, "k-1")["metadata"])


def test_a_member_that_is_replaced_in_a_stopped_cluster_leads_to_start() -> None:
    cloud = create(HOSTS)
    verbs.change_members(cloud, cluster_of(cloud), verbs.STOP, PACE)
    server_of(cloud, "k-1").update(status="ERROR", fault={"message": "x"})
    with pytest.raises(ClusterError) as refused:
        commands.replace_members(cloud, cluster_of(cloud), [1], Secrets(), PACE)
    assert "k-2 is SHUTOFF: openstack hpc cluster start k" in str(refused.value)
    assert "--resume" not in str(refused.value)
    assert decide.format_finish_commands(cluster_of(cloud)).startswith(
        "openstack hpc cluster start k"
    )
