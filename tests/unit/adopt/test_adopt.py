# SPDX-License-Identifier: Apache-2.0
"""The page "Adopt a cloud", executed: ten nodes of three kinds, with Kolla-Ansible and without.

What the services are told before and after is compared option by option: something may be
added, and nothing may go.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from nova_hpc_tools.site import settings
from nova_hpc_tools.site.spec_entries import addresses_of_entry
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.adopt.merged import SEVERAL, kolla, told
from tests.unit.commands import typed
from tests.unit.commands.typed import Server

pytestmark = pytest.mark.long

TOP = Path(__file__).resolve().parents[3]
PAGE = TOP / "docs/source/admin/adopt.rst"
KINDS = {"hgx": ("hgx-h100", 4), "bridged": ("a100-bridges", 3), "old": ("two-socket", 3)}
NAMES = [f"{kind}{number}" for kind, (_, many) in KINDS.items() for number in range(1, many + 1)]
#: A node on which servers have the GPU, as stock Nova gives it; its other devices.
USED, GIVEN = "old2", "0000:31:00.0"
OTHERS = ("0000:17:00.0", "0000:b1:00.0")
#: Another team's, for Neutron's ports.
POOL = "0000:b1:00.1"
#: Address -> whether the entry that counts has tags, at the end.
WITH_TAGS = dict(sorted({GIVEN: True, POOL: False, **dict.fromkeys(OTHERS, True)}.items()))

STOCK = "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"
SERVING = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
reserved_host_memory_mb = 8192
[compute]
cpu_dedicated_set = 4-31,36-63
cpu_shared_set = 0-3,32-35
[pci]
device_spec = {"vendor_id": "10de", "product_id": "20b7", "address": "0000:31:00.0"}
# of the network team
device_spec = {"address": "0000:b1:00.1", "physical_network": "tenants", "trusted": "true"}
alias = {"name": "a30", "vendor_id": "10de", "product_id": "20b7", "device_type": "type-PCI"}
"""
CONTROLLER = """\
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = acme.filters.Tenants
enabled_filters = ComputeFilter,Tenants,AggregateMultiTenancyIsolation,PciPassthroughFilter
weight_classes = acme.Weigher
[pci]
alias = {"name": "a30", "vendor_id": "10de", "product_id": "20b7", "device_type": "type-PCI"}
[scheduler]
max_placement_results = 5000
"""
PLACEMENT = "[placement]\nmax_allocation_candidates = 7000\n[api]\nauth_strategy = keystone\n"

#: The command blocks of the page, in their order.
BLOCKS = (
    *("save", "look", "kinds", "serving", "ids", "leave", "take out", "kolla", "replace"),
    *("copy", "node", "take out here", "controller"),
    *("doctor of kolla", "doctor", "all doctors"),
)


def blocks():
    """Name -> text of each command block of the page."""
    return dict(zip(BLOCKS, typed.blocks(PAGE), strict=True))


