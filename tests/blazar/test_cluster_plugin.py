# SPDX-License-Identifier: Apache-2.0
"""Leases of clusters through Blazar's own manager."""

import json
import re
import threading
from collections import Counter
from pathlib import Path

import pytest
from blazar import exceptions as common_exceptions
from blazar.api.v1 import app
from blazar.db import api as db_api
from blazar.manager import exceptions
from blazar.plugins.oshosts import host_plugin
from blazarclient.v1.shell_commands import leases as client_leases
from oslo_config import cfg

from tests.blazar.blazar_world import ALIAS, at, text_at
from tests.blazar.http_cloud import PROJECT, RefusedError, inventory

PAGE = Path(__file__).parents[2] / "docs/source/admin/clusters.rst"


# -- new leases --------------------------------------------------------------------------------


def test_lease_becomes_a_whole_cluster_on_one_leaf_at_its_begin(world):
    lease = world.lease(1, 3, 2, "g8")

    assert world.status(lease) == "PENDING"
    assert world.placed(lease) in (Counter(n1=1, n2=1), Counter(n3=1, n4=1))
    assert world.started(lease) == Counter()

    world.set_clock(1.01)
    world.run_events()

    assert world.status(lease) == "ACTIVE"
    assert world.started(lease) == world.placed(lease)
    own = world.show(lease)["reservations"][0]["id"]
    assert world.cloud.access[own] == {PROJECT}
    flavor = world.cloud.flavors[own]["extra_specs"]
    assert flavor["hpc:fabric"] == "leaf"
    assert flavor["pci_passthrough:alias"] == "gpu:8"


def test_end_removes_servers_and_frees_the_hosts(world):
    lease = world.lease(1, 3, 2, "g8")
    world.set_clock(1.01)
    world.run_events()
    own = world.show(lease)["reservations"][0]["id"]
    world.cloud.servers = {"s1": own, "other": "g2"}

    world.set_clock(3.01)
    world.run_events()

    assert world.status(lease) == "TERMINATED"
    assert world.cloud.servers == {"other": "g2"}
    assert world.placed(lease) == Counter()
    assert not world.cloud.classes


def test_devices_are_counted_at_each_instant(world):
    for _ in range(4):
        world.lease(1, 3, 2, "g4")

    with pytest.raises(
        exceptions.NotEnoughHostsAvailable, match=r"g2 from .* to .*; lease them from "
    ):
        world.lease(2, 4, 1, "g2")
    # Half-open times: the next lease begins when the others end.
    world.lease(3, 5, 2, "g8")
    world.lease(0.5, 1, 2, "g8")


def test_cleaning_time_lies_between_two_leases(world):
    cfg.CONF.set_override("cleaning_time", 30)
    for _ in range(2):
        world.lease(1, 3, 2, "g8")

    begin = rf"lease them from {text_at(3.5)} to {text_at(5.5)}, fewer members"
    with pytest.raises(exceptions.NotEnoughHostsAvailable, match=begin):
        world.lease(3, 5, 2, "g8")
    world.lease(3.5, 5, 2, "g8")


def test_begin_is_named_if_there_is_one_and_operators_allow_it(world):
    for _ in range(2):
        world.lease(1, 3, 2, "g8")

    with pytest.raises(exceptions.NotEnoughHostsAvailable, match=r"to [^;]*; lease fewer members"):
        world.lease(2, 4, 3, "g8")
    cfg.CONF.set_override("tell_lease_begin", False, group="hpc")
    with pytest.raises(exceptions.NotEnoughHostsAvailable, match=r"to [^;]*; lease fewer members"):
        world.lease(2, 4, 2, "g8")


def test_cluster_is_never_split_over_leaves(world):
    world.lease(1, 3, 1, "g8")
    world.lease(1, 3, 2, "g8")

    with pytest.raises(exceptions.NotEnoughHostsAvailable, match="one leaf cannot hold 2"):
        world.lease(1, 3, 2, "g8")
    # A wider level takes it, if one host more is free.
    assert len(db_api.lease_list()) == 2


def test_withheld_devices_are_not_leased(world):
    for provider in world.cloud.providers.values():
        if provider["name"].startswith("n1_0000:0"):
            provider["inventories"] = {
                name: inventory(1, reserved=1) for name in provider["inventories"]
            }
            provider["generation"] += 1

    assert set(world.placed(world.lease(1, 3, 2, "g8"))) == {"n3", "n4"}


