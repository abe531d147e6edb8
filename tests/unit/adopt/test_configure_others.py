# SPDX-License-Identifier: Apache-2.0
"""``configure`` beside entries of ``device_spec`` that others wrote: nothing of them is lost."""

import json
import os
import stat

import pytest

from nova_hpc_tools.adopt import device_spec_edit
from nova_hpc_tools.adopt.include_files import IncludeError
from tests.unit.node_files import GPU, PF, VF, contents, declared, put, refused

GPU_ENTRY = {"vendor_id": "10de", "product_id": "2330", "address": GPU}
VF_ENTRY = {"vendor_id": "15b3", "product_id": "101e", "address": VF}
NAME = "enp25s0f0"
COMPUTE = ("--part", "compute", "--part", "common")


def entries(at_home):
    """The entries that were written, by the first function that each names."""
    found = {}
    for entry in map(json.loads, at_home.told("device_spec")):
        address = entry["address"]
        if isinstance(address, dict):
            slot, digits = address["slot"], address["function"].strip("[]")
            address = f"{address['domain']}:{address['bus']}:{slot}.{digits[0]}"
        found[address] = entry
    return found


def foreign(*pairs):
    """A nova.conf with entries of others."""
    lines = "".join(f"device_spec = {json.dumps(each)}\n" for each in pairs)
    return f"[DEFAULT]\nhost = somewhere\n[pci]\n{lines}[compute]\ncpu_dedicated_set = 0\n"


def second_vf(machine):
    """Another virtual function of the adapter."""
    folder = "/sys/devices/pci0000:17/0000:19:00.2"
    for name, text in (("vendor", "0x15b3"), ("device", "0x101e"), ("class", "0x020700")):
        put(machine, f"{folder}/{name}", text)
    put(machine, f"{folder}/numa_node", "0")
    here = machine / folder.lstrip("/")
    (here / "physfn").symlink_to("../0000:19:00.0")
    (here.parent / PF / "virtfn1").symlink_to("../0000:19:00.2")
    (machine / "sys/bus/pci/devices/0000:19:00.2").symlink_to(
        "../../../devices/pci0000:17/0000:19:00.2"
    )
    return "0000:19:00.2"


@pytest.fixture
def interface(machine):
    put(machine, f"/sys/devices/pci0000:17/{PF}/net/{NAME}/address", "02:00:00:00:00:19")
    return machine


# --- an interface in the place of an address ---------------------------------------------


def test_an_interface_is_refused_with_its_address(at_home, interface):
    """Nova does not start with it once devices are in Placement."""
    entry = {"devname": NAME, "physical_network": "tenant1"}
    at_home.nova(foreign(entry))
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    refused(answer, f"names its device by the interface {NAME}")
    assert f"--replace '{json.dumps(entry)}' puts its address {PF}" in answer[2]
    assert contents(at_home.folder) == {}


def test_an_interface_gets_its_address_where_it_says_more_than_ours(at_home, interface):
    """It names the physical function as well, which ours does not offer."""
    entry = {"devname": NAME, "physical_network": "tenant1"}
    at_home.nova(foreign(entry, GPU_ENTRY))
    words = (*COMPUTE, "--replace", json.dumps(entry))
    status, out, err = at_home(*words)
    assert status == 0, err
    now = {"address": PF, "physical_network": "tenant1"}
    assert (at_home.home / "nova.conf").read_text() == foreign(now, GPU_ENTRY)
    assert f"-device_spec = {json.dumps(entry)}\n+device_spec = {json.dumps(now)}\n" in out
    assert entries(at_home)[PF]["physical_network"] == "tenant1"
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_an_interface_goes_where_ours_says_all_of_it(at_home, interface):
    entry = {"devname": NAME, "product_id": "101e", "physical_network": "tenant1"}
    at_home.nova(foreign(entry, GPU_ENTRY))
    status, _, err = at_home(*COMPUTE, "--replace", json.dumps(entry))
    assert status == 0, err
    assert (at_home.home / "nova.conf").read_text() == foreign(GPU_ENTRY)
    assert entries(at_home)[PF]["physical_network"] == "tenant1"


def test_an_interface_that_is_not_here_is_refused_by_name(at_home):
    at_home.nova(foreign({"devname": "eth7", "physical_network": "tenant1"}, GPU_ENTRY, VF_ENTRY))
    answer = at_home(*COMPUTE)
    refused(answer, "by the interface eth7")
    assert "this node has no interface eth7" in answer[2]
    # The settings of the controllers do not depend on it.
    assert at_home("--part", "controller")[0] == 0