class Cloud:
    """Ten nodes, a controller, and the machine that deploys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deploy = folder / "deploy"
        (self.deploy / "controller").mkdir(parents=True)
        self.kolla = folder / "kolla"
        self.kolla.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        bin_ = folder / "bin"
        bin_.mkdir()
        self.server = Server(folder)
        for name, text in {
            "nova-hpc": self.server.write_command(self.calls),
            "hostname": '#!/bin/sh\necho "$NODE"\n',
        }.items():
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        self.text = {"controller": CONTROLLER}
        for kind, (machine, many) in KINDS.items():
            for number in range(1, many + 1):
                name = f"{kind}{number}"
                write(dataclasses.replace(NODES[machine], name=name), folder / "roots" / name)
                self.text[name] = SERVING if name == USED else STOCK
                (self.deploy / f"{name}.conf").write_text(self.text[name])
        bare = dataclasses.replace(NODES["bare"], name="controller")
        write(bare, folder / "roots" / "controller")
        for name, text in self.text.items():
            place = self.home(name) / ".nova"
            (place / "nova.conf.d").mkdir(parents=True)
            (place / "nova.conf").write_text(text)
        placement = self.home("controller") / ".placement"
        (placement / "placement.conf.d").mkdir(parents=True)
        (placement / "placement.conf").write_text(PLACEMENT)
        (self.deploy / "controller/nova.conf").write_text(CONTROLLER)
        (self.deploy / "controller/placement.conf").write_text(PLACEMENT)

    def home(self, name: str) -> Path:
        """Where the services of a machine find their files."""
        return self.folder / "homes" / name

    def type(self, text: str, node: str = ""):
        """Commands that an operator types on a node, or on the machine that deploys."""
        text = text.replace("/etc/kolla/config", str(self.kolla))
        for project in ("nova", "placement"):
            text = text.replace(f"/etc/{project}/", f"{self.home(node)}/.{project}/")
        declaration = f"{self.home(node)}/nova-hpc/node.yaml"
        text = text.replace("/etc/nova-hpc/node.yaml", declaration)
        here = {"NODE": node, "ROOT": str(self.folder / "roots" / node)}
        if Path(declaration).exists():
            here["DECLARATION"] = declaration
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.home(node) if node else self.folder),
            **(here if node else {}),
        }
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.deploy,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def well(self, text: str, node: str = "") -> str:
        """What commands print that do what they are told."""
        status, out, err = self.type(text, node)
        assert status == 0, (node, err)
        return out

    def typed(self) -> list[tuple[int, str, str]]:
        """Status, machine and words of each call of our command."""
        lines = (line.split(" ", 2) for line in self.calls.read_text().splitlines())
        return [(int(status), node, words) for status, node, words in lines]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """What the first sections of the page make of the cloud."""
    found = Cloud(tmp_path_factory.mktemp("cloud"))
    try:
        begin = time.monotonic()
        for node in NAMES:
            found.well(blocks()["save"], node)
        seen = found.well(blocks()["look"])
        assert "Kind 1: 4 nodes: hgx1, hgx2, hgx3, hgx4" in seen
        assert "Kind 2: 3 nodes: bridged1, bridged2, bridged3" in seen
        assert "Kind 3: 3 nodes: old1, old2, old3" in seen
        found.well(blocks()["kinds"])
        status, _, err = found.type(f"{kinds()}\n{blocks()['serving']}")
        assert status == 2
        refused(err, hiding=(GIVEN, POOL))
        page = " ".join(PAGE.read_text(encoding="utf-8").split())
        lines = [line for line in err.splitlines() if line.startswith("The role gpu")]
        said = [line for line in lines if "role_options: {gpu: {identity: ids}}" in line]
        assert len(said) == 1
        assert said[0] in page
        for name in ("ids", "leave", "take out"):
            found.well(blocks()[name])
        assert (found.deploy / f"{USED}.conf").read_text() == only_without(SERVING)
        declared = (found.deploy / "cloud.yaml").read_text()
        found.seconds = time.monotonic() - begin
        found.shared = len(found.typed())
        found.declared = declared
        yield found
    finally:
        found.server.end()


def refused(err, new=OTHERS, hiding=()):
    """What a refusal names: every device that would be offered as well, and entries that hide."""
    refusals = [line for line in err.splitlines() if line.startswith("nova-hpc configure: ")]
    lines = [line for line in refusals if "is not offered and would be: --replace" in line]
    named = [re.findall(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]", line) for line in lines]
    assert named == [[each] * 3 for each in new], err
    first = [line for line in refusals if "Nova takes this entry for" in line]
    assert len(first) == len(hiding)
    for line, address in zip(first, hiding, strict=True):
        assert re.search(
            rf"\.conf:[0-9]+: device_spec = {{.*}}: Nova takes .* for {address},", line
        )


def kinds():
    """The words that all commands share, as the shell has them."""
    return blocks()["kinds"].partition("cat ")[0]


def read(texts, tmp_path):
    """What a service is told by several files, in their order: oslo.config's own rules."""
    found = {}
    for text in texts:
        for (group, name), values in told(text, tmp_path).items():
            before = found.get((group, name), []) if name in SEVERAL else []
            found[group, name] = [*before, *values]
    return found


def nothing_went(before, after, where):
    """Lists keep their order; limits do not fall; the rest is as it was."""
    for (group, name), values in before.items():
        now = after[group, name]
        if name in SEVERAL:
            assert [each for each in dict.fromkeys(now) if each in values] == values, (where, name)
        elif name in ("enabled_filters", "weight_classes"):
            old = values[0].split(",")
            assert [each for each in now[-1].split(",") if each in old] == old, (where, name)
        elif name in ("max_placement_results", "max_allocation_candidates"):
            assert int(now[-1]) >= int(values[0]), (where, name)
        elif name == "compute_driver":
            assert now[-1] == settings.DRIVER, (where, name)
        else:
            assert now[-1:] == values, (where, name)