def test_devices_with_other_traits_do_not_count(world):
    world.cloud.add_flavor("v8", 2, 64, **{"pci_passthrough:alias": "vf:8", "hpc:fabric": "leaf"})
    for provider in world.cloud.providers.values():
        if provider["name"].startswith(("n1_", "n3_")):
            provider["traits"] = frozenset()
    # vcpus that are not dedicated: these hosts have none.
    world.cloud.flavors["v8"]["extra_specs"]["hw:cpu_policy"] = "dedicated"

    world.lease(1, 3, 1, "v8")
    world.lease(1, 3, 1, "v8")
    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(1, 3, 1, "v8")


def test_two_maps_have_leaves_of_one_name(world):
    aggregate = next(
        each for each in world.cloud.aggregates.values() if each["name"] == "hpc-fabric:leaf:l2"
    )
    aggregate["metadata"] |= {"hpc_fabric:map": "other", "hpc_fabric:leaf": "l1"}

    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(1, 3, 3, "g8")
    world.lease(1, 3, 2, "g8")


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"begin": -2}, common_exceptions.InvalidInput, "Start date"),
        ({"end": 1}, common_exceptions.InvalidInput, "End date"),
        ({"amount": 0}, exceptions.MalformedParameter, "number of members"),
        ({"amount": "many"}, exceptions.MalformedParameter, "number of members"),
        ({"amount": 1 << 40}, exceptions.MalformedParameter, "number of members"),
        ({"amount": None}, exceptions.MissingParameter, "amount"),
        ({"flavor": ""}, exceptions.MissingParameter, "flavor_id"),
        ({"flavor": "none"}, exceptions.MalformedParameter, "flavor none does not exist"),
        ({"affinity": "True"}, exceptions.MalformedParameter, "hpc:fabric"),
    ],
)
def test_bad_requests_name_the_cure(world, change, kind, words):
    values = {"begin": 1, "end": 3, "amount": 1, "flavor": "g8"} | change
    with pytest.raises(kind, match=words) as caught:
        world.lease(**values)

    assert type(caught.value) is kind
    assert db_api.lease_list() == []


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"pci_passthrough:alias": "tpu:1"}, r"alias tpu .* copies the lines of \[pci\]alias"),
        ({"pci_passthrough:alias": "gpu:x"}, "not a list of name:count"),
        ({"resources1:CUSTOM_X": "1"}, "resources1:CUSTOM_X=1 cannot be counted"),
        ({"accel:device_profile": "x"}, "accel:device_profile=x cannot be counted"),
        ({"hw:cpu_policy": "mixed"}, "cannot be counted"),
        ({"hpc:fabric": "rack"}, "hpc:fabric"),
    ],
)
def test_flavors_that_cannot_be_counted_are_refused(world, specs, words):
    world.cloud.add_flavor("bad", 2, 64, **specs)

    with pytest.raises(exceptions.MalformedParameter, match=words):
        world.lease(1, 3, 1, "bad")


def test_wrong_alias_of_the_operator_is_named(world):
    cfg.CONF.set_override("alias", [*ALIAS, '{"name": "gpu", "resource_class": "X"}'], "pci")

    with pytest.raises(exceptions.MalformedParameter, match="two entries 'gpu'"):
        world.lease(1, 3, 1, "g8")


def test_id_of_another_reservation_hides_no_lease(world):
    first = world.lease(1, 3, 2, "g8")
    world.lease(1, 3, 2, "g8")
    other = world.show(first)["reservations"][0]["id"]

    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(1, 3, 2, "g8", id=other)


def test_leases_of_other_plugins_count(world):
    """Leases of stock flavors count with their devices; those of hosts take the whole host."""
    for kind, host in (("physical:host", "1"), ("flavor:instance", "3")):
        lease = db_api.lease_create(
            {
                **{"name": kind, "start_date": at(1), "end_date": at(3), "trust_id": "t"},
                **{"status": "PENDING", "project_id": "p", "user_id": "u"},
            }
        )
        own = db_api.reservation_create(
            {"lease_id": lease["id"], "resource_type": kind, "status": "pending"}
        )
        if kind == "flavor:instance":
            db_api.instance_reservation_create(
                {
                    **{"reservation_id": own["id"], "vcpus": 1, "memory_mb": 1, "disk_gb": 0},
                    **{"amount": 1, "affinity": None},
                    "resource_properties": json.dumps(world.cloud.flavors["g2"]),
                }
            )
        db_api.host_allocation_create({"compute_host_id": host, "reservation_id": own["id"]})

    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(1, 3, 2, "g8")
    assert sum(world.placed(world.lease(1, 3, 7, "g2")).values()) == 7


