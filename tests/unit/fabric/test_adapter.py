import errno
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric import adapter, adapter_set
from nova_hpc.fabric.adapter import (
    CLEARED,
    AdapterError,
    Ethernet,
    Infiniband,
    Layer,
    LinkState,
    VirtualFunction,
    find,
)
from nova_hpc.fabric.adapter_mlx5 import Mlx5, index_of
from nova_hpc.fabric.adapter_netlink import Netlink
from nova_hpc.topology.model import Function, Node, RdmaDevice, RdmaPort

ROCE = VirtualFunction("0000:3b:00.2", 0, Layer.ETHERNET, "mlx5_core", "ens1", "mlx5_0")
OTHER = attrs.evolve(ROCE, address="0000:3b:00.3", index=1)
IB = VirtualFunction("0000:5e:00.3", 1, Layer.INFINIBAND, "mlx5_core", "ib0", "mlx5_1")
FULL = Ethernet("fa:16:3e:00:00:01", 100, 3, True, True, 100, 1000, LinkState.UP)
GUIDS = Infiniband(0x0011223344556677, 0x0011223344556688)

MACS = st.binary(min_size=6, max_size=6).map(
    lambda data: ":".join(f"{byte:02x}" for byte in (data[0] & 0xFE, *data[1:]))
)
STATES = st.sampled_from(LinkState)
ETHERNETS = st.builds(
    Ethernet,
    mac=MACS,
    vlan=st.integers(0, 4094),
    qos=st.integers(0, 7),
    spoof_check=st.booleans(),
    trust=st.booleans(),
    min_rate=st.integers(0, 1000),
    max_rate=st.integers(0, 100000),
    link_state=STATES,
)
INFINIBANDS = st.builds(
    Infiniband, st.integers(0, (1 << 64) - 2), st.integers(0, (1 << 64) - 2), STATES
)


# -- what may be asked for -----------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {"mac": "01:00:5e:00:00:01"},
        {"mac": "fa:16:3E:00:00:01"},
        {"mac": "fa:16:3e:00:00:01\n"},
        {"mac": "x"},
        {"mac": "fa:16:3e:00:00:01", "vlan": 4095},
        {"mac": "fa:16:3e:00:00:01", "qos": 8},
        {"mac": "fa:16:3e:00:00:01", "max_rate": -1},
    ],
)
def test_nonsense_is_refused(values):
    with pytest.raises(ValueError, match=r"."):
        Ethernet(**values)


@pytest.mark.parametrize("guid", [-1, (1 << 64) - 1, 1 << 64])
def test_no_guid(guid):
    with pytest.raises(ValueError, match=r"is no GUID"):
        Infiniband(guid, 1)


def node(
    layer: str | None = "InfiniBand", driver: str | None = "mlx5_core", **more: object
) -> Node:
    ports = (RdmaPort(1, link_layer=layer),)
    card = Function(
        "0000:5e:00.0",
        class_code="020700",
        driver=driver,
        rdma=(RdmaDevice("mlx5_1", ports=ports),),
        os_devices=("net ib0", "infiniband mlx5_1"),
    )
    function = Function("0000:5e:00.3", physical_function="0000:5e:00.0")
    return Node("x", functions=(attrs.evolve(card, **more), function))


def test_roce_and_infiniband_are_told_apart():
    assert find(node(), IB.address, 1) == IB
    assert find(node("Ethernet"), IB.address, 1).layer is Layer.ETHERNET
    plain = node(rdma=(), class_code="020000", driver="igb", os_devices=("net eth3",))
    assert find(plain, IB.address, 1) == attrs.evolve(
        IB, layer=Layer.ETHERNET, driver="igb", net="eth3", rdma=None
    )


@pytest.mark.parametrize(
    ("found", "address", "words"),
    [
        (node(None), "0000:5e:00.3", "does not say whether"),
        (node("Sonar"), "0000:5e:00.3", "does not say whether"),
        (node(rdma=()), "0000:5e:00.3", "does not say whether"),
        (node(driver=None), "0000:5e:00.3", "is bound to no driver"),
        (node(), "0000:5e:00.0", "is no virtual function"),
        (node(), "0000:00:00.0", "is no virtual function"),
    ],
)
def test_what_is_not_known_is_refused(found, address, words):
    with pytest.raises(AdapterError, match=words):
        find(found, address, 0)