def only_additions(out):
    """The difference of effective values, as the command itself prints it."""
    lines = [line.strip() for line in out.splitlines() if line.startswith("  [")]
    assert lines
    gone = [line for line in lines if re.match(r"\[\w+\]\w+: - ", line)]
    changed = [line for line in lines if " -> " in line and ": not set -> " not in line]
    assert gone == []
    assert {line.partition(":")[0] for line in changed} == {"[DEFAULT]compute_driver"}
    return len(lines) - len(changed)


def aliases(options):
    """Name -> what it asks for; without the name that stock Nova has given."""
    found = {each.pop("name"): each for each in map(json.loads, options["pci", "alias"])}
    return {name: each for name, each in found.items() if name != "a30"}


def offered(options):
    """Addresses that are offered, in order, with whether the entry that counts has tags."""
    found = {}
    for entry in map(json.loads, options["pci", "device_spec"]):
        for address in addresses_of_entry(entry):
            found.setdefault(address, "hpc_role" in entry)
    return dict(sorted(found.items()))


def only_without(text):
    """The operator's file without the one line that the page takes out."""
    lines = text.splitlines(keepends=True)
    (gone,) = (each for each in lines if GIVEN in each)
    return "".join(each for each in lines if each != gone)


def ports_stay(options):
    """Another team's entry is as it was, and no other names its port."""
    entries = [json.loads(each) for each in options["pci", "device_spec"]]
    (theirs,) = (each for each in entries if POOL in addresses_of_entry(each))
    assert theirs == {"address": POOL, "physical_network": "tenants", "trusted": "true"}


def all_are_well(cloud, config=None):
    """The findings of nodes of each kind and of the controller: none of them is of adoption."""
    for path in cloud.deploy.glob("*.json"):
        path.unlink()
    block = blocks()["doctor of kolla" if config else "doctor"].replace("\\\n", "")
    on_node, on_controller = block.splitlines()
    for node in ("hgx1", "bridged1", USED, "controller"):
        text = on_controller if node == "controller" else on_node
        if config:
            text, count = re.subn(r"/etc/kolla/nova-\w+/nova\.conf", str(config(node)), text)
            assert count == 1
        cloud.well(text, node)
    status, out, err = cloud.type(f"{blocks()['all doctors']} -f json")
    assert status in (1, 3), err
    found = json.loads(out)
    # The name that stock Nova was given is on one node and the controller alone.
    assert [each["Seen"] for each in found if each["Node"] == ""] == [
        "[pci]alias a30 is not known on bridged1, hgx1."
    ]
    rest = [each for each in found if each["Node"] != ""]
    # What was so before, and nobody had said: NVSwitches without a manager, and the rest.
    before = {
        USED: {"link-narrow", "not-looked"},
        "hgx1": {"nvswitch-idle"},
        "controller": {"weigher-lost"},
    }
    every = {"bridged1", "hgx1", USED}
    assert {each["Node"] for each in rest if each["Check"] == "guest-devices"} == every
    for node in {each["Node"] for each in rest}:
        checks = {each["Check"] for each in rest if each["Node"] == node}
        assert checks - {"guest-devices"} == before.get(node, set()), node


def report(cloud, begin, what, added, since):
    calls = cloud.typed()[: cloud.shared] + cloud.typed()[since:]
    refusals = sum(status == 2 and "--write" in words for status, _, words in calls)
    print(
        f"RESULT: {what}: {len(NAMES)} nodes, {len(calls)} commands, {refusals} refused first, "
        f"{time.monotonic() - begin + cloud.seconds:.0f} s; {added} values added, 0 taken away"
    )
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert re.search(rf"\b{len(calls)} (calls of ``nova-hpc`` )?{what}\b", page), len(calls)
    assert refusals == 1


