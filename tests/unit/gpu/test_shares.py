# SPDX-License-Identifier: Apache-2.0
"""What is known of a share, and what is refused of it, by records alone."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.gpu import cleaning, model, refusals
from nova_hpc_client.gpu.cloud import ProjectView
from nova_hpc_client.gpu.model import GpuGroup, GpuPort, GpuServer, ShareState
from nova_hpc_client.gpu.refusals import ShareError
from nova_hpc_guest.gpu import records
from nova_hpc_guest.gpu.announcements import Announced
from nova_hpc_guest.gpu.port_rule import port_of_address
from nova_hpc_guest.gpu.records import GpuClient, GpuShare, GpuSlot

SHARE = "0f4b3c2a-1111-4222-8333-444455556666"
CLIENT = "7a1d9e00-1111-4222-8333-444455556666"
KEY = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
SUBNETS = {"s1": "10.0.0.0/24", "s2": "10.0.16.0/24", "large": "10.1.0.0/16"}


def slot_at(address: str, **more: Any) -> str:
    return records.write_slot(GpuSlot(address, port_of_address(address), 5, **more))


def pointer_at(address: str, **more: Any) -> str:
    port = port_of_address(address)
    return records.write_client(GpuClient(SHARE, "10.0.0.5", address, port, "pocl", **more))


def share_server(status: str = "ACTIVE", **items: str) -> GpuServer:
    record = records.write_share(GpuShare("sim", "pocl", 2, 8192))
    metadata = {records.SHARE_KEY: record, **items}
    return GpuServer(SHARE, "sim", status, "p", metadata, frozenset({records.TAG}))


def client_server(**items: str) -> GpuServer:
    return GpuServer(CLIENT, "one", "ACTIVE", "p", items)


RULES = tuple(refusals.rule_bodies_of("own", "clients"))
GROUPS = (
    GpuGroup("own", model.group_name_of(SHARE), RULES),
    GpuGroup("clients", model.group_name_of(SHARE, True)),
)
SHARE_PORT = GpuPort("sp", SHARE, "net", {"s1": "10.0.0.5", "large": "10.1.0.5"}, True, ("own",))
CLIENT_PORT = GpuPort("cp", CLIENT, "net", {"s1": "10.0.0.7"}, True, ("default", "clients"))
SLOT_KEY = records.slot_key_of(CLIENT)


def one_share(*servers: GpuServer, ports: Any = None, groups: Any = GROUPS) -> model.SharedGpu:
    ports = (SHARE_PORT, CLIENT_PORT) if ports is None else ports
    (share,) = model.gather_shares(servers, ports, groups)
    return share


WHOLE = one_share(
    share_server(**{SLOT_KEY: slot_at("10.0.0.7")}),
    client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")}),
)


def test_a_share_with_a_client() -> None:
    assert (WHOLE.state, WHOLE.reason, WHOLE.taken) == (ShareState.READY, "", 1)
    (slot,) = WHOLE.slots
    assert (slot.points, slot.may_connect, slot.problem) == (True, True, "")


@pytest.mark.parametrize(
    ("server", "ports", "groups", "state"),
    [
        (share_server("BUILD"), None, (), ShareState.BUILDING),
        (share_server("REBUILD"), None, GROUPS, ShareState.BUILDING),
        (share_server("ERROR"), None, GROUPS, ShareState.DOWN),
        (share_server("SHELVED_OFFLOADED"), None, GROUPS, ShareState.DOWN),
        (share_server(), None, (), ShareState.UNFINISHED),
        (share_server(), (), GROUPS, ShareState.UNFINISHED),
        (share_server(), None, (evolve(GROUPS[0], rules=()), GROUPS[1]), ShareState.UNFINISHED),
        (share_server(), (evolve(SHARE_PORT, groups=()),), GROUPS, ShareState.UNFINISHED),
        (
            share_server(),
            (evolve(SHARE_PORT, groups=(), filtered=False),),
            GROUPS,
            ShareState.READY,
        ),
        (share_server(**{records.SHARE_KEY: '{"v":2}'}), None, GROUPS, ShareState.UNKNOWN),
        (share_server(**{records.SHARE_KEY: "x" * 255}), None, GROUPS, ShareState.UNKNOWN),
    ],
)
def test_the_state_of_a_share(
    server: GpuServer, ports: Any, groups: Any, state: ShareState
) -> None:
    share = one_share(server, ports=ports, groups=groups)
    assert share.state is state
    assert bool(share.reason) == (state is not ShareState.READY)


@pytest.mark.parametrize(
    ("servers", "words"),
    [
        ([share_server(**{SLOT_KEY: slot_at("10.0.0.7")})], "its client was deleted"),
        ([client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")})], "its share was deleted"),
        (
            [share_server(), client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")})],
            "it has no slot",
        ),
        (
            [share_server(**{SLOT_KEY: slot_at("10.0.0.7")}), client_server()],
            "not attached to its end",
        ),
        ([share_server(), client_server()], "it has no slot"),
        (
            [
                share_server(**{SLOT_KEY: slot_at("10.0.0.8")}),
                client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")}),
            ],
            "its record and its slot differ",
        ),
        (
            [
                share_server(**{SLOT_KEY: slot_at("10.0.0.7", key=KEY)}),
                client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")}),
            ],
            "one end has no key",
        ),
        (
            [
                share_server(**{SLOT_KEY: '{"v":2}'}),
                client_server(**{records.CLIENT_KEY: pointer_at("10.0.0.7")}),
            ],
            "has version 2",
        ),
    ],
)
def test_what_is_wrong_with_a_slot_is_said(servers: list[GpuServer], words: str) -> None:
    share = one_share(*servers)
    (slot,) = share.slots
    assert words in slot.problem


def view_of(share: model.SharedGpu, *servers: GpuServer) -> ProjectView:
    ports = (SHARE_PORT, CLIENT_PORT)
    return ProjectView((share,), {server.id: server for server in servers}, ports, GROUPS)


def test_only_what_a_deleted_server_left_is_left_over() -> None:
    assert list(cleaning.find_leftovers(view_of(WHOLE))) == []
    orphan = one_share(share_server(**{SLOT_KEY: slot_at("10.0.0.7")}))
    (left,) = cleaning.find_leftovers(view_of(orphan))
    assert (left.server, left.slot is not None) == (CLIENT, True)
    # An unreadable slot of a client that lives is its owner's to detach.
    strange = one_share(share_server(**{SLOT_KEY: "{"}), client_server())
    assert list(cleaning.find_leftovers(view_of(strange))) == []
    (gone,) = cleaning.find_leftovers(view_of(one_share()))
    assert gone.server == SHARE


# -- refusals --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specs", "gives"),
    [
        ({}, False),
        (None, None),
        ({"pci_passthrough:alias": "gpu:1,vf:1"}, True),
        ({"pci_passthrough:alias": "A100-gpu:1"}, True),
        ({"pci_passthrough:alias": "vf:2"}, False),
        ({"pci_passthrough:alias": "accelerator:1"}, None),
        ({"resources:VGPU": "1"}, True),
        ({"resources1:CUSTOM_GPU_H100": "1"}, True),
        ({"resources:PCPU": "1"}, False),
    ],
)
def test_a_flavor_with_a_gpu(specs: Any, gives: bool | None) -> None:
    assert refusals.gives_gpu(specs) is gives
    if gives is False:
        with pytest.raises(ShareError, match="has no GPU"):
            refusals.check_flavor("f", specs, False)
        refusals.check_flavor("f", specs, True)


@pytest.mark.parametrize(
    ("rule", "opens"),
    [
        ({"protocol": None, "remote_group_id": "default"}, True),
        ({"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}, False),
        ({"protocol": "tcp", "port_range_min": 1, "port_range_max": 65535}, True),
        ({"protocol": "tcp", "port_range_min": 32767, "port_range_max": 32768}, True),
        ({"protocol": "tcp", "port_range_min": 32768, "port_range_max": 60000}, False),
        ({"protocol": "tcp", "port_range_min": 16384, "remote_group_id": "clients"}, False),
        ({"protocol": "icmp"}, False),
        ({"protocol": None, "direction": "egress"}, False),
    ],
)
def test_a_group_that_opens_slots(rule: dict[str, Any], opens: bool) -> None:
    group = GpuGroup("g", "g", ({"direction": "ingress", **rule},))
    assert refusals.opens_slots(group, "clients") is opens


def test_where_two_servers_meet() -> None:
    meeting = refusals.find_meeting(WHOLE, client_server(), [CLIENT_PORT], SUBNETS)
    assert (meeting.share_address, meeting.client_address) == ("10.0.0.5", "10.0.0.7")
    assert (meeting.slot_port, meeting.filtered) == (16384 + 4 * 7, True)
    # The one with a filter before the one without.
    bare = evolve(CLIENT_PORT, id="bare", addresses={"s1": "10.0.0.6"}, filtered=False)
    both = refusals.find_meeting(WHOLE, client_server(), [bare, CLIENT_PORT], SUBNETS)
    assert both.client_port is CLIENT_PORT
    large = evolve(CLIENT_PORT, addresses={"large": "10.1.9.9"})
    with pytest.raises(ShareError, match="/20 or smaller"):
        refusals.find_meeting(WHOLE, client_server(), [large], SUBNETS)
    with pytest.raises(ShareError, match="no network in common"):
        refusals.find_meeting(WHOLE, client_server(), [], SUBNETS)
    way = refusals.find_meeting(WHOLE, client_server(), [bare], SUBNETS)
    with pytest.raises(ShareError, match="use --encrypt"):
        refusals.check_way(WHOLE, way, (), False, False)
    refusals.check_way(WHOLE, way, (), True, False)
    refusals.check_way(WHOLE, way, (), False, True)


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (evolve(client_server(), project="q"), "of another project"),
        (evolve(client_server(), status="SHELVED_OFFLOADED"), "Nova changes no metadata then"),
        (evolve(client_server(), tags=frozenset({records.TAG})), "is a share itself"),
    ],
)
def test_a_server_that_is_no_client(client: GpuServer, words: str) -> None:
    with pytest.raises(ShareError, match=words):
        refusals.check_client(WHOLE, client, "p", [WHOLE])


def test_a_client_of_another_share_is_refused() -> None:
    other = evolve(WHOLE, id=CLIENT.replace("7", "8"))
    with pytest.raises(ShareError, match="has a slot of share sim already"):
        refusals.check_client(other, client_server(), "p", [WHOLE, other])
    refusals.check_client(WHOLE, client_server(), "p", [WHOLE, other.slots and WHOLE])


def test_a_port_of_another_subnet_that_is_taken() -> None:
    """10.0.0.7 and 10.0.16.7 have equal low 12 bits."""
    assert port_of_address("10.0.0.7") == port_of_address("10.0.16.7")
    share_port = evolve(SHARE_PORT, addresses={"s2": "10.0.16.5"})
    client_port = evolve(CLIENT_PORT, addresses={"s2": "10.0.16.7"})
    share = evolve(WHOLE, ports=(share_port,))
    another = evolve(client_server(), id=SHARE.replace("0", "1"), name="two")
    meeting = refusals.find_meeting(share, another, [client_port], SUBNETS)
    with pytest.raises(ShareError, match="is that of one, which is in another subnet"):
        refusals.check_room(share, another, meeting, 0)
    # Its own port is free for itself.
    refusals.check_room(share, client_server(), meeting, 0)


@pytest.mark.parametrize(
    ("memory", "share_said", "client_said", "words"),
    [
        (0, Announced(memory=4096), Announced(), "more than the 4096 MiB"),
        (9000, Announced(memory=16384), Announced(), "more than the free memory"),
        (0, Announced(engines={"lupine": "2"}), Announced(), "the image of sim has no engine pocl"),
        (0, Announced(), Announced(engines={"lupine": "2"}), "the image of two has no engine"),
        (
            0,
            Announced(engines={"pocl": "6.0"}),
            Announced(engines={"pocl": "7.0"}),
            "start both from images with one release",
        ),
    ],
)
def test_what_guests_say_is_refused(
    memory: int, share_said: Announced, client_said: Announced, words: str
) -> None:
    another = evolve(client_server(), id=SHARE.replace("0", "1"), name="two")
    with pytest.raises(ShareError, match=words):
        refusals.check_announced(WHOLE, another, memory, share_said, client_said)
    refusals.check_announced(WHOLE, another, memory, Announced(), Announced())


TEXTS = st.text(max_size=20)
RECORDS = st.sampled_from(
    [
        slot_at("10.0.0.7"),
        pointer_at("10.0.0.7"),
        records.write_share(GpuShare("sim", "pocl")),
        '{"v":2}',
        "",
    ]
)
ITEMS = st.dictionaries(
    st.sampled_from([records.SHARE_KEY, records.CLIENT_KEY, SLOT_KEY]) | TEXTS, RECORDS | TEXTS
)


@given(st.lists(st.tuples(st.sampled_from([SHARE, CLIENT]), ITEMS), max_size=3), st.booleans())
def test_any_records_are_borne(servers: list[tuple[str, dict[str, str]]], grouped: bool) -> None:
    made = [GpuServer(one, "n", "ACTIVE", "p", items) for one, items in servers]
    for share in model.gather_shares(made, [SHARE_PORT, CLIENT_PORT], GROUPS if grouped else ()):
        assert share.state in ShareState
        assert all(slot.client_id for slot in share.slots)
