# SPDX-License-Identifier: Apache-2.0
"""Who waits for the fabric, and how many at once; and a database that takes no writes."""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from neutron_drivers import bind_waits
from tests.fabric.bare_fabric import wait_until
from tests.fabric.neutron_stage import RED, StageError
from tests.fabric.test_mechanism_holds import put
from tests.fabric.test_mechanism_networks import made
from tests.fabric.test_mechanism_ports import members, wait_for_status

WAITERS = 3


@pytest.fixture(scope="module")
def few(neutron_processes):
    """The number of a process in which three requests may wait, for a minute."""
    conf = neutron_processes.write_conf("few", bind_wait=60, bind_waiters=WAITERS)
    process = neutron_processes.start(conf, "few")
    yield neutron_processes.processes.index(process)
    neutron_processes.end(process)


@pytest.fixture
def network(neutron):
    return made(neutron.network(0x101, project_id=RED))["id"]


def waiting(neutron, api):
    """How many threads of a process wait for the fabric, right now."""
    return neutron.processes[api].call("count_waiting")


def test_binds_beyond_the_places_do_not_wait(neutron, network, few):
    """No agent works: of eight binds three hold a thread, the others have their answer."""
    places = [(f"cn{host}", f"0000:{bus}:00.2") for host in range(4) for bus in ("81", "c1")]
    ports = [made(neutron.port(network))["id"] for _ in places]

    def bind(number):
        host, slot = places[number]
        return neutron.bind(ports[number], host=host, slot=slot, api=few)

    with ThreadPoolExecutor(len(places)) as pool:
        asked = [pool.submit(bind, number) for number in range(len(places))]
        wait_until(
            lambda: (
                sum(one.done() for one in asked) == len(places) - WAITERS
                and waiting(neutron, few) == WAITERS
            ),
            "three wait, five have their answer",
            40,
        )
        answered = [one.result() for one in asked if one.done()]
        assert [(status, found["port"]["status"]) for status, found in answered] == [
            (200, "DOWN")
        ] * (len(places) - WAITERS)
        with neutron.agent():
            assert {one.result()[0] for one in asked} == {200}
            for port in ports:
                wait_for_status(neutron, port, "ACTIVE")
    assert waiting(neutron, few) == 0
    assert len(members(neutron)) == len(places)


def test_the_wait_for_the_last_server_takes_a_place_too(neutron, few):
    """Its key is on the way out, and no agent takes it."""
    ports = [made(neutron.port(made(neutron.network(0x240 + n))["id"]))["id"] for n in range(5)]
    with neutron.agent():
        neutron.bind(ports[0])
    neutron.unbind(ports[0])
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(neutron.bind, port, api=few) for port in ports[1:]]
        wait_until(
            lambda: (
                [one.done() for one in asked].count(True) == 1 and waiting(neutron, few) == WAITERS
            ),
            "three wait, one is refused",
            40,
        )
        with neutron.agent():
            found = sorted(one.result()[0] for one in asked)
    assert found == [200, 409, 409, 409]


def test_a_users_toggles_do_not_wait(neutron, network, few):
    """Switching on makes a membership, and the agent is away."""
    ports = [made(neutron.port(network, role="red"))["id"] for _ in range(2)]
    with neutron.agent():
        neutron.bind(ports[0], api=few)
        neutron.bind(ports[1], slot="0000:c1:00.2", api=few)
    seen = []

    def toggle(number):
        answers = []
        for wish in (
            {"admin_state_up": False},
            {"admin_state_up": True},
            {"admin_state_up": False},
            {"admin_state_up": True},
        ):
            answers.append(put(neutron, "port", ports[number], api=few, **wish)[0])
        return answers

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(toggle, number) for number in range(2)]
        while not all(one.done() for one in asked):
            seen.append(waiting(neutron, few))
        assert [one.result() for one in asked] == [[200] * 4] * 2
    assert set(seen) == {0}
    # They are members as soon as the agent is back.
    with neutron.agent():
        for port in ports:
            wait_for_status(neutron, port, "ACTIVE")


@contextlib.contextmanager
def read_only(neutron):
    neutron.rows("SET GLOBAL read_only = 1")
    try:
        yield
    finally:
        neutron.rows("SET GLOBAL read_only = 0")


def test_a_database_that_takes_no_writes_changes_nothing(neutron, network):
    """A fail-over has begun: what was asked for can be asked for again."""
    ports = [made(neutron.port(network, role="red"))["id"] for _ in range(2)]
    with neutron.agent():
        neutron.bind(ports[0])
    before, bound = members(neutron), neutron.get_port(ports[0])
    with read_only(neutron):
        assert neutron.bind(ports[1], slot="0000:c1:00.2")[0] >= 500
        assert neutron.unbind(ports[0])[0] >= 500
        assert put(neutron, "port", ports[0], admin_state_up=False)[0] >= 500
        assert put(neutron, "network", network, admin_state_up=False)[0] >= 500
        # An agent gets no reading, so it leaves what is in force.
        with pytest.raises(StageError):
            neutron.desired()
        with pytest.raises(StageError):
            neutron.report(gone=[1])
        neutron.processes[1].call("look_at_members")
        assert neutron.get_port(ports[0])["status"] == "ACTIVE"
    assert members(neutron) == before
    after = neutron.get_port(ports[0])
    assert (after["binding:host_id"], after["admin_state_up"]) == (bound["binding:host_id"], True)
    assert neutron.get_port(ports[1])["binding:host_id"] == ""
    with neutron.agent():
        assert neutron.bind(ports[1], slot="0000:c1:00.2")[1]["port"]["status"] == "ACTIVE"


# -- places to wait ------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_places_are_taken_and_given_back(tmp_path, shared):
    path = str(tmp_path) if shared else None
    # Two processes with one folder, as far as files can tell.
    one, two = (bind_waits.WaitPlaces(2, path) for _ in range(2))
    with one.take() as first, two.take() as second, one.take() as third:
        assert (first, second, third) == (True, True, False)
    with two.take() as again:
        assert again
    with bind_waits.WaitPlaces(0, path).take() as none:
        assert not none


def test_a_place_is_given_back_after_an_error():
    places = bind_waits.WaitPlaces(1, None)
    with pytest.raises(RuntimeError), places.take():
        raise RuntimeError
    with places.take() as taken:
        assert taken


def test_a_folder_that_takes_no_locks_holds_nobody(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    with bind_waits.WaitPlaces(2, str(file)).take() as taken:
        assert not taken
    assert "Requests do not wait" in caplog.text


@pytest.mark.parametrize(
    ("options", "processes", "shared", "places"),
    [
        ({"threads": b"8", "processes": b"4"}, 4, True, 16),
        ({"threads": b"8", "processes": b"4"}, 4, False, 4),
        # One thread a process, which uWSGI does not name.
        ({"processes": b"3"}, 3, True, 1),
        ({}, 1, True, 0),
        ({"threads": b"some"}, 1, True, 4),
    ],
)
def test_half_of_the_threads_that_uwsgi_has(monkeypatch, options, processes, shared, places):
    """The forms are those of uWSGI 2.0, with ``--processes`` and ``--threads``."""
    module = SimpleNamespace(opt=options, numproc=processes)
    monkeypatch.setitem(sys.modules, "uwsgi", module)
    assert bind_waits.count_places(None, shared) == places
    assert bind_waits.count_places(3, shared) == 3


def test_a_server_that_does_not_tell_its_threads():
    assert bind_waits.count_places(None, True) == 4
    assert bind_waits.count_places(0, True) == 0
