# SPDX-License-Identifier: Apache-2.0
"""Devices that no server may ever get: told by their VPD, or by what is known of their model."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import forbidden_vpd
from nova_hpc.tenancy.forbidden import ForbiddenDevices
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError
from nova_hpc.topology import sysfs, vpd
from nova_hpc.topology.files import FileError
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, VF, make, owners_of


def field(word, value):
    return word.encode() + bytes([len(value)]) + value.encode()


def product_data(*fields, name="NVIDIA ConnectX-7"):
    body = b"".join(fields) + b"RV" + bytes([1, 0])
    text = name.encode()
    return b"".join(
        (
            b"\x82" + len(text).to_bytes(2, "little") + text,
            b"\x90" + len(body).to_bytes(2, "little") + body,
            b"\x78",
        )
    )


#: As these adapters write it: a keyword of the vendor's own with several words.
MANAGER = product_data(field("PN", "MCX750500B-0D00"), field("V3", "MLX:MN=MLNX:SMDL=SW_MNG"))
PLAIN = product_data(field("PN", "MCX75310AAS-NEAT"), field("SN", "MT2300X1"), field("V3", "MLX"))


def test_keywords():
    assert vpd.read_vpd_keywords(PLAIN) == {"PN": "MCX75310AAS-NEAT", "SN": "MT2300X1", "V3": "MLX"}
    assert vpd.manages_switches(MANAGER)
    assert vpd.manages_switches(product_data(field("SM", "x"), field("V1", " SMDL = SW_MNG")))
    assert not vpd.manages_switches(PLAIN)
    assert not vpd.manages_switches(product_data(field("V3", "SMDL=SW_MNGX2"[:8])))
    assert not vpd.manages_switches(b"")


@pytest.mark.parametrize("cut", [1, 2, 10, 30, len(MANAGER) - 8])
def test_data_that_end_too_early(cut):
    with pytest.raises(vpd.VpdError, match="cut off"):
        vpd.read_vpd_keywords(MANAGER[:cut])


@given(st.binary(max_size=200), st.integers(0, len(MANAGER)))
def test_whatever_a_device_answers_is_no_crash(noise, place):
    for data in (noise, MANAGER[:place] + noise, b"\x90\xff\xff" + noise):
        try:
            assert isinstance(vpd.manages_switches(data), bool)
        except vpd.VpdError:
            continue


@pytest.fixture
def node(tmp_path):
    found = make(tmp_path, GPU, OTHER)
    for address in (PF, "0000:44:00.0"):
        found.add(address)
        found.write(address, "vendor", "0x15b3")
        found.write(address, "device", "0x1021")
        found.write(address, "class", "0x020700")
        found.config(address, vendor=0x15B3, device=0x1021)
    found.add(VF, physfn=PF)
    return found


NIC = "0000:44:00.0"
ALL = (GPU, OTHER, PF, VF, NIC)


def view(node):
    return NodeView(sysfs.read_sysfs_node(node.root), dict.fromkeys(ALL, "any"))


def step(node, read=None, **more):
    return ForbiddenDevices(
        root=node.root,
        read=read or (lambda each: forbidden_vpd.read_vpd_in_time(node.root, each)),
        cache=node.root / "vpd",
        **more,
    )


def tenant(node, *devices):
    return DeviceTenant("server", devices, owners=owners_of(node.root))


def test_an_adapter_that_manages_switches(node):
    (node.devices / PF / "vpd").write_bytes(MANAGER)
    (node.devices / NIC / "vpd").write_bytes(PLAIN)
    found = step(node)
    notes = found.begin(view(node))
    withheld = found.withhold(view(node), owners_of(node.root)).findings
    # Its virtual functions as well.
    assert withheld.keys() == {PF, VF}
    assert len(notes) == 2
    assert "SMDL=SW_MNG" in withheld[VF].reason
    assert "[hpc]offer_anyway" in withheld[PF].reason
    with pytest.raises(RefusedError) as refused:
        found.before_start(tenant(node, GPU, VF), view(node))
    assert "0000" not in refused.value.user
    assert found.before_start(tenant(node, GPU, NIC), view(node)) == ()
    assert found.before_restart(tenant(node, VF), view(node))  # it keeps what it has
    for anyway in ({PF, VF}, {"15b3:1021", VF}):
        assert step(node, anyway=frozenset(anyway)).reasons(view(node), ALL) == {}


def test_product_data_are_read_once_a_boot(node):
    reads = []

    def read(address):
        reads.append(address)
        return MANAGER if address == PF else None

    for _ in range(2):
        found = step(node, read)
        found.begin(view(node))
        assert found.reasons(view(node), ALL).keys() == {PF, VF}
    assert reads == [PF, NIC]
    node.boot("second")
    step(node, read).begin(view(node))
    assert reads == [PF, NIC] * 2
    (node.root / "vpd").write_text("{broken")
    step(node, read).begin(view(node))
    assert reads == [PF, NIC] * 3


def test_product_data_that_cannot_be_read(node):
    """Nobody knows, so it is not given; the next start of the service tries again."""
    (node.devices / PF / "vpd").write_bytes(MANAGER[:30])
    os.mkfifo(node.devices / NIC / "vpd")
    found = step(node).reasons(view(node), ALL)
    assert "its VPD is broken" in found[PF].reason
    assert GPU not in found

    def hangs(address):
        raise FileError("it did not answer within 10 seconds")

    first = step(node, hangs)
    assert "did not answer" in first.reasons(view(node), ALL)[NIC].reason
    (node.devices / PF / "vpd").write_bytes(PLAIN)
    assert step(node, lambda address: None).reasons(view(node), ALL) == {}


def test_a_reader_that_fails_or_hangs(node, monkeypatch):
    path = node.devices / PF / "vpd"
    path.write_bytes(MANAGER)
    # What is behind the read-only part is not asked for.
    assert forbidden_vpd.read_vpd_in_time(node.root, PF) == MANAGER[:-1]
    assert forbidden_vpd.read_vpd_in_time(node.root, GPU) is None
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(FileError, match=r"cannot be read: OSError.*Illegal seek"):
        forbidden_vpd.read_vpd_in_time(node.root, PF)
    monkeypatch.setattr(forbidden_vpd, "_READER", "import time; time.sleep(600)")
    with pytest.raises(FileError, match=r"did not answer within 0\.5 seconds"):
        forbidden_vpd.read_vpd_in_time(node.root, PF, 0.5)
    monkeypatch.setattr(forbidden_vpd, "_READER", "print('!')")
    with pytest.raises(FileError, match="nonsense"):
        forbidden_vpd.read_vpd_in_time(node.root, PF)


@pytest.mark.parametrize(
    ("product", "name", "reported"),
    [("74a1", "MI300X", True), ("75a3", "MI355X", True), ("74a5", "MI325X", False)],
)
def test_a_model_that_does_not_come_back(node, product, name, reported):
    node.write(GPU, "vendor", "0x1002")
    node.write(GPU, "device", f"0x{product}")
    node.config(GPU, vendor=0x1002, device=int(product, 16))
    found = step(node).reasons(view(node), ALL)
    assert found.keys() == {GPU}
    assert f"an {name} as a whole" in found[GPU].reason
    assert ("its reset by VFIO is known" in found[GPU].reason) is reported
    assert step(node, anyway=frozenset({f"1002:{product}"})).reasons(view(node), ALL) == {}