def test_an_adapter_and_its_virtual_functions_would_both_be_reported(at_home):
    """One address of a physical function names both (nova/pci/devspec.py)."""
    entry = {"address": PF}
    at_home.nova(foreign(entry, GPU_ENTRY))
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    refused(answer, f"{PF} and its virtual functions ({VF}) would both be reported")
    assert "with which nova-compute does not start" in answer[2]
    words = (*COMPUTE, "--replace", json.dumps(entry))
    # The physical function would not be offered any more, which is said.
    refused(at_home(*words), f"{PF} is offered and would not be: --replace {PF}")
    assert at_home(*words, "--replace", PF)[0] == 0
    assert (at_home.home / "nova.conf").read_text() == foreign(GPU_ENTRY)


# --- what entries of others say is said on ------------------------------------------------

KEYS = [
    {"trusted": "true"},
    {"live_migratable": "yes"},
    {"resource_class": "CUSTOM_GPU_BIG"},
    {"resource_class": "pgpu"},
    {"traits": "CUSTOM_SXM,fast one"},
    {"one_time_use": "true"},
    {"note": "rack 7"},
    {"trusted": True},
]


@pytest.mark.parametrize("said", KEYS, ids=str)
def test_each_key_is_carried_over_and_stays(at_home, said):
    entry = {**GPU_ENTRY, **said}
    at_home.nova(foreign(entry, VF_ENTRY))
    status, _, err = at_home(*COMPUTE)
    assert status == 0, err
    written = entries(at_home)[GPU]
    for key, value in said.items():
        if key == "traits":
            assert written[key] == "CUSTOM_FAST_ONE,CUSTOM_SXM"
        elif key == "resource_class":
            assert written[key] == value.upper() == written["hpc_resource_class"]
        else:
            assert written[key] == (value if isinstance(value, str) else "true")
    assert f"--replace '{json.dumps(entry)}' takes it out" in err
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"
    # And it is still said when the entry is gone.
    status, _, err = at_home(*COMPUTE, "--replace", json.dumps(entry))
    assert status == 0, err
    assert (at_home.home / "nova.conf").read_text() == foreign(VF_ENTRY)
    assert entries(at_home)[GPU] == written
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"
    assert GPU in declared(at_home).wishes.kept


def test_a_key_that_nobody_remembers_does_not_go_in_silence(at_home):
    at_home.nova(foreign({**GPU_ENTRY, "trusted": "true"}, VF_ENTRY))
    assert at_home(*COMPUTE)[0] == 0
    at_home.nova(foreign(VF_ENTRY))
    (at_home.folder / "node.yaml").unlink()
    refused(at_home(*COMPUTE), f"{GPU}: trusted is true and would be lost")


def test_ports_of_a_dpu(at_home, machine):
    """Two of its functions for tunnels that are managed elsewhere; the third has no entry."""
    second = second_vf(machine)
    kept = {"physical_network": None, "remote_managed": "true"}
    theirs = [{**VF_ENTRY, "address": VF, **kept}]
    at_home.nova(foreign(*theirs, GPU_ENTRY))
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    assert answer[0] == 0, answer[2]
    written = entries(at_home)
    assert written[VF]["physical_network"] is None
    assert written[VF]["remote_managed"] == "true"
    assert written[VF]["hpc_role"] == "vf"
    # An alias of Nova's knows no such device, and Placement one class of an adapter.
    assert [json.loads(each)["name"] for each in at_home.told("alias")] == ["gpu"]
    assert second not in json.dumps(written)
    assert f"Not offered: {second} (vf): an entry of yours offers {VF}" in answer[2]
    words = (*COMPUTE, "--replace", json.dumps(theirs[0]))
    assert at_home(*words)[0] == 0
    assert (at_home.home / "nova.conf").read_text() == foreign(GPU_ENTRY)
    assert entries(at_home) == written
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_a_network_of_some_functions_alone(at_home, machine):
    second = second_vf(machine)
    theirs = {**VF_ENTRY, "address": second, "physical_network": "tenant1", "trusted": "true"}
    at_home.nova(foreign(theirs, GPU_ENTRY, VF_ENTRY))
    status, _, err = at_home(*COMPUTE)
    assert status == 0, err
    written = entries(at_home)
    assert written[second]["physical_network"] == "tenant1"
    assert written[second]["trusted"] == "true"
    assert "physical_network" not in written[VF]
    assert at_home(*COMPUTE, "--replace", json.dumps(theirs))[0] == 0
    assert entries(at_home) == written
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_what_ours_cannot_say_is_a_loss_by_name(at_home):
    entry = {**GPU_ENTRY, "managed": "yes"}
    at_home.nova(foreign(entry, VF_ENTRY))
    status, _, err = at_home(*COMPUTE)
    assert status == 0
    assert f"It says what ours cannot ({GPU}: managed is yes and would be no), so leave it" in err
    words = (*COMPUTE, "--replace", json.dumps(entry))
    refused(at_home(*words), f"{GPU}: managed is yes and would be no: --replace {GPU}")
    assert (at_home.home / "nova.conf").read_text() == foreign(entry, VF_ENTRY)
    assert at_home(*words, "--replace", GPU)[0] == 0
    assert (at_home.home / "nova.conf").read_text() == foreign(VF_ENTRY)


