# SPDX-License-Identifier: Apache-2.0
import shutil
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.adapters import function_changes, netlink
from nova_hpc.tenancy.adapters import settings as adapter
from nova_hpc.tenancy.adapters.function_changes import FunctionChange, NoBackendError
from nova_hpc.tenancy.adapters.mlx5 import Mlx5Backend
from nova_hpc.tenancy.adapters.netlink import NetlinkBackend
from nova_hpc.tenancy.adapters.settings import (
    NO_MAC,
    AdapterError,
    AdapterFunction,
    LinkState,
    PortLayer,
)
from nova_hpc.tenancy.adapters.virtual_functions import (
    AdapterBackends,
    find_virtual_function,
    index_of,
)
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node, PciFunction, RdmaDevice, RdmaPort
from tests.unit.tenancy import cards
from tests.unit.tenancy.adapter_settings import EthernetSettings, InfinibandSettings
from tests.unit.tenancy.kernel import InfinibandKernel, Kernel

ROCE = AdapterFunction("0000:3b:00.2", 0, PortLayer.ETHERNET, "mlx5_core", "ens1", "mlx5_0")
OTHER = attrs.evolve(ROCE, address="0000:3b:00.3", index=1)
IB = AdapterFunction("0000:5e:00.3", 1, PortLayer.INFINIBAND, "mlx5_core", "ib0", "mlx5_1")
FULL = EthernetSettings("fa:16:3e:00:00:01", 100, 3, True, True, 100, 1000, LinkState.UP)
GUIDS = InfinibandSettings(0x0011223344556677, 0x0011223344556688)

MACS = st.binary(min_size=6, max_size=6).map(
    lambda data: ":".join(f"{byte:02x}" for byte in (data[0] & 0xFE, *data[1:]))
)
STATES = st.sampled_from(LinkState)
ETHERNETS = st.builds(
    EthernetSettings,
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
    InfinibandSettings, st.integers(0, (1 << 64) - 2), st.integers(0, (1 << 64) - 2), STATES
)


PARENT = "0000:5e:00.0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An mlx5 adapter with two virtual functions."""
    cards.add(tmp_path, PARENT, ["0000:5e:00.2", "0000:5e:00.3"])
    cards.infiniband(tmp_path, PARENT)
    return tmp_path


def node(**more: object) -> Node:
    card = PciFunction(
        PARENT,
        class_code="020700",
        driver="mlx5_core",
        rdma=(RdmaDevice("mlx5_1", ports=(RdmaPort(1, link_layer="InfiniBand"),)),),
        os_devices=("net ib0", "infiniband mlx5_1"),
    )
    function = PciFunction("0000:5e:00.3", physical_function=PARENT)
    return Node("x", functions=(attrs.evolve(card, **more), function))


def speaking(layer: str | None) -> Node:
    return node(rdma=(RdmaDevice("mlx5_1", ports=(RdmaPort(1, link_layer=layer),)),))


def test_roce_and_infiniband_are_told_apart(root):
    tree = FileTree(root)
    assert find_virtual_function(tree, node(), IB.address) == IB
    assert find_virtual_function(tree, speaking("Ethernet"), IB.address).layer is PortLayer.ETHERNET
    plain = node(rdma=(), class_code="020000", driver="igb", os_devices=("net eth3",))
    assert find_virtual_function(tree, plain, IB.address) == attrs.evolve(
        IB, layer=PortLayer.ETHERNET, driver="igb", net="eth3", rdma=None
    )


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (speaking(None), "does not say whether"),
        (speaking("Sonar"), "does not say whether"),
        (node(rdma=()), "does not say whether"),
        (node(driver=None), "is bound to no driver"),
        (node(rdma=(), class_code="020000", os_devices=()), "has no network device"),
        (
            node(
                rdma=(RdmaDevice("mlx5_9", ports=(RdmaPort(1, link_layer="InfiniBand"),)),),
                os_devices=("infiniband mlx5_9",),
            ),
            "need the module ib_ipoib, or NVIDIA's own driver",
        ),
    ],
)
def test_what_cannot_be_set_is_told_apart_from_what_fails(root, found, words):
    with pytest.raises(NoBackendError, match=words):
        find_virtual_function(FileTree(root), found, IB.address)