# -- Ethernet: messages as pyroute2 writes and reads them ------------------------------


class Kernel:
    """Adapters with virtual functions behind rtnetlink.

    Each request and each answer is encoded to the bytes of the protocol and
    decoded again by pyroute2 itself.
    """

    def __init__(self, functions: int = 2, unknown: tuple[str, ...] = ()) -> None:
        self.unknown = unknown
        self.deaf: set[tuple[int, str]] = set()
        self.writes: list[tuple[int, str]] = []
        self.functions = [
            {
                "IFLA_VF_MAC": {"vf": number, "mac": adapter.NO_MAC},
                "IFLA_VF_VLAN": {"vf": number, "vlan": 0, "qos": 0},
                "IFLA_VF_RATE": {"vf": number, "min_tx_rate": 0, "max_tx_rate": 0},
                "IFLA_VF_SPOOFCHK": {"vf": number, "spoofchk": 1},
                "IFLA_VF_LINK_STATE": {"vf": number, "link_state": 0},
                "IFLA_VF_TRUST": {"vf": number, "trust": 0},
            }
            for number in range(functions)
        ]
        for each in self.functions:
            for name in unknown:
                # A driver that does not know a setting tells all ones, or nothing.
                if name in ("IFLA_VF_SPOOFCHK", "IFLA_VF_TRUST"):
                    each[name] = dict.fromkeys(each[name], 4294967295) | {"vf": each[name]["vf"]}
                else:
                    del each[name]

    def __call__(self) -> "Kernel":
        return self

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def link_lookup(self, ifname: str) -> list[int]:
        return [7] if ifname == "ens1" else []

    def link(self, command: str, index: int, vf: dict[str, object]) -> list[object]:
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.requests.link import LinkIPRouteFilter

        assert (command, index) == ("set", 7)
        message = over_the_wire(LinkIPRouteFilter("set").get_vf(vf))
        (info,) = message.get("IFLA_VFINFO_LIST").get_attrs("IFLA_VF_INFO")
        for name, value in info["attrs"]:
            self.writes.append((value["vf"], name))
            if name in self.unknown:
                raise NetlinkError(errno.EOPNOTSUPP)
            if (value["vf"], name) not in self.deaf:
                keys = self.functions[value["vf"]][name].keys()
                self.functions[value["vf"]][name] = {key: value[key] for key in keys}
        return []

    def get_links(self, index: int, ext_mask: int) -> list[object]:
        assert (index, ext_mask) == (7, 1)
        return [
            over_the_wire(
                {
                    "attrs": [
                        ("IFLA_VF_INFO", {"attrs": [(k, dict(v)) for k, v in each.items()]})
                        for each in self.functions
                    ]
                }
            )
        ]


def over_the_wire(functions: dict[str, object]) -> object:
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    message = ifinfmsg()
    message["index"] = 7
    message["attrs"] = [("IFLA_VFINFO_LIST", functions)]
    message.encode()
    again = ifinfmsg(message.data)
    again.decode()
    return again


def through(kernel: Kernel):
    return lambda function: Netlink(kernel)


@given(ETHERNETS)
def test_ethernet_settings_are_made_read_back_and_cleared(settings):
    kernel = Kernel()
    make = through(kernel)
    adapter_set.make(make, [(OTHER, settings)])
    assert Netlink(kernel).read(OTHER) == adapter.values(settings)
    untouched = adapter.values(attrs.evolve(CLEARED[Layer.ETHERNET], link_state=LinkState.AUTO))
    assert Netlink(kernel).read(ROCE) == untouched
    assert adapter_set.clear(make, [OTHER]) == {}
    assert Netlink(kernel).read(OTHER) == adapter.values(CLEARED[Layer.ETHERNET])