def test_a_wide_entry_takes_no_other_device_with_it(at_home, machine):
    """By vendor alone: the second card is left out, and would not be offered any more."""
    folder = "/sys/devices/pci0000:17/0000:1a:00.0"
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        put(machine, f"{folder}/{name}", text)
    (machine / "sys/bus/pci/devices/0000:1a:00.0").symlink_to(
        "../../../devices/pci0000:17/0000:1a:00.0"
    )
    entry = {"vendor_id": "10de"}
    at_home.nova(foreign(entry, VF_ENTRY))
    at_home.declare(left_out=["0000:1a:00.0"])
    assert at_home(*COMPUTE)[0] == 0
    refused(at_home(*COMPUTE, "--replace", json.dumps(entry)), "0000:1a:00.0 is offered and would")


# --- the operator's file ------------------------------------------------------------------

FILE = """\
# ours
[DEFAULT]
transport_url = rabbit://nova:secret@host//
[pci]
device_spec = {first}
# a comment
device_spec = [{{"vendor_id": "15b3",
    "product_id": "1017"}},
  {{"address": "*:af:00.*", "physical_network": "tenant1"}}, {{"vendor_id": "8086"}}]

passthrough_whitelist: {old}
[compute]
cpu_dedicated_set = 0\
"""
FIRST = '{"address":"0000:18:00.0",   "vendor_id": "10de"}'
OLD = '{"address": "0000:5e:00.1"}'


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "nova.conf"
    path.write_text(FILE.format(first=FIRST, old=OLD), encoding="utf-8")
    path.chmod(0o640)
    return path


def edited(path, *removed, rewritten=None):
    (change,) = device_spec_edit.edit_device_spec([path], removed, rewritten or {})
    assert change.old == path.read_text()
    assert change.mode == 0o640
    return change.new


@pytest.mark.parametrize(
    ("entry", "was", "now"),
    [
        ({"vendor_id": "10de", "address": GPU}, f"device_spec = {FIRST}\n", ""),
        ({"address": "0000:5e:00.1"}, f"passthrough_whitelist: {OLD}\n", ""),
        (
            {"vendor_id": "15b3", "product_id": "1017"},
            '{"vendor_id": "15b3",\n    "product_id": "1017"},\n  ',
            "",
        ),
        ({"vendor_id": "8086"}, ', {"vendor_id": "8086"}', ""),
        (
            {"physical_network": "tenant1", "address": "*:af:00.*"},
            '{"address": "*:af:00.*", "physical_network": "tenant1"}, ',
            "",
        ),
    ],
)
def test_one_entry_is_taken_out_and_all_else_stays(conf, entry, was, now):
    text = conf.read_text()
    assert text.count(was) == 1
    assert edited(conf, json.dumps(entry)) == text.replace(was, now)


def test_windows_line_ends_and_quotes(conf):
    text = conf.read_text().replace(f"= {FIRST}", f"= '{FIRST}'").replace("\n", "\r\n")
    conf.write_text(text, encoding="utf-8", newline="")
    (change,) = device_spec_edit.edit_device_spec([conf], [FIRST], {})
    assert change.new == text.replace(f"device_spec = '{FIRST}'\r\n", "")


