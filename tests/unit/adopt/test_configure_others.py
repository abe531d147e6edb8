# SPDX-License-Identifier: Apache-2.0
"""``configure`` beside entries of ``device_spec`` that others wrote: nothing of them is lost."""

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc_tools.adopt import foreign_lines
from tests.unit.node_files import GPU, PF, VF, contents, declare_as_told, put, refused

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


def lines_of(at_home, text):
    """Places in nova.conf whose line has *text*: path and number."""
    path = at_home.home / "nova.conf"
    lines = enumerate(path.read_text().splitlines(), start=1)
    return [f"{path}:{number}" for number, line in lines if text in line]


# --- an interface in the place of an address ---------------------------------------------


# --- an interface in the place of an address ---------------------------------------------


def test_an_interface_is_refused_with_its_address(at_home, interface):
    """Nova does not start with it once devices are in Placement."""
    entry = {"devname": NAME, "product_id": "1021", "physical_network": "tenant1"}
    at_home.nova(foreign(entry))
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    refused(answer, f"names its device by the interface {NAME}")
    (place,) = lines_of(at_home, NAME)
    assert f"nova-hpc configure: {place}: device_spec = {json.dumps(entry)}: " in answer[2]
    assert f'write "address": "{PF}" in the place of "devname": "{NAME}"' in answer[2]
    assert contents(at_home.folder) == {}


def test_an_interface_that_hides_ours(at_home, interface):
    """It names the physical function as well, which ours does not offer."""
    entry = {"devname": NAME, "physical_network": "tenant1"}
    at_home.nova(foreign(entry))
    words = (*COMPUTE, "--replace", "device_spec")
    answer = at_home(*words)
    refused(answer, f"Nova takes this entry for {VF}", f"kept: {{'{VF}': ")
    assert f'write "address": "{PF}" in the place of' in answer[2]
    assert f"(without it, {PF} is offered (physical_network tenant1) and would not be" in answer[2]
    assert declare_as_told(at_home, answer[2]) == {"kept": {VF: {"physical_network": "tenant1"}}}
    at_home.nova(foreign())
    assert at_home(*words)[0] == 0
    assert entries(at_home)[PF]["physical_network"] == "tenant1"
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_an_interface_that_is_not_here_is_refused_by_name(at_home):
    at_home.nova(foreign({"devname": "eth7", "physical_network": "tenant1"}))
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    refused(answer, "by the interface eth7")
    assert "this node has no interface eth7" in answer[2]
    # The settings of the controllers do not depend on it.
    assert at_home("--part", "controller")[0] == 0


def test_an_adapter_and_its_virtual_functions_would_both_be_reported(at_home):
    """One address of a physical function names both (nova/pci/devspec.py)."""
    at_home.nova(foreign({"address": PF}))
    at_home.declare(left_out=[PF])
    answer = at_home(*COMPUTE, "--replace", "device_spec")
    refused(answer, f"{PF} and its virtual functions ({VF}) would both be reported")
    (place,) = lines_of(at_home, PF)
    assert f"configure: {place}: " in answer[2]
    assert "with which nova-compute does not start" in answer[2]
    assert "name vendor and product in it, or remove" in answer[2]


# --- an entry that hides ours -------------------------------------------------------------