@pytest.mark.parametrize(
    ("found", "address"),
    [
        (node(), PARENT),
        (node(), "0000:00:00.0"),
        (node(class_code="030200"), IB.address),
    ],
)
def test_what_is_no_function_of_an_adapter(root, found, address):
    with pytest.raises(AdapterError, match=r"is no virtual function of a network adapter"):
        find_virtual_function(FileTree(root), found, address)


def test_switchdev(root):
    plain = node(rdma=(), class_code="020000", os_devices=("net ens1",))
    assert find_virtual_function(FileTree(root), plain, IB.address).net == "ens1"
    net = root / "sys/class/net/ens1"
    net.mkdir(parents=True)
    (net / "phys_switch_id").write_text("")
    assert find_virtual_function(FileTree(root), plain, IB.address).net == "ens1"
    (net / "phys_switch_id").write_text("c0ffee\n")
    with pytest.raises(NoBackendError, match=r"switchdev"):
        find_virtual_function(FileTree(root), plain, IB.address)


def test_the_number_of_a_function(root):
    assert index_of(FileTree(root), PARENT, "0000:5e:00.3") == 1
    with pytest.raises(AdapterError, match=r"is no virtual function of 0000:5e:00.0 any more"):
        index_of(FileTree(root), PARENT, "0000:5e:00.7")
    with pytest.raises(AdapterError):
        index_of(FileTree(root), "0000:ff:00.0", "0000:5e:00.3")


# -- Ethernet: messages as pyroute2 writes and reads them ------------------------------


def through(kernel: Kernel):
    return lambda function: NetlinkBackend(kernel)


def change(
    kernel: Kernel, function: AdapterFunction, settings: EthernetSettings, **more: object
) -> FunctionChange:
    return FunctionChange(
        function, dict(NetlinkBackend(kernel).read(function)), settings.values | more
    )


PLAIN = EthernetSettings(NO_MAC).values


@given(ETHERNETS, ETHERNETS)
def test_ethernet_settings_are_made_read_back_and_put_back(first, settings):
    kernel = Kernel()
    choose = through(kernel)
    function_changes.make_function_changes(choose, [change(kernel, OTHER, first)])
    second = change(kernel, OTHER, settings)
    assert second.before == first.values
    assert function_changes.make_function_changes(choose, [second]) == {}
    assert NetlinkBackend(kernel).read(OTHER) == settings.values
    assert NetlinkBackend(kernel).read(ROCE) == PLAIN
    assert function_changes.restore_functions(choose, [second]) == {}
    assert NetlinkBackend(kernel).read(OTHER) == first.values


def test_what_is_so_already_is_not_written():
    kernel = Kernel()
    function_changes.make_function_changes(
        through(kernel), [change(kernel, ROCE, EthernetSettings("fa:16:3e:00:00:01"))]
    )
    assert kernel.writes == [(0, "IFLA_VF_MAC")]


def test_what_somebody_has_changed_since_is_left_alone():
    kernel = Kernel()
    made = change(kernel, ROCE, FULL)
    function_changes.make_function_changes(through(kernel), [made])
    kernel.functions[0]["IFLA_VF_MAC"]["mac"] = "52:54:00:00:00:09"
    assert function_changes.restore_functions(through(kernel), [made]) == {}
    assert NetlinkBackend(kernel).read(ROCE) == PLAIN | {"mac": "52:54:00:00:00:09"}


def test_the_link_comes_up_last_and_goes_down_first():
    kernel = Kernel()
    made = change(kernel, ROCE, attrs.evolve(FULL, spoof_check=False))
    function_changes.make_function_changes(through(kernel), [made])
    names = [name.removeprefix("IFLA_VF_") for _, name in kernel.writes]
    assert names == ["MAC", "VLAN", "SPOOFCHK", "TRUST", "RATE", "LINK_STATE"]
    kernel.writes.clear()
    function_changes.restore_functions(through(kernel), [made])
    names = [name.removeprefix("IFLA_VF_") for _, name in kernel.writes]
    assert names == ["LINK_STATE", "RATE", "TRUST", "SPOOFCHK", "VLAN", "MAC"]