def test_an_address_in_the_place_of_an_interface(conf):
    text = conf.read_text().replace(FIRST, '{"devname": "a$$b"}')
    conf.write_text(text)
    new = edited(conf, rewritten={'{"devname": "a$b"}': '{"address": "0000:18:00.0"}'})
    assert new == text.replace('{"devname": "a$$b"}', '{"address": "0000:18:00.0"}')


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.write_text(p.read_text().replace(OLD, FIRST)), "is in several places"),
        (lambda p: p.write_text(p.read_text().replace(FIRST, "{}")), "is in no file"),
        (
            # A backslash is no continuation for oslo.config, so Nova does not read this either.
            lambda p: p.write_text(p.read_text().replace(FIRST, FIRST.replace("   ", "\\\n   "))),
            "is in no file",
        ),
        (lambda p: p.write_bytes(p.read_bytes() + b"\n# \xff\n"), "is no UTF-8"),
        (lambda p: p.rename(p.with_name("real")) and p.symlink_to("real"), "is not a plain file"),
        (lambda p: p.write_text("nonsense\n" + p.read_text()), "cannot be read"),
    ],
)
def test_what_is_not_safe_is_refused(conf, change, why):
    change(conf)
    before = conf.read_bytes()
    with pytest.raises(IncludeError, match=why):
        device_spec_edit.edit_device_spec([conf], [FIRST], {})
    assert conf.read_bytes() == before


def test_the_files_user_mode_and_secrets(at_home):
    path = at_home.home / "nova.conf"
    text = FILE.format(first=json.dumps(GPU_ENTRY), old=json.dumps(VF_ENTRY))
    path.write_text(text)
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 64060, 64061)
    before = path.stat()
    status, out, err = at_home(*COMPUTE, "--replace", json.dumps(GPU_ENTRY))
    assert status == 0, err
    after = path.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert path.read_text() == text.replace(f"device_spec = {json.dumps(GPU_ENTRY)}\n", "")
    assert "secret" not in out + err
    assert f"-device_spec = {json.dumps(GPU_ENTRY)}\n" in out
    assert f"  [pci]device_spec: - {json.dumps(GPU_ENTRY)}\n" in out
    # What the record repeats of it is read by nobody else, and is given back.
    record = at_home.folder / "nova-hpc-undo.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    status, out, err = at_home("--undo")
    assert status == 0, err
    assert path.read_text() == text
    assert (path.stat().st_mode, path.stat().st_uid) == (before.st_mode, before.st_uid)
    assert "secret" not in out + err


def test_a_dry_run_touches_nothing(at_home):
    at_home.nova(foreign(GPU_ENTRY, VF_ENTRY))
    status, out, _ = at_home(*COMPUTE, "--replace", json.dumps(GPU_ENTRY), "--dry-run")
    assert status == 0
    assert f"-device_spec = {json.dumps(GPU_ENTRY)}\n" in out
    assert (at_home.home / "nova.conf").read_text() == foreign(GPU_ENTRY, VF_ENTRY)


def test_an_entry_that_is_not_there(at_home):
    at_home.nova(foreign(VF_ENTRY))
    words = (*COMPUTE, "--replace", "device_spec", "--replace", json.dumps(GPU_ENTRY))
    status, _, err = at_home(*words)
    assert status == 0
    assert "no entry of device_spec of yours is" in err
    refused(at_home(*COMPUTE, "--replace", "{nonsense"), "is no JSON object")


# --- what the driver does not start with, and what stays as it is -------------------------


def test_functions_with_tags_and_without_on_one_adapter(at_home, machine):
    """The driver refuses that, so it is not written."""
    second_vf(machine)
    at_home.nova(foreign(VF_ENTRY, GPU_ENTRY))
    words = (*COMPUTE, "--replace", "device_spec")
    refused(at_home(*words), f"virtual functions of {PF} have different hpc_* tags ({VF} none)")
    words += ("--replace", json.dumps(VF_ENTRY))
    assert at_home(*words)[0] == 0
    assert (at_home.home / "nova.conf").read_text() == foreign(GPU_ENTRY)


def test_functions_on_the_driver_of_their_vendor_stay_there(at_home, machine):
    """As vGPUs are; tags would withhold them, and their adapter is not given whole either."""
    drivers = machine / "sys/bus/pci/drivers/nvidia"
    drivers.mkdir(parents=True)
    (machine / f"sys/devices/pci0000:17/{VF}/driver").symlink_to(drivers)
    theirs = {**VF_ENTRY, "managed": "no", "resource_class": "CUSTOM_VGPU_4C"}
    at_home.nova(foreign(theirs, GPU_ENTRY))
    status, _, err = at_home(*COMPUTE)
    assert status == 0, err
    assert list(entries(at_home)) == [GPU]
    assert f"Not offered: {VF} (vf): an entry of yours gives it on the driver nvidia" in err
    refused(
        at_home(*COMPUTE, "--replace", json.dumps(theirs)),
        f"{VF} is offered (managed no, resource_class CUSTOM_VGPU_4C) and would not be",
    )