KEYS = [
    {},
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
def test_each_key_stays_when_the_line_is_gone(at_home, said):
    entry = {**GPU_ENTRY, **said}
    at_home.nova(foreign(entry))
    before = (at_home.home / "nova.conf").read_bytes()
    words = (*COMPUTE, "--replace", "device_spec")
    status, out, err = at_home(*words)
    assert (status, out) == (2, "")
    (place,) = lines_of(at_home, GPU)
    text = f"{place}: device_spec = {json.dumps(entry)}: Nova takes this entry for {GPU}, and not"
    assert f"nova-hpc configure: {text} the one with tags: remove {place} in your" in err
    assert f"or keep it, with left_out: ['{GPU}'] in {at_home.folder}/node.yaml" in err
    assert (at_home.home / "nova.conf").read_bytes() == before
    assert contents(at_home.folder) == {}
    # As the files of a dry run have it, with the line there, so they are without it.
    _, would, _ = at_home(*words, "--dry-run")
    declare_as_told(at_home, err)
    at_home.nova(foreign())
    status, _, err = at_home(*words)
    assert status == 0, err
    assert all(f"+device_spec = {line}\n" in would for line in at_home.told("device_spec"))
    written = entries(at_home)[GPU]
    for key, value in said.items():
        if key == "traits":
            assert written[key] == "CUSTOM_FAST_ONE,CUSTOM_SXM"
        elif key == "resource_class":
            assert written[key] == value.upper() == written["hpc_resource_class"]
        else:
            assert written[key] == (value if isinstance(value, str) else "true")
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_a_kept_entry_leaves_its_device_alone(at_home):
    at_home.nova(foreign(VF_ENTRY))
    words = (*COMPUTE, "--replace", "device_spec")
    status, _, err = at_home(*words)
    assert status == 2
    left_out = yaml.safe_load(err.partition("or keep it, with ")[2].partition(" in /")[0])
    at_home.declare(**left_out)
    status, _, err = at_home(*words)
    assert status == 0, err
    assert list(entries(at_home)) == [GPU]


def test_ports_of_a_dpu(at_home, machine):
    """Two of its functions for tunnels that are managed elsewhere; the third has no entry."""
    second = second_vf(machine)
    kept = {"physical_network": None, "remote_managed": "true"}
    at_home.nova(foreign({**VF_ENTRY, **kept}))
    words = (*COMPUTE, "--replace", "device_spec")
    status, _, err = at_home(*words)
    assert status == 2
    assert declare_as_told(at_home, err) == {"kept": {VF: kept}}
    assert f"Not offered: {second} (vf): an entry of yours offers {VF}" in err
    at_home.nova(foreign())
    answer = at_home(*words)
    assert answer[0] == 0, answer[2]
    written = entries(at_home)
    assert written[VF]["physical_network"] is None
    assert written[VF]["remote_managed"] == "true"
    assert written[VF]["hpc_role"] == "vf"
    # An alias of Nova's knows no such device, and Placement one class of an adapter.
    assert [json.loads(each)["name"] for each in at_home.told("alias")] == ["gpu"]
    assert second not in json.dumps(written)
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_a_network_of_some_functions_alone(at_home, machine):
    second = second_vf(machine)
    theirs = {**VF_ENTRY, "address": second, "physical_network": "tenant1", "trusted": "true"}
    at_home.nova(foreign(theirs))
    words = (*COMPUTE, "--replace", "device_spec")
    status, _, err = at_home(*words)
    assert status == 2
    declare_as_told(at_home, err)
    at_home.nova(foreign())
    status, _, err = at_home(*words)
    assert status == 0, err
    written = entries(at_home)
    assert written[second]["physical_network"] == "tenant1"
    assert written[second]["trusted"] == "true"
    assert "physical_network" not in written[VF]
    assert at_home(*COMPUTE)[1] == "Nothing to do.\n"


def test_what_ours_cannot_say_is_named(at_home):
    at_home.nova(foreign({**GPU_ENTRY, "managed": "yes"}))
    status, _, err = at_home(*COMPUTE, "--replace", "device_spec", "--replace", GPU)
    assert status == 2
    assert f"(without it, {GPU}: managed is yes and would be no)" in err


def test_a_wide_entry_takes_no_other_device_with_it(at_home, machine):
    """By vendor alone: the second card is left out, and would not be offered any more."""
    folder = "/sys/devices/pci0000:17/0000:1a:00.0"
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        put(machine, f"{folder}/{name}", text)
    (machine / "sys/bus/pci/devices/0000:1a:00.0").symlink_to(
        "../../../devices/pci0000:17/0000:1a:00.0"
    )
    at_home.nova(foreign({"vendor_id": "10de"}))
    at_home.declare(left_out=["0000:1a:00.0"])
    status, _, err = at_home(*COMPUTE)
    assert status == 2
    assert "(without it, 0000:1a:00.0 is offered and would not be)" in err


# --- the lines of files -------------------------------------------------------------------

FILE = """\
# device_spec = {first}
[DEFAULT]
transport_url = rabbit://nova:secret@host//
[pci]
device_spec = [{{"vendor_id": "15b3",
    "product_id": "1017"}},
  {{"address": "*:af:00.*", "note": "a$$b"}}, {first}]
passthrough_whitelist: '{first}'
"""
FIRST = {"address": GPU, "vendor_id": "10de"}


@pytest.mark.parametrize(
    ("entry", "numbers"),
    [
        (FIRST, [7, 8]),
        ({"product_id": "1017", "vendor_id": "15b3"}, [5]),
        ({"address": "*:af:00.*", "note": "a$b"}, [7]),
        ({"address": GPU}, []),
    ],
)
def test_the_line_of_an_entry(tmp_path, entry, numbers):
    path = tmp_path / "nova.conf"
    path.write_text(FILE.format(first=json.dumps(FIRST)), encoding="utf-8")
    found = list(foreign_lines.find_object_lines(entry, [tmp_path / "none.conf", path]))
    assert [line.number for line in found] == numbers
    texts = path.read_text().replace("$$", "$").splitlines()
    assert [str(line) for line in found] == [
        f"{path}:{number}: {texts[number - 1].strip()}" for number in numbers
    ]


@given(st.text(alphabet="{}[]\"'\\\n #;:,a1$"))
@settings(deadline=None)
def test_any_text_is_read(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "nova.conf")
        path.write_text(f'{text}\n{{"a": 1}}\n', encoding="utf-8")
        for line in foreign_lines.find_object_lines({"a": 1}, [path]):
            assert line.text in path.read_text().replace("$$", "$")


def test_secrets_are_not_quoted(at_home):
    text = FILE.format(first=json.dumps(GPU_ENTRY))
    at_home.nova(text)
    _, out, err = at_home(*COMPUTE, "--replace", "device_spec", "--dry-run")
    assert "nova.conf:7: " in err
    assert "nova:secret" not in out + err
    assert (at_home.home / "nova.conf").read_text() == text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ask"], "--ask was removed: run configure --write, edit the declaration"),
        (["--replace", json.dumps(GPU_ENTRY)], "this command edits no file of others"),
        (["--replace", " [{}]"], "this command edits no file of others"),
    ],
)
def test_options_of_the_release_before(at_home, words, text):
    at_home.nova(foreign(GPU_ENTRY))
    refused(at_home(*COMPUTE, *words), text)
    assert list(at_home.folder.iterdir()) == []