# -- updates -----------------------------------------------------------------------------------


def test_lease_that_has_not_begun_can_move_and_grow(world):
    world.lease(1, 3, 2, "g8")
    lease = world.lease(4, 6, 2, "g8")
    world.lease(1, 2, 1, "g8")

    world.update(lease, start_date=text_at(2))
    assert set(world.placed(lease)) in ({"n1", "n2"}, {"n3", "n4"})
    world.update(lease, amount=1)
    assert sum(world.placed(lease).values()) == 1
    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.update(lease, amount=3)
    assert world.status(lease) == "PENDING"
    assert sum(world.placed(lease).values()) == 1


def test_members_of_one_host_leave_and_come_before_the_begin(world):
    lease = world.lease(1, 3, 4, "g2")
    assert len(world.placed(lease)) == 1

    for amount in (1, 8, 3):
        world.update(lease, amount=amount)
        assert sum(world.placed(lease).values()) == amount
        assert world.show(lease)["reservations"][0]["amount"] == amount


def _begin(world, *more):
    lease = world.lease(1, 3, *more)
    world.set_clock(1.01)
    world.run_events()
    assert world.status(lease) == "ACTIVE"
    return lease


def test_running_lease_keeps_its_hosts_or_the_update_is_refused(world):
    lease = _begin(world, 2, "g8")
    hosts = world.placed(lease)
    later = world.lease(5, 7, 2, "g8")
    world.lease(5, 7, 2, "g8")

    world.update(lease, end_date=text_at(5))
    world.update(lease, end_date=text_at(2))
    with pytest.raises(exceptions.NotEnoughHostsAvailable, match="not free until"):
        world.update(lease, end_date=text_at(6))
    for amount in (1, 3):
        with pytest.raises(exceptions.CantUpdateParameter, match="the lease has begun"):
            world.update(lease, amount=amount)

    assert world.status(lease) == "ACTIVE"
    assert world.started(lease) == world.placed(lease) == hosts
    assert world.show(lease)["end_date"] == at(2)
    assert world.status(later) == "PENDING"


def test_clock_that_is_set_back_frees_no_running_host(world):
    lease = _begin(world, 2, "g8")
    world.set_clock(-3)
    world.run_events()

    with pytest.raises(exceptions.CantUpdateParameter, match="start_date"):
        world.update(lease, start_date=text_at(2))
    world.lease(-2, 0, 2, "g8")
    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(-2, 0, 2, "g8")


def test_clock_that_jumps_over_a_lease_begins_and_ends_it(world):
    lease = world.lease(1, 3, 2, "g8")
    world.set_clock(30)
    world.run_events()

    assert world.status(lease) == "TERMINATED"
    assert world.placed(lease) == Counter()


def test_ended_lease_cannot_be_updated(world):
    lease = _begin(world, 2, "g8")
    world.set_clock(3.01)
    world.run_events()

    # In the minute of its end, Blazar itself still lets it be updated.
    for hour, kind in ((3.01, exceptions.CantUpdateParameter), (4, common_exceptions.InvalidInput)):
        world.set_clock(hour)
        with pytest.raises(kind):
            world.update(lease, end_date=text_at(5))
        assert world.status(lease) == "TERMINATED"
        assert world.placed(lease) == Counter()


def test_update_and_new_lease_at_once_do_not_get_one_host(world):
    """Blazar writes the new end of a lease after the plug-in has agreed to it."""
    lease = world.lease(1, 3, 2, "g8")
    world.lease(1, 3, 2, "g8")
    write = db_api.lease_update
    refused = []

    def create_in_between(number, values):
        if "end_date" in values:
            caught = threading.Thread(target=create)
            caught.start()
            caught.join()
        return write(number, values)

    def create():
        try:
            world.lease(3, 5, 2, "g8")
            world.lease(3, 5, 2, "g8")
        except exceptions.NotEnoughHostsAvailable as error:
            refused.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(db_api, "lease_update", create_in_between)
        world.update(lease, end_date=text_at(4))

    assert len(refused) == 1


@pytest.mark.parametrize("ending", ["/os-aggregates", "/resource_providers"])
def test_update_without_nova_or_placement_is_refused_and_the_lease_stays(world, ending):
    lease = world.lease(1, 3, 2, "g8")
    placed = world.placed(lease)

    def refuse(method, path):
        if path.endswith(ending):
            raise RefusedError(503)

    world.cloud.before = refuse
    with pytest.raises(exceptions.NotEnoughHostsAvailable, match="cannot be read"):
        world.update(lease, end_date=text_at(5))
    assert world.status(lease) == "PENDING"
    assert world.placed(lease) == placed