def test_what_is_so_already_is_not_written():
    kernel = Kernel()
    adapter_set.make(through(kernel), [(ROCE, Ethernet("fa:16:3e:00:00:01"))])
    assert kernel.writes == [(0, "IFLA_VF_MAC")]


def test_the_link_comes_up_last_and_goes_down_first():
    kernel = Kernel()
    adapter_set.make(through(kernel), [(ROCE, attrs.evolve(FULL, spoof_check=False))])
    names = [name.removeprefix("IFLA_VF_") for _, name in kernel.writes]
    assert names == ["MAC", "VLAN", "SPOOFCHK", "TRUST", "RATE", "LINK_STATE"]
    kernel.writes.clear()
    adapter_set.clear(through(kernel), [ROCE])
    names = [name.removeprefix("IFLA_VF_") for _, name in kernel.writes]
    assert names == ["LINK_STATE", "RATE", "TRUST", "SPOOFCHK", "VLAN", "MAC"]


EVERY = (
    "IFLA_VF_VLAN",
    "IFLA_VF_RATE",
    "IFLA_VF_SPOOFCHK",
    "IFLA_VF_LINK_STATE",
    "IFLA_VF_TRUST",
)


@pytest.mark.parametrize("name", EVERY)
def test_a_setting_that_the_driver_does_not_know(name):
    kernel = Kernel(unknown=(name,))
    with pytest.raises(AdapterError, match=r"^0000:3b:00.2: .*(not supported|read back otherwise)"):
        adapter_set.make(through(kernel), [(ROCE, FULL)])
    # Nothing is left behind but for what cannot be set at all.
    assert Netlink(kernel).read(ROCE)["mac"] == adapter.NO_MAC
    plain = Ethernet("fa:16:3e:00:00:01")
    if name == "IFLA_VF_SPOOFCHK":
        with pytest.raises(AdapterError):
            adapter_set.make(through(kernel), [(ROCE, plain)])
    else:
        adapter_set.make(through(kernel), [(ROCE, plain)])
        assert adapter_set.clear(through(kernel), [ROCE]) == {}


@pytest.mark.parametrize("name", ["IFLA_VF_MAC", *EVERY])
def test_a_setting_that_does_not_stick_refuses_the_start(name):
    kernel = Kernel()
    kernel.deaf.add((0, name))
    changed = attrs.evolve(FULL, spoof_check=False)
    with pytest.raises(AdapterError, match=r"read back otherwise: "):
        adapter_set.make(through(kernel), [(OTHER, FULL), (ROCE, changed)])
    # Both were cleared again, as far as they can be.
    cleared = adapter.values(CLEARED[Layer.ETHERNET])
    assert Netlink(kernel).read(OTHER) == cleared
    seen = dict(Netlink(kernel).read(ROCE))
    if name == "IFLA_VF_LINK_STATE":
        assert seen.pop("link_state") is LinkState.AUTO
    assert seen.items() <= cleared.items()


def test_what_cannot_be_cleared_is_named():
    kernel = Kernel()
    adapter_set.make(through(kernel), [(ROCE, FULL), (OTHER, FULL)])
    kernel.deaf |= {(0, "IFLA_VF_MAC"), (1, "IFLA_VF_MAC")}
    found = adapter_set.clear(through(kernel), [ROCE, OTHER])
    assert found == {
        each.address: f"{each.address}: read back otherwise: mac" for each in (ROCE, OTHER)
    }
    kernel.deaf.add((0, "IFLA_VF_VLAN"))
    with pytest.raises(AdapterError, match=r"then it could not be cleared: 0000:3b:00.2: "):
        adapter_set.make(through(kernel), [(ROCE, attrs.evolve(FULL, vlan=5))])


def test_settings_of_the_other_kind_are_refused_before_anything():
    kernel = Kernel()
    with pytest.raises(AdapterError, match=r"speaks Ethernet, and the settings are for InfiniBand"):
        adapter_set.make(through(kernel), [(ROCE, GUIDS)])
    assert kernel.writes == []