EVERY = (
    "IFLA_VF_VLAN",
    "IFLA_VF_RATE",
    "IFLA_VF_SPOOFCHK",
    "IFLA_VF_LINK_STATE",
    "IFLA_VF_TRUST",
)
NAMES = dict(zip(EVERY, ("vlan", "rate", "spoof_check", "link_state", "trust"), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_a_setting_that_the_driver_does_not_know(name):
    kernel = Kernel(unknown=(name,))
    full = change(kernel, ROCE, FULL)
    with pytest.raises(AdapterError, match=r"^0000:3b:00.2: .*(not supported|read back otherwise)"):
        function_changes.make_function_changes(through(kernel), [full])
    # Nothing is left behind.
    assert NetlinkBackend(kernel).read(ROCE)["mac"] == NO_MAC
    plain = change(kernel, ROCE, EthernetSettings("fa:16:3e:00:00:01"))
    if name == "IFLA_VF_SPOOFCHK":
        with pytest.raises(AdapterError):
            function_changes.make_function_changes(through(kernel), [plain])
        assert function_changes.make_function_changes(through(kernel), [plain], strict=False) == {
            ROCE.address: ["spoof_check"]
        }
    else:
        assert function_changes.make_function_changes(through(kernel), [plain]) == {}
    assert function_changes.restore_functions(through(kernel), [plain]) == {}
    # Where it may be left out, it is, and said.
    assert function_changes.make_function_changes(through(kernel), [full], strict=False) == {
        ROCE.address: [NAMES[name]]
    }


def test_a_right_that_shows_and_cannot_be_taken_is_refused():
    kernel = Kernel()
    kernel.functions[0]["IFLA_VF_TRUST"]["trust"] = 1
    kernel.unknown = ("IFLA_VF_TRUST",)
    with pytest.raises(AdapterError, match=r"read back otherwise: trust"):
        function_changes.make_function_changes(
            through(kernel),
            [change(kernel, ROCE, EthernetSettings("fa:16:3e:00:00:01"))],
            strict=False,
        )


@pytest.mark.parametrize("name", ["IFLA_VF_MAC", *EVERY])
def test_a_setting_that_does_not_stick_refuses_the_start(name):
    kernel = Kernel()
    kernel.deaf.add((0, name))
    changed = attrs.evolve(FULL, spoof_check=False)
    changes = [change(kernel, OTHER, FULL), change(kernel, ROCE, changed)]
    with pytest.raises(AdapterError, match=r"read back otherwise: "):
        function_changes.make_function_changes(through(kernel), changes)
    # Both are again as they were.
    for each in (OTHER, ROCE):
        assert NetlinkBackend(kernel).read(each) == PLAIN


def test_what_cannot_be_put_back_is_named():
    kernel = Kernel()
    made = [change(kernel, each, FULL) for each in (ROCE, OTHER)]
    function_changes.make_function_changes(through(kernel), made)
    kernel.deaf |= {(0, "IFLA_VF_MAC"), (1, "IFLA_VF_MAC")}
    assert function_changes.restore_functions(through(kernel), made) == {
        each.address: f"{each.address}: read back otherwise: mac" for each in (ROCE, OTHER)
    }
    kernel.deaf.add((0, "IFLA_VF_VLAN"))
    again = FunctionChange(ROCE, made[0].before, attrs.evolve(FULL, vlan=5).values)
    with pytest.raises(AdapterError, match=r"then it could not be put back: 0000:3b:00.2: "):
        function_changes.make_function_changes(through(kernel), [again])


def test_no_device():
    for function in (attrs.evolve(ROCE, net=None), attrs.evolve(ROCE, net="gone")):
        with pytest.raises(AdapterError, match=r"no network device"):
            NetlinkBackend(Kernel()).read(function)
    with pytest.raises(NoBackendError, match=r"tells nothing about it"):
        NetlinkBackend(Kernel(functions=1)).read(OTHER)


def test_this_machines_own_kernel_refuses_a_device_without_functions():
    """Through a real socket, without any right that this needs."""
    loopback = attrs.evolve(ROCE, net="lo")
    with NetlinkBackend.session() as netlink:
        with pytest.raises(NoBackendError, match=r"tells nothing about it"):
            netlink.read(loopback)
        with pytest.raises(AdapterError, match=r"0000:3b:00.2: mac of lo: "):
            netlink.write(loopback, adapter.AdapterSetting("mac", "fa:16:3e:00:00:01"))


# -- InfiniBand: the files of the driver -------------------------------------------------

NEW = {"node_guid": 0, "port_guid": 0, "link_state": LinkState.DOWN}


def test_guids_are_written_as_the_driver_takes_them(root):
    made = FunctionChange(IB, Mlx5Backend(root).read(IB), GUIDS.values)
    assert made.before == NEW
    assert function_changes.make_function_changes(lambda function: Mlx5Backend(root), [made]) == {}
    written = ("00:11:22:33:44:55:66:77", "00:11:22:33:44:55:66:88", "Follow")
    assert cards.sriov(root, PARENT, 1) == written
    untouched = (cards.NO_GUID, cards.NO_GUID, "Down")
    assert cards.sriov(root, PARENT, 0) == untouched
    assert function_changes.restore_functions(lambda function: Mlx5Backend(root), [made]) == {}
    assert cards.sriov(root, PARENT, 1) == untouched


def test_any_guid(root):
    backend = Mlx5Backend(root)

    @given(INFINIBANDS)
    def check(settings):
        function_changes.make_function_changes(
            lambda function: backend, [FunctionChange(IB, NEW, settings.values)]
        )
        assert backend.read(IB) == settings.values

    check()


def test_the_files_of_another_driver_are_not_looked_for(root):
    for other in (attrs.evolve(IB, rdma="mlx5_9"), attrs.evolve(IB, rdma=None)):
        with pytest.raises(NoBackendError, match=r"has no directory /sys/class/infiniband/"):
            Mlx5Backend(root).read(other)


def test_broken_files(root):
    folder = root / f"sys/bus/pci/devices/{PARENT}/sriov/1"
    made = [FunctionChange(IB, NEW, GUIDS.values)]
    (folder / "port").unlink()
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: there is no .*/1/port"):
        function_changes.make_function_changes(lambda function: Mlx5Backend(root), made)
    (folder / "port").mkdir()
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: .*"):
        function_changes.make_function_changes(lambda function: Mlx5Backend(root), made)
    (folder / "port").rmdir()
    (folder / "port").write_text("rubbish")
    (folder / "policy").write_text("rubbish")
    assert set(Mlx5Backend(root).read(IB)) == {"node_guid"}
    # What cannot be read cannot be said to be gone.
    found = function_changes.restore_functions(lambda function: Mlx5Backend(root), made)
    assert found == {IB.address: "0000:5e:00.3: its port_guid cannot be read"}


# -- InfiniBand: the kernel's own driver, by the bytes of its header -------------------------


@pytest.mark.parametrize(("driver", "kind"), [("sriov", Mlx5Backend), ("", NetlinkBackend)])
def test_who_sets_guids(root, monkeypatch, driver, kind):
    if not driver:
        shutil.rmtree(root / f"sys/bus/pci/devices/{PARENT}/sriov")
    monkeypatch.setattr(netlink, "_open_netlink", InfinibandKernel())
    function = find_virtual_function(FileTree(root), node(), IB.address)
    with AdapterBackends(root) as backends:
        assert isinstance(backends.of(function), kind)


def test_what_pyroute2_cannot_read_at_the_end_of_a_message():
    """It gives the bytes of the last GUID; see ``netlink._parse_guid_attribute``."""
    kernel = InfinibandKernel()
    kernel.functions[1] = {"node_guid": 0x1122, "port_guid": GUIDS.port_guid, "link_state": 0}
    (message,) = kernel.get_links(7, 9)
    last = message.get("IFLA_VFINFO_LIST").get_attrs("IFLA_VF_INFO")[-1]
    assert isinstance(last.get("IFLA_VF_IB_PORT_GUID"), bytes)
    found = NetlinkBackend(kernel).read(IB)
    assert found == attrs.evolve(GUIDS, node_guid=0x1122).values


@given(INFINIBANDS, INFINIBANDS, st.integers(0, 2))
def test_guids_are_made_read_back_and_put_back(first, settings, number):
    kernel = InfinibandKernel(functions=3)
    function = attrs.evolve(IB, index=number)
    choose = lambda function: NetlinkBackend(kernel)  # noqa: E731
    others = [dict(each) for each in kernel.functions]
    function_changes.make_function_changes(choose, [FunctionChange(function, NEW, first.values)])
    second = FunctionChange(function, NetlinkBackend(kernel).read(function), settings.values)
    assert second.before == first.values
    assert function_changes.make_function_changes(choose, [second]) == {}
    assert NetlinkBackend(kernel).read(function) == settings.values
    assert function_changes.restore_functions(choose, [second]) == {}
    assert NetlinkBackend(kernel).read(function) == first.values
    for each in {0, 1, 2} - {number}:
        assert kernel.functions[each] == others[each]


def test_a_guid_that_does_not_stick_refuses_the_start():
    kernel = InfinibandKernel()
    kernel.deaf.add((1, "port_guid"))
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: read back otherwise: port_guid"):
        function_changes.make_function_changes(
            lambda function: NetlinkBackend(kernel),
            [FunctionChange(IB, NEW, GUIDS.values)],
        )
    assert kernel.functions[1] == {"node_guid": 0, "port_guid": 0, "link_state": 2}


def test_a_kernel_or_a_driver_without_guids():
    with pytest.raises(NoBackendError, match=r"ib0 does not show its GUIDs; that needs Linux 5.5"):
        NetlinkBackend(InfinibandKernel(shown=False)).read(IB)
    unable = InfinibandKernel(known=False)
    made = [FunctionChange(IB, NEW, GUIDS.values)]
    with pytest.raises(AdapterError, match=r"0000:5e:00.3: node_guid of ib0: .*not supported"):
        function_changes.make_function_changes(lambda function: NetlinkBackend(unable), made)


@pytest.mark.parametrize("value", [b"", b"\x08\0\x0a\0\1\0\0\0", {"vf": 1}])
def test_an_answer_that_is_no_guid(monkeypatch, value):
    kernel = InfinibandKernel()
    monkeypatch.setattr(
        netlink,
        "_infiniband_settings_of",
        lambda function, info: netlink._parse_guid_attribute(value),
    )
    with pytest.raises(AdapterError, match=r"^0000:5e:00.3: ib0: "):
        NetlinkBackend(kernel).read(IB)


def test_this_machines_own_kernel_refuses_guids_of_a_device_without_functions():
    """Through a real socket: the message is one that the kernel reads."""
    loopback = attrs.evolve(IB, net="lo")
    with (
        NetlinkBackend.session() as link,
        pytest.raises(AdapterError, match=r"node_guid of lo: .*(not permitted|not supported)"),
    ):
        link.write(loopback, adapter.AdapterSetting("node_guid", 1))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("mac", ["0e:00:00:00:00:01", NO_MAC], ["01:00:00:00:00:01", "0E:00:00:00:00:01", "x", 7]),
        ("vlan", [(0, 0), (4095, 7)], [(4096, 0), (0, 8), (-1, 0), (1,), [1, 0], (True, 0)]),
        ("rate", [(0, 0), (0, (1 << 32) - 1)], [(0, 1 << 32), (0,), (0.5, 1)]),
        ("spoof_check", [True, False], [1, 0, None, "yes"]),
        ("trust", [True, False], [1, 0, None, "yes"]),
        ("node_guid", [0, (1 << 64) - 1], [1 << 64, -1, "x", True]),
        ("port_guid", [1], [1 << 64, -1, 1.0]),
        ("link_state", list(LinkState), ["auto", 0]),
        ("driver", [], ["x"]),
    ],
)
def test_what_somebody_else_asks_for_is_looked_at(name, good, bad):
    for value in good:
        assert adapter.check_setting(name, value) == adapter.AdapterSetting(name, value)
    for value in bad:
        with pytest.raises(AdapterError, match="is no value of the setting"):
            adapter.check_setting(name, value)