def test_ten_nodes_with_kolla(cloud, tmp_path):
    begin, since = time.monotonic(), len(cloud.typed())
    (cloud.deploy / "cloud.yaml").write_text(cloud.declared)
    status, out, err = cloud.type(f"{kinds()}\n{blocks()['kolla']}")
    assert status == 0, err
    # Only the node whose devices servers have is refused, by the name of each new device.
    refusals = [words for status, _, words in cloud.typed()[since:] if status]
    assert len(refusals) == 1
    assert f"--root {USED} " in refusals[0]
    refused(err, sorted((GIVEN, *OTHERS)))
    assert not (cloud.kolla / f"nova/{USED}").exists()
    out += cloud.well(f"{kinds()}\n{blocks()['replace']}")
    added = only_additions(out)
    every = {}
    sources = {**cloud.text, USED: only_without(SERVING)}
    for node in NAMES:
        override = (cloud.kolla / f"nova/{node}/nova-compute.conf").read_text()
        every[node] = told(kolla([sources[node], override]), tmp_path)
        nothing_went(told(sources[node], tmp_path), every[node], node)
    override = (cloud.kolla / "nova/nova-scheduler.conf").read_text()
    merged = kolla([CONTROLLER, override])
    after = told(merged, tmp_path)
    nothing_went(told(CONTROLLER, tmp_path), after, "scheduler")
    placement = kolla([PLACEMENT, (cloud.kolla / "placement.conf").read_text()])
    nothing_went(told(PLACEMENT, tmp_path), told(placement, tmp_path), "placement")
    # Every name means the same everywhere.
    assert set(aliases(after)) >= {"gpu-2330", "gpu-20b5", "gpu-20b7"}
    assert all(aliases(every[node]) == aliases(after) for node in NAMES)
    assert offered(every[USED]) == WITH_TAGS
    ports_stay(every[USED])
    # What the containers have then.
    for node in ("hgx1", "bridged1", USED):
        override = (cloud.kolla / f"nova/{node}/nova-compute.conf").read_text()
        (cloud.folder / f"{node}.conf").write_text(kolla([sources[node], override]))
    (cloud.folder / "controller.conf").write_text(merged)
    all_are_well(cloud, lambda name: cloud.folder / f"{name}.conf")
    report(cloud, begin, "with Kolla-Ansible", added, since)
    # Again: nothing to do.
    written = {path: path.read_text() for path in cloud.kolla.rglob("*.conf")}
    out = cloud.well(f"{kinds()}\n{blocks()['kolla'].replace('*.tar.xz', '*3.tar.xz')}")
    assert out == "Nothing to do.\n" * (len(KINDS) + 1)
    assert {path: path.read_text() for path in cloud.kolla.rglob("*.conf")} == written


def test_ten_nodes_without_a_tool(cloud, tmp_path):
    begin, since = time.monotonic(), len(cloud.typed())
    out, every = "", {}
    (cloud.deploy / "cloud.yaml").write_text(cloud.declared)
    cloud.well(blocks()["copy"], "controller")
    for node in NAMES:
        cloud.well(blocks()["copy"], node)
        place = cloud.home(node) / ".nova/nova.conf.d"
        script = f"{kinds()}\n{blocks()['node']}"
        if node == USED:
            status, _, err = cloud.type(script, node)
            assert status == 2
            refused(err, hiding=(GIVEN,))
            assert list(place.iterdir()) == []
            cloud.well(blocks()["take out here"], node)
            script += " --replace device_spec"
        source = (place.parent / "nova.conf").read_text()
        assert source == (only_without(SERVING) if node == USED else cloud.text[node])
        out += cloud.well(script, node)
        files = [path.read_text() for path in sorted(place.glob("*.conf"))]
        every[node] = read([source, *files], tmp_path)
        nothing_went(told(source, tmp_path), every[node], node)
    place = cloud.home("controller") / ".nova/nova.conf.d"
    common = cloud.home("hgx1") / ".nova/nova.conf.d/nova-hpc-common.conf"
    (place / common.name).write_text(common.read_text())
    out += cloud.well(blocks()["controller"], "controller")
    files = [path.read_text() for path in sorted(place.glob("*.conf"))]
    after = read([CONTROLLER, *files], tmp_path)
    nothing_went(told(CONTROLLER, tmp_path), after, "controller")
    file = cloud.home("controller") / ".placement/placement.conf.d/nova-hpc-placement.conf"
    placement = read([PLACEMENT, file.read_text()], tmp_path)
    nothing_went(told(PLACEMENT, tmp_path), placement, "placement")
    added = only_additions(out)
    assert all(aliases(every[node]) == aliases(after) for node in NAMES)
    assert offered(every[USED]) == WITH_TAGS
    ports_stay(every[USED])
    all_are_well(cloud)
    report(cloud, begin, "without a tool", added, since)
    assert cloud.well(f"{kinds()}\n{blocks()['node']}", USED) == "Nothing to do.\n"