def test_no_device():
    for function in (attrs.evolve(ROCE, net=None), attrs.evolve(ROCE, net="gone")):
        with pytest.raises(AdapterError, match=r"no network device"):
            Netlink(Kernel()).read(function)
    with pytest.raises(AdapterError, match=r"tells nothing about it"):
        Netlink(Kernel(functions=1)).read(OTHER)


def test_this_machines_own_kernel_refuses_a_device_without_functions():
    """Through a real socket, without any right that this needs."""
    loopback = attrs.evolve(ROCE, net="lo")
    with pytest.raises(AdapterError, match=r"tells nothing about it"):
        Netlink().read(loopback)
    with pytest.raises(AdapterError, match=r"0000:3b:00.2: mac of lo: "):
        Netlink().write(loopback, adapter.Step("mac", "fa:16:3e:00:00:01"))


# -- InfiniBand: the files of the driver -------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An mlx5 adapter with two virtual functions, as the driver's documentation has it."""
    device = tmp_path / "sys/devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0"
    for number in range(2):
        folder = device / f"sriov/{number}"
        folder.mkdir(parents=True)
        (folder / "node").write_text("00:00:00:00:00:00:00:00\n")
        (folder / "port").write_text("00:00:00:00:00:00:00:00\n")
        (folder / "policy").write_text("Down\n")
        (device / f"virtfn{number}").symlink_to(f"../0000:5e:00.{number + 2}")
        (device.parent / f"0000:5e:00.{number + 2}").mkdir()
    rdma = tmp_path / "sys/class/infiniband/mlx5_1"
    rdma.mkdir(parents=True)
    (rdma / "device").symlink_to("../../../devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0")
    bus = tmp_path / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    (bus / "0000:5e:00.0").symlink_to("../../../devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0")
    return tmp_path


def sriov(root: Path, number: int = 1) -> Path:
    return root / f"sys/devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/sriov/{number}"


def texts(root: Path, number: int = 1) -> list[str]:
    return [(sriov(root, number) / name).read_text() for name in ("node", "port", "policy")]


def test_guids_are_written_as_the_driver_takes_them(root):
    adapter_set.make(lambda function: Mlx5(root), [(IB, GUIDS)])
    assert texts(root) == ["00:11:22:33:44:55:66:77\n", "00:11:22:33:44:55:66:88\n", "Follow\n"]
    zero = "00:00:00:00:00:00:00:00\n"
    assert texts(root, 0) == [zero, zero, "Down\n"]
    assert adapter_set.clear(lambda function: Mlx5(root), [IB]) == {}
    assert texts(root) == [zero, zero, "Down\n"]


def test_any_guid(root):
    backend = Mlx5(root)

    @given(INFINIBANDS)
    def check(settings):
        adapter_set.make(lambda function: backend, [(IB, settings)])
        assert backend.read(IB) == adapter.values(settings)

    check()


def test_the_kernels_own_driver_is_refused_by_name(root):
    for other in (attrs.evolve(IB, rdma="mlx5_9"), attrs.evolve(IB, rdma=None)):
        with pytest.raises(AdapterError, match=r"need NVIDIA's own driver"):
            adapter_set.make(lambda function: Mlx5(root), [(other, GUIDS)])


def test_broken_files(root):
    (sriov(root) / "port").unlink()
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: there is no .*/1/port"):
        adapter_set.make(lambda function: Mlx5(root), [(IB, GUIDS)])
    (sriov(root) / "port").mkdir()
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: .*"):
        adapter_set.make(lambda function: Mlx5(root), [(IB, GUIDS)])
    (sriov(root) / "port").rmdir()
    (sriov(root) / "port").write_text("rubbish")
    (sriov(root) / "policy").write_text("rubbish")
    assert set(Mlx5(root).read(IB)) == {"node_guid"}


def test_the_number_of_a_function(root):
    assert index_of(root, "0000:5e:00.0", "0000:5e:00.3") == 1
    with pytest.raises(AdapterError, match=r"is no virtual function of 0000:5e:00.0 any more"):
        index_of(root, "0000:5e:00.0", "0000:5e:00.7")
    with pytest.raises(AdapterError):
        index_of(root, "0000:ff:00.0", "0000:5e:00.3")