# -- faults ------------------------------------------------------------------------------------


def test_cluster_without_one_of_its_hosts_is_given_to_no_project(world):
    lease = world.lease(1, 3, 2, "g8")
    added = []

    def refuse_second_host(method, path):
        if method == "POST" and path.endswith("/action") and "os-aggregates" in path:
            added.append(path)
            if len(added) == 2:
                raise RefusedError(500)

    world.cloud.before = refuse_second_host
    world.set_clock(1.01)
    world.run_events()
    world.cloud.before = lambda method, path: None

    assert world.status(lease) == "ERROR"
    assert world.started(lease) == Counter()
    # Its hosts stay its own until it is deleted.
    world.lease(2, 3, 2, "g8")
    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(2, 3, 1, "g8")
    world.set_clock(9)
    world.delete(lease)
    world.lease(10, 11, 2, "g8")


def test_end_that_failed_keeps_the_hosts(world):
    lease = _begin(world, 2, "g8")

    def refuse(method, path):
        if path.endswith("/action") and "/flavors/" in path:
            raise RefusedError(500)

    world.cloud.before = refuse
    world.set_clock(3.01)
    world.run_events()
    world.cloud.before = lambda method, path: None

    assert world.status(lease) == "ERROR"
    world.lease(4, 6, 2, "g8")
    with pytest.raises(exceptions.NotEnoughHostsAvailable):
        world.lease(4, 6, 2, "g8")


def _fail(world, host):
    """Let Nova's service on a host fail, and Blazar heal all leases."""
    cfg.CONF.set_override("healing_interval", 0, "physical:host")
    number = next(number for number, name in world.hosts.items() if name == host)
    db_api.host_update(number, {"reservable": False})
    return host_plugin.PhysicalHostMonitorPlugin().heal()


def test_failed_host_moves_a_lease_that_has_not_begun(world):
    lease = world.lease(4, 6, 2, "g8")
    before = world.placed(lease)

    assert _fail(world, next(iter(before))) == {}
    assert sum(world.placed(lease).values()) == 2
    assert not set(world.placed(lease)) & set(before)


def test_failed_host_is_told_to_leases_without_another_place(world):
    world.lease(4, 6, 2, "g8")
    lease = world.lease(4, 6, 2, "g8")
    before = world.placed(lease)

    flags = _fail(world, next(iter(before)))

    own = world.show(lease)["reservations"][0]["id"]
    assert flags == {own: {"missing_resources": True}}
    assert world.placed(lease) == before


def test_failed_host_moves_no_running_cluster(world):
    lease = _begin(world, 2, "g8")
    before = world.placed(lease)

    flags = _fail(world, next(iter(before)))

    own = world.show(lease)["reservations"][0]["id"]
    assert flags == {own: {"missing_resources": True}}
    assert world.placed(lease) == world.started(lease) == before


def test_inventories_are_read_again_only_after_a_change(world):
    world.lease(1, 3, 1, "g8")
    world.cloud.asked.clear()
    world.lease(1, 3, 1, "g8")

    read = [each for each in world.cloud.asked if each.endswith("/inventories")]
    assert read == []


# -- the operators' page -----------------------------------------------------------------------


def test_plugins_of_the_page_let_operators_add_hosts(world):
    found = re.search(r"``plugins`` of ``\[manager\]`` set to\s+``([^`]+)``", PAGE.read_text())
    assert found[1].split(",") == cfg.CONF.manager.plugins

    rules = {rule.rule for rule in app.make_app().url_map.iter_rules() if "POST" in rule.methods}

    assert {"/v1/leases", "/v1/os-hosts"} <= rules


def test_command_of_the_page_sends_what_the_plugin_reads(world):
    words = PAGE.read_text()
    command = words.partition("reservation lease create")[2].partition("\n\n")[0]
    text = command.partition("--reservation ")[2].split()[0]
    parser = client_leases.CreateLease.__new__(client_leases.CreateLease)
    own = client_leases.CREATE_RESERVATION_KEYS["flavor:instance"]
    assert "flavor:instance" in text

    body = parser._parse_params(text.replace("FLAVOR", "g2"), own, "")

    assert world.manager.plugins[body["resource_type"]].title == "Clusters of nova-hpc"
    lease = world.lease(1, 3, body["amount"], body["flavor_id"], affinity=body["affinity"])
    assert sum(world.placed(lease).values()) == body["amount"]
