# SPDX-License-Identifier: Apache-2.0
"""The rules of a share: ports, slots, engines, and what a console says."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.files import Root
from nova_hpc_guest.gpu import announcements, engines, port_rule, records, serving
from nova_hpc_guest.gpu.records import GpuShare, GpuSlot

CLIENTS = [f"{number:08x}-1111-4222-8333-444455556666" for number in range(80)]
KEYS = ("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "a" * 42 + "E=")
BOOT = "1234abcd-1111-4222-8333-444455556666"


def slot_of(number: int, **more) -> GpuSlot:
    address = f"10.0.0.{number + 1}"
    return GpuSlot(address, port_rule.port_of_address(address), 1000 + number, **more)


def items_of(*slots: GpuSlot) -> dict[str, str]:
    return {
        records.slot_key_of(client): records.write_slot(slot)
        for client, slot in zip(CLIENTS, slots, strict=False)
    }


# -- the port rule ---------------------------------------------------------------------


@given(st.integers(20, 30), st.integers(0, (1 << 32) - 1), st.data())
def test_two_clients_of_a_subnet_never_meet(prefix, base, data):
    subnet = ipaddress.IPv4Network((base, prefix), strict=False)
    places = st.integers(1, subnet.num_addresses - 2)
    first, second = (str(subnet[data.draw(places)]) for _ in range(2))
    ports = []
    for address in (first, second):
        assert 0 <= port_rule.number_in_subnet(address, str(subnet)) < 4096
        port = port_rule.port_of_address(address)
        # All four are below those that Linux gives to clients (32768).
        assert 16384 <= port <= port + port_rule.PORTS - 1 < 32768
        ports.append(set(range(port, port + port_rule.PORTS)))
    assert (first == second) == bool(ports[0] & ports[1])
    inside = [port_rule.inside_address_of(min(port)) for port in ports]
    assert (first == second) == (inside[0] == inside[1])
    assert port_rule.SHARE_INSIDE not in inside


@pytest.mark.parametrize(
    ("address", "subnet", "words"),
    [
        ("10.0.0.7", "10.0.0.0/19", "take a subnet of /20 or smaller"),
        ("fd00::7", "fd00::/64", "is not of IPv4"),
        ("10.0.1.7", "10.0.0.0/24", "is not in subnet"),
        ("seven", "10.0.0.0/24", "is no address of a subnet"),
    ],
)
def test_no_port(address, subnet, words):
    with pytest.raises(port_rule.PortRuleError, match=words):
        port_rule.number_in_subnet(address, subnet)


# -- slots -----------------------------------------------------------------------------


def test_sixty_four_clients_are_served_and_no_more():
    plan = serving.plan_slots(GpuShare("s", "pocl", 64), items_of(*map(slot_of, range(66))))
    assert [served.client for served in plan.served] == CLIENTS[:64]
    assert len(plan.refused) == 2
    assert all("64 slots, and all are taken" in text for text in plan.refused)


@pytest.mark.parametrize(
    ("share", "slots", "served", "words"),
    [
        (GpuShare("s", "pocl", 4), [slot_of(0)._replace(port=16388 + 4)], 0, "is not the one of"),
        (GpuShare("s", "pocl", 4, 0, True), [slot_of(0)], 0, "has no key"),
        (GpuShare("s", "pocl", 4), [slot_of(0), slot_of(0)], 1, "is already that of server"),
        (
            GpuShare("s", "pocl", 4, 0, True),
            [slot_of(0, key=KEYS[0]), slot_of(1, key=KEYS[0])],
            1,
            "its key is already",
        ),
        (
            GpuShare("s", "pocl", 4, 40000),
            [slot_of(0), slot_of(1, memory=50000), slot_of(2)],
            2,
            "50000 MiB are more than what is left of the GPU's 81920",
        ),
    ],
)
def test_a_slot_that_is_not_served(share, slots, served, words):
    plan = serving.plan_slots(share, items_of(*slots), 81920)
    assert len(plan.served) == served
    assert [words in text for text in plan.refused] == [True]


@pytest.mark.parametrize(
    "text", ["", "{", '{"v":2,"a":"10.0.0.7","p":16412}', "[" * 9000, '{"v":1,"a":"::1","p":1}']
)
def test_a_slot_that_cannot_be_read_stays_as_it_is(text):
    items = {**items_of(slot_of(0)), records.slot_key_of(CLIENTS[9]): text}
    plan = serving.plan_slots(GpuShare("s", "pocl", 4), items)
    assert [served.client for served in plan.served] == CLIENTS[:1]
    assert plan.unknown == {CLIENTS[9]}
    assert len(plan.refused) == 1


@pytest.mark.parametrize("unread", [{records.slot_key_of(CLIENTS[9]): "{"}, {}])
def test_a_unit_that_stays_is_counted(unread):
    """The record of its slot cannot be read, or is gone and the unit could not be ended."""
    items = {**items_of(slot_of(0), slot_of(1)), **unread}
    held = {CLIENTS[0]: 4000, CLIENTS[9]: 5000}
    for share, memory, words in (
        (GpuShare("s", "pocl", 2), 0, "the share has 2 slots, and all are taken"),
        (GpuShare("s", "pocl", 4, 4000), 10000, "4000 MiB are more than what is left"),
    ):
        plan = serving.plan_slots(share, items, memory, held)
        assert [served.client for served in plan.served] == CLIENTS[:1]
        assert words in plan.refused[-1]
        # Without a unit it has nothing.
        plan = serving.plan_slots(share, items, memory, {CLIENTS[0]: 4000})
        assert [served.client for served in plan.served] == CLIENTS[:2]


@given(st.dictionaries(st.text(max_size=60), st.text(max_size=300)))
def test_any_metadata_is_borne(items):
    assert serving.plan_slots(GpuShare("s", "pocl", 4), items).served == ()


def test_a_slice_that_is_listed_twice_is_one(tmp_path):
    root = Root(str(tmp_path))
    root.write(serving.SLICES, b"MIG-a\nMIG-b\nMIG-a\n")
    slices, problems = serving.read_slices(root)
    assert slices == ["MIG-a", "MIG-b"]
    assert [text.split(":")[0] for text in problems] == [
        f"{serving.SLICES} lists MIG-a more than once"
    ]


def test_a_slice_stays_with_its_client():
    slices = ["MIG-a", "MIG-b"]
    first = serving.choose_slices(slices, CLIENTS[:1], {})
    assert first == {CLIENTS[0]: "MIG-a"}
    both = serving.choose_slices(slices, [CLIENTS[5], CLIENTS[0]], first)
    assert both == {CLIENTS[0]: "MIG-a", CLIENTS[5]: "MIG-b"}
    assert serving.choose_slices(slices, CLIENTS[:3], first).keys() == {CLIENTS[0], CLIENTS[1]}
    # A unit that is there has its slice, whoever is served.
    assert serving.choose_slices(slices, CLIENTS[:3], both) == {CLIENTS[0]: "MIG-a"}


def test_the_longest_records_fit():
    share = GpuShare("n" * 40, "e" * 16, 64, records.MOST_MEMORY, True)
    slot = GpuSlot("255.255.254.254", records.LAST_PORT, 1 << 40, records.MOST_MEMORY, KEYS[0])
    client = records.GpuClient(
        CLIENTS[0], "255.255.254.254", "255.255.254.253", records.LAST_PORT, "e" * 16, KEYS[0]
    )
    for write, read, value in (
        (records.write_share, records.read_share, share),
        (records.write_slot, records.read_slot, slot),
        (records.write_client, records.read_client, client),
    ):
        text = write(value)
        assert len(text) <= 255
        assert read(text) == value
    with pytest.raises(records.RecordError, match="255"):
        records.read_slot(records.write_slot(slot) + " " * 255)


# -- engines ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", engines.SHIPPED)
def test_a_shipped_engine(tmp_path, name):
    engine = engines.load_engine(Root(str(tmp_path)), name)
    assert engine.name == name
    filled = engines.fill_environment(engine.client_environment, address="10.0.0.5", port=16412)
    assert "10.0.0.5:16412" in " ".join(filled.values())
    with pytest.raises(engines.EngineError, match="is not part of this image"):
        engines.find_release(Root(str(tmp_path)), engine)


GOOD = "[engine]\nname = mine\nserver = /bin/x {port}\nrelease = 1.2\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"has no section \[engine\]"),
        ("[engine", "no section"),
        (GOOD + "extra = 1\n", "'extra' is none of"),
        (GOOD.replace("/bin/x", "x"), "has to begin with the path"),
        (GOOD.replace("{port}", "{prot}"), r"\{prot\} is none of address, bind, mib, port"),
        (GOOD.replace("{port}", "{port.__class__}"), "is none of"),
        (GOOD.replace("{port}", "'"), "No closing quotation"),
        (GOOD + "ports = 4\n", "1 to 3"),
        (GOOD + "match = near\n", "not exact or series"),
        (GOOD + "user = Root User\n", "no name of a user"),
        (GOOD + "devices = /dev/../x\n", "no device"),
        (GOOD + "release_file = /x\n", "either release"),
        (GOOD.replace("mine", "My Engine"), "one word in lower case"),
        (GOOD + "[client environment]\nA-B = 1\n", "wrong variable"),
    ],
)
def test_a_wrong_engine_is_named(text, words):
    with pytest.raises(engines.EngineError, match=words):
        engines.parse_engine(text, "mine.ini")


def test_an_operators_engine_comes_first(tmp_path):
    folder = tmp_path / "etc/nova-hpc/gpu-engines"
    folder.mkdir(parents=True)
    (folder / "pocl.ini").write_text(GOOD.replace("mine", "pocl"))
    root = Root(str(tmp_path))
    assert engines.find_release(root, engines.load_engine(root, "pocl")) == "1.2"
    (folder / "mine.ini").write_text(GOOD.replace("mine", "other"))
    with pytest.raises(engines.EngineError, match="says that it is the engine other"):
        engines.load_engine(root, "mine")
    with pytest.raises(engines.EngineError, match="there is no engine more"):
        engines.load_engine(root, "more")
    with pytest.raises(engines.EngineError, match="no name"):
        engines.load_engine(root, "../x")


def test_releases_that_differ_are_named():
    explain = engines.explain_release_difference
    assert explain("e", engines.EXACT, "6.0", "6.0") is None
    assert "release 6.0 of the engine e and the client 6.1" in explain("e", "exact", "6.0", "6.1")
    assert explain("e", engines.SERIES, "6.0.1", "6.0.2") is None
    assert explain("e", engines.SERIES, "6.0.1", "6.1.1") is not None


# -- the console -----------------------------------------------------------------------


def test_the_last_boot_counts():
    old = announcements.format_announcements(BOOT.replace("1", "2"), KEYS[1], {"pocl": "5.0"}, 9)
    new = announcements.format_announcements(BOOT, KEYS[0], {"pocl": "6.0"}, 81920)
    console = "\r\n".join(["login: ", *old, "[    0.0] Linux", *new, *new, "login: "])
    found = announcements.read_announcements(console)
    assert found == announcements.Announced((KEYS[0],), {"pocl": "6.0"}, 81920)
    assert announcements.require_one_key(found, "sim") == KEYS[0]


def test_two_keys_in_one_boot_are_refused():
    lines = [line for key in KEYS for line in announcements.format_announcements(BOOT, key, {}, 0)]
    found = announcements.read_announcements("\n".join(lines))
    with pytest.raises(announcements.KeyDoubtError, match="two different keys in one boot"):
        announcements.require_one_key(found, "sim")
    assert announcements.require_one_key(announcements.Announced(), "sim") is None


@given(st.text())
def test_any_console_is_borne(text):
    found = announcements.read_announcements(text)
    assert found == announcements.Announced() or "nova-hpc-guest: gpu boot" in text


@given(st.lists(st.sampled_from(["key", "engine", "memory", KEYS[0], "x" * 80, "-1", "\0", " "])))
def test_a_hostile_line_says_nothing_else(words):
    text = f"nova-hpc-guest: gpu boot 1234abcd {' '.join(words)}"
    found = announcements.read_announcements(text)
    assert all(records.KEY.fullmatch(key) for key in found.keys)
    assert found.memory >= 0


@pytest.mark.parametrize("boot", [BOOT, BOOT.replace("1", "3")])
def test_a_key_within_a_line_is_doubted(boot):
    """A user's name in a log, for example: it replaces no key, of this boot or another."""
    own = "\r\n".join(["", *announcements.format_announcements(BOOT, KEYS[0], {}, 0), ""])
    (line,) = announcements.format_announcements(boot, KEYS[1], {}, 0)
    found = announcements.read_announcements(f"{own}sshd[7]: Invalid user {line} from 10.0.0.9\r\n")
    assert found.keys == (KEYS[0],)
    with pytest.raises(announcements.KeyDoubtError, match="a key within a line of other text"):
        announcements.require_one_key(found, "sim")
    # The own one, once more and in the middle of a line, is no sign of another writer.
    (line,) = announcements.format_announcements(BOOT, KEYS[0], {}, 0)
    found = announcements.read_announcements(f"{own}login: {line}\r\n")
    assert announcements.require_one_key(found, "sim") == KEYS[0]


def test_a_boot_that_returns_is_doubted():
    own, other = (
        announcements.format_announcements(boot, key, {}, 0)
        for boot, key in zip((BOOT, BOOT.replace("1", "3")), KEYS, strict=True)
    )
    found = announcements.read_announcements("\r\n".join([*own, *other]))
    assert announcements.require_one_key(found, "sim") == KEYS[1]  # as after a reboot
    found = announcements.read_announcements("\r\n".join([*own, *other, *own]))
    with pytest.raises(announcements.KeyDoubtError, match="again after those of another boot"):
        announcements.require_one_key(found, "sim")