# --- what the driver does not start with, and what stays as it is -------------------------


def test_functions_with_tags_and_without_on_one_adapter(at_home, machine):
    """The driver refuses that, so it is not written."""
    second = second_vf(machine)
    at_home.nova(foreign(VF_ENTRY))
    at_home.declare(left_out=[VF])
    words = (*COMPUTE, "--replace", "device_spec")
    refused(at_home(*words), f"virtual functions of {PF} have different hpc_* tags ({VF} none)")
    at_home.declare(left_out=[PF])
    assert at_home(*words)[0] == 0
    assert second not in json.dumps(entries(at_home))


def test_functions_on_the_driver_of_their_vendor_stay_there(at_home, machine):
    """As vGPUs are; tags would withhold them, and their adapter is not given whole either."""
    drivers = machine / "sys/bus/pci/drivers/nvidia"
    drivers.mkdir(parents=True)
    (machine / f"sys/devices/pci0000:17/{VF}/driver").symlink_to(drivers)
    theirs = {**VF_ENTRY, "managed": "no", "resource_class": "CUSTOM_VGPU_4C"}
    at_home.nova(foreign(theirs))
    status, _, err = at_home(*COMPUTE, "--replace", "device_spec")
    assert status == 0, err
    assert list(entries(at_home)) == [GPU]
    assert f"Not offered: {VF} (vf): an entry of yours gives it on the driver nvidia" in err
