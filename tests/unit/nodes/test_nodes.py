# SPDX-License-Identifier: Apache-2.0
"""Each synthetic node from its sysfs to the NCCL file of a guest, against what is known of it.

The files in tests/data/nodes are written anew where NOVA_HPC_RENEW_GOLDEN is
set; look at the difference before it is committed.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import attrs
import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import BridgeKind, Node, PciFunction, normalise_address
from nova_hpc_common.level import Distance, Level, common_level, distance_between
from tests.nodes.catalogue import NODES
from tests.nodes.describe import cpu_ids
from tests.nodes.plan import functions
from tests.unit.nodes import walk
from tests.unit.topology import nccl_reader

GOLDEN = Path(__file__).parents[2] / "data/nodes"
#: NCCL knows no host bridges, so it cannot tell these two apart.
SAME = {Distance.NODE: "PHB"}


@attrs.frozen
class Facts:
    """What is known of a node."""

    #: Two functions -> the tightest level and the kind of path between them.
    pairs: dict[tuple[str, str], tuple[Level, Distance]] = attrs.Factory(dict)
    #: The members of some IOMMU groups.
    groups: tuple[tuple[str, ...], ...] = ()
    #: Function -> its NUMA node.
    homes: dict[str, int] = attrs.Factory(dict)


@attrs.frozen
class Ask:
    """A server, and the devices that it gets or a part of the refusal."""

    node: str
    counts: dict[str, int]
    cells: int
    specs: dict[str, str]
    devices: tuple[str, ...] = ()
    refusal: str = ""
    reached: tuple[Level, Distance] = (Level.SWITCH, Distance.PIX)

    @property
    def name(self) -> str:
        return "-".join(f"{count}{role}" for role, count in self.counts.items())


def pci(bus: str, function: str = "00.0") -> str:
    return f"{bus if len(bus) > 2 else f'0000:{bus}'}:{function}"


PIX, PXB = (Level.SWITCH, Distance.PIX), (Level.SWITCH, Distance.PXB)
PHB, NODE = (Level.ROOT, Distance.PHB), (Level.NUMA, Distance.NODE)
SOCKET, SYS = (Level.SOCKET, Distance.SYS), (Level.HOST, Distance.SYS)

FACTS = {
    "hgx-h100": Facts(
        pairs={
            (pci("19"), pci("18")): PIX,
            (pci("19"), pci("1b")): PIX,
            (pci("19"), pci("3b")): NODE,
            (pci("19"), pci("9b")): SYS,
            (pci("bb"), pci("bc", "00.1")): PIX,
            (pci("4b"), pci("4e")): PIX,
        },
        # ACS at every port: even the virtual functions are apart.
        groups=((pci("19"),), (pci("18", "01.0"),), (pci("16"),)),
        homes={pci("19"): 0, pci("4b"): 0, pci("9b"): 1, pci("bc", "00.7"): 1},
    ),
    "xeon-snc4": Facts(
        pairs={
            (pci("16"), pci("27")): NODE,
            (pci("16"), pci("38")): SOCKET,
            (pci("98"), pci("99")): PHB,
            (pci("98"), pci("b8")): SOCKET,
            (pci("16"), pci("98")): SYS,
        },
        groups=((pci("00", "1f.0"), pci("00", "1f.4")),),
        homes={pci("16"): 0, pci("38"): 2, pci("99"): 4, pci("b8"): 6},
    ),
    "epyc-nps4": Facts(
        pairs={
            (pci("22"), pci("23")): PHB,
            (pci("02"), pci("22")): SOCKET,
            (pci("62"), pci("82")): SYS,
        },
        groups=((pci("02"),),),
        homes={pci(f"{0x20 * number + 2:02x}"): number for number in range(8)},
    ),
    "gh200": Facts(
        pairs={
            (pci("0009:01"), pci("0000:01")): NODE,
            (pci("0019:01"), pci("0010:01", "00.3")): NODE,
            (pci("0009:01"), pci("0019:01")): SYS,
        },
        groups=((pci("0009:01"),),),
        homes={pci("0009:01"): 0, pci("0004:01"): 0, pci("0019:01"): 1},
    ),
    "gh200-host": Facts(
        pairs={(pci("0009:01"), pci("0000:01")): NODE},
        groups=((pci("0009:01"),),),
        homes={pci("0009:01"): 0, pci("0019:01"): 1},
    ),
    "vgpu": Facts(
        pairs={
            (pci("17", "00.4"), pci("17", "00.7")): PIX,
            (pci("17"), pci("65")): SYS,
        },
        # Each vGPU is alone, as Nova needs it.
        groups=((pci("17", "00.4"),), (pci("65"),)),
        homes={pci("17", "00.4"): 0, pci("65"): 1},
    ),
    "vmd": Facts(
        pairs={
            # Behind one device, and yet below a host bridge of their own.
            (pci("10000:01"), pci("10000:02")): PHB,
            (pci("10000:01"), pci("16", "00.5")): NODE,
            (pci("10000:01"), pci("10001:01")): SYS,
            (pci("17"), pci("65")): SYS,
        },
        groups=((pci("10000:01"),),),
        homes={pci("10000:01"): 0, pci("10001:02"): 1},
    ),
    "mi300x": Facts(
        pairs={
            # Each below a switch of its own, which are below one.
            (pci("06"), pci("09")): PXB,
            (pci("06"), pci("0a")): PXB,
            (pci("06"), pci("26")): NODE,
            (pci("06"), pci("86")): SYS,
        },
        groups=((pci("06"),), (pci("0a", "00.1"),)),
        homes={pci("06"): 0, pci("a9"): 1},
    ),
    "two-socket": Facts(
        pairs={
            (pci("17"), pci("18")): PHB,
            (pci("17"), pci("31")): NODE,
            (pci("b1"), pci("b1", "00.1")): PIX,
            (pci("31"), pci("b1")): SYS,
        },
        groups=(
            # Behind a port without ACS and a bridge to PCI nothing can be told apart.
            (pci("00", "1c.0"), pci("01"), pci("02")),
            (pci("b1", "00.1"),),
        ),
        homes={pci("02"): 0, pci("b1", "00.2"): 1},
    ),
    "a100-bridges": Facts(
        pairs={
            (pci("23"), pci("26")): PIX,
            (pci("23"), pci("42")): NODE,
            (pci("23"), pci("a3")): SYS,
        },
        # Without ACS in the switch a card is with the port above it.
        groups=((pci("22"), pci("23")), (pci("a2", "03.0"), pci("a6"))),
        homes={pci("26"): 0, pci("a6"): 1},
    ),
    "bare": Facts(
        pairs={(pci("00", "1f.6"), pci("00", "1f.0")): PHB},
        homes={pci("00", "1f.6"): 0},
    ),
}


def vf(bus: str) -> str:
    return pci(bus, "00.1")


PAIRS = {"group": "gpu:1,vf:1"}
ASKS = [
    Ask(
        "hgx-h100",
        {"gpu": 4, "vf": 4},
        2,
        {"affinity": "switch", **PAIRS},
        (vf("18"), pci("19"), vf("1a"), pci("1b"), vf("9a"), pci("9b"), vf("9c"), pci("9d")),
    ),
    # NVSwitches make one set of all eight.
    Ask(
        "hgx-h100",
        {"gpu": 8},
        2,
        {"affinity": "host", "nvlink": "required", "group": "gpu:8"},
        tuple(map(pci, ("19", "1b", "3b", "3d", "9b", "9d", "bb", "bd"))),
        reached=SYS,
    ),
    Ask(
        "hgx-h100",
        {"gpu": 4},
        1,
        {"affinity": "numa", "nvlink": "required"},
        refusal="no whole NVLink set of 4 free",
    ),
    Ask(
        "xeon-snc4",
        {"gpu": 1, "vf": 1},
        1,
        {"affinity": "switch"},
        refusal="at most 1 gpu with 0 vf under one switch",
    ),
    Ask("xeon-snc4", {"gpu": 1, "vf": 1}, 1, {"affinity": "root"}, (pci("98"), vf("99")),
        reached=PHB),
    Ask(
        "xeon-snc4",
        {"gpu": 2, "vf": 2},
        2,
        {"affinity": "numa", **PAIRS},
        (pci("16"), vf("27"), pci("98"), vf("99")),
        reached=NODE,
    ),
    Ask(
        "epyc-nps4",
        {"gpu": 2, "vf": 2},
        2,
        {"affinity": "root", **PAIRS},
        (pci("22"), vf("23"), pci("a2"), vf("a3")),
        reached=PHB,
    ),
    Ask(
        "epyc-nps4",
        {"gpu": 2},
        1,
        {"affinity": "numa"},
        refusal="at most 1 on one NUMA node",
    ),
    Ask(
        "gh200",
        {"gpu": 2, "vf": 2},
        2,
        {"affinity": "numa", **PAIRS},
        (vf("0000:01"), pci("0009:01"), vf("0010:01"), pci("0019:01")),
        reached=NODE,
    ),
    # The nodes that are a GPU's memory have no CPUs for a third cell.
    Ask(
        "gh200", {"gpu": 2, "vf": 2}, 3, {"affinity": "host", **PAIRS},
        refusal="no free NUMA node",
    ),
    Ask(
        "vmd",
        {"gpu": 1, "vf": 1},
        2,
        {"affinity": "host", **PAIRS},
        (pci("17"), vf("65")),
        reached=SYS,
    ),
    Ask(
        "mi300x",
        {"gpu": 2, "vf": 1},
        1,
        {"affinity": "switch", "group": "gpu:2,vf:1"},
        (pci("06"), pci("09"), vf("0a")),
        reached=PXB,
    ),
    Ask("two-socket", {"gpu": 2}, 1, {"affinity": "numa"}, (pci("17"), pci("31")), reached=NODE),
    Ask(
        "two-socket",
        {"gpu": 2},
        1,
        {"affinity": "root"},
        refusal="at most 1 under one PCIe root",
    ),
    Ask(
        "a100-bridges",
        {"gpu": 4},
        2,
        {"affinity": "switch", "nvlink": "required", "group": "gpu:2"},
        (pci("23"), pci("24"), pci("a3"), pci("a4")),
    ),
    Ask(
        "a100-bridges",
        {"gpu": 4},
        1,
        {"affinity": "switch", "nvlink": "required"},
        refusal="no whole NVLink set of 4 free",
    ),
    Ask(
        "gh200-host",
        {"gpu": 1, "vf": 1},
        1,
        {"affinity": "numa"},
        (vf("0000:01"), pci("0009:01")),
        reached=NODE,
    ),
    Ask("vgpu", {"vf": 1}, 1, {"affinity": "numa"}, (vf("81"),)),
    Ask("bare", {"gpu": 1}, 0, {"affinity": "switch"}, refusal="0 gpu free"),
]  # fmt: skip


@pytest.fixture(params=sorted(NODES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def node(name, synthetic) -> Node:
    return sysfs.read_sysfs_node(synthetic(name))


def get(node: Node, address: str) -> PciFunction:
    found = node.function(address)
    assert found is not None, address
    return found


def same(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("NOVA_HPC_RENEW_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_there_are_facts_of_every_node():
    assert FACTS.keys() == NODES.keys()
    assert {ask.node for ask in ASKS} == NODES.keys()


def test_all_of_it_is_read(name, node):
    """Every function that was described, and nothing that makes no sense."""
    assert node.problems == ()
    assert [f.address for f in node.functions if f.unknown] == []
    described = {placed.address for placed in functions(NODES[name])}
    assert {normalise_address(address) for address in described} == {
        f.address for f in node.functions
    }
    assert node.hostname == name
    assert node.inactive == ()


def test_the_numa_nodes(name, node):
    assert [numa.id for numa in node.numa_nodes] == [numa.id for numa in NODES[name].numa]
    for numa, described in zip(node.numa_nodes, NODES[name].numa, strict=True):
        assert sorted(numa.cpus) == sorted(cpu_ids(described.cpus))
        assert numa.socket == described.socket
        assert numa.memory_kib == described.memory_gib << 20
        assert {pool.size_kib: pool.total for pool in numa.hugepages} == dict(described.pages)
        assert numa.memory_of == described.memory_of
        threads = 1 if NODES[name].processor.sibling is None else 2
        assert {len(core) for core in numa.smt_siblings} <= {threads}
    for address, home in FACTS[name].homes.items():
        assert get(node, address).numa_node == home, address


def test_levels_and_paths(name, node):
    for (one, other), expected in FACTS[name].pairs.items():
        places = [get(node, one).location, get(node, other).location]
        assert (common_level(places), distance_between(*places)) == expected, (one, other)


def test_iommu_groups(name, node):
    for members in FACTS[name].groups:
        assert node.group_members(get(node, members[0])) == members
    if not NODES[name].iommu:
        assert node.iommu_groups == ()
        return
    # A function whose ports all isolate shares its group with none but those of its slot.
    for function in node.functions:
        if function.acs_on_path and not function.is_bridge:
            slot = function.address[:-2]
            assert all(one.startswith(slot) for one in node.group_members(function))


def test_registers_and_files(name, node):
    """Kinds of ports, links and virtual functions are those that were described."""
    for placed in functions(NODES[name]):
        function = get(node, placed.address)
        kinds = {
            "root": BridgeKind.ROOT_PORT,
            "upstream": BridgeKind.UPSTREAM,
            "downstream": BridgeKind.DOWNSTREAM,
            "pci": BridgeKind.PCI,
        }
        assert function.bridge is kinds.get(getattr(placed.part, "kind", ""))
        assert function.virtual_functions == tuple(one.address for one in placed.virtual)
        parent = placed.physical
        assert function.physical_function == (parent.address if parent else None)
        link = placed.part.link
        if link is None or parent is not None:
            assert function.link is None
        else:
            assert function.link is not None
            assert (function.link.max_speed, function.link.max_width) == (link.speed, link.width)
            assert (function.link.speed, function.link.width) == (
                link.now or (link.speed, link.width)
            )


def test_what_it_offers(name, synthetic, tmp_path):
    spec = walk.device_spec(synthetic(name), tmp_path / "conf", NODES[name].nvlink_set)
    same(f"{name}/device-spec.txt", spec)
    assert bool(spec) == (name != "bare")


def test_its_own_nccl_file(name, node, synthetic):
    text = walk.command("--root", synthetic(name), "--show", "nccl")
    same(f"{name}/host.xml", text)
    agrees(text, {each.address: each.address for each in node.functions}, node)


def agrees(text: str, names: dict[str, str], node: Node) -> None:
    """NCCL sees the paths that the inventory has; *names*: its names -> those of the host."""
    seen = nccl_reader.devices(nccl_reader.read(text))
    for one, other in itertools.combinations(seen, 2):
        expected = nccl_reader.expected_path(node, names[one], names[other])
        assert nccl_reader.path_type(seen[one], seen[other]) == expected


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: f"{ask.node}-{ask.name}")
def test_a_server_from_its_flavor_to_its_nccl_file(ask, synthetic, tmp_path):
    root = synthetic(ask.node)
    node = sysfs.read_sysfs_node(root)
    spec = walk.device_spec(root, tmp_path / "conf", NODES[ask.node].nvlink_set)
    answer = walk.ask(walk.host(node, spec), ask.counts, ask.cells, ask.specs)
    if ask.refusal:
        assert answer.miss is not None
        assert ask.refusal in answer.miss.operator
        return
    best = answer.sets[0]
    assert (best.level, best.distance) == ask.reached
    devices = walk.given(node, answer)
    assert [address for address, _ in devices] == sorted(ask.devices)
    # Its NCCL sees the same distances between them as the host has.
    text, names = walk.nccl_file(tmp_path, node, devices, answer)
    same(f"{ask.node}/guest-{ask.name}.xml", text)
    agrees(text, names, node)
    assert len(nccl_reader.devices(nccl_reader.read(text))) == len(ask.devices)
