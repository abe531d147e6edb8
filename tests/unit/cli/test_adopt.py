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
import sys
import textwrap
import time
from pathlib import Path

import pytest

from nova_hpc.offer import settings
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.cli.merged import SEVERAL, kolla, told

pytestmark = pytest.mark.long

TOP = Path(__file__).resolve().parents[3]
PAGE = TOP / "docs/source/admin/adopt.rst"
KINDS = {"hgx": ("hgx-h100", 4), "bridged": ("a100-bridges", 3), "old": ("two-socket", 3)}
NAMES = [f"{kind}{number}" for kind, (_, many) in KINDS.items() for number in range(1, many + 1)]

STOCK = "[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n"
#: A node on which servers have GPUs, as stock Nova gives them.
USED = """\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
reserved_host_memory_mb = 8192
[compute]
cpu_dedicated_set = 4-31,36-63
cpu_shared_set = 0-3,32-35
[pci]
device_spec = {"vendor_id": "10de", "product_id": "20b7", "address": "0000:31:00.0"}
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

PROGRAM = """\
#!/bin/sh
{python} -m nova_hpc.cli.main "$@" ${{ROOT:+--root "$ROOT"}}
status=$?
echo "$status ${{NODE:-deploy}} $*" >>{calls}
exit $status
"""


def blocks():
    """The command blocks of the page, by the first words of the commands in them."""
    found = re.findall(r"::\n\n((?:   .*\n|\n)+)", PAGE.read_text(encoding="utf-8"))
    texts = [textwrap.dedent(each).strip() for each in found]
    names = ("save", "look", "kinds", "kolla", "replace", "node", "controller", "doctor")
    assert len(texts) == len(names), texts
    return dict(zip(names, texts, strict=True))


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
        program = PROGRAM.format(python=sys.executable, calls=self.calls)
        for name, text in {"nova-hpc": program, "hostname": '#!/bin/sh\necho "$NODE"\n'}.items():
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        self.text = {}
        for kind, (machine, many) in KINDS.items():
            for number in range(1, many + 1):
                name = f"{kind}{number}"
                write(dataclasses.replace(NODES[machine], name=name), folder / "roots" / name)
                # Servers have devices of one of the old nodes.
                self.text[name] = USED if name == "old2" else STOCK
                self._home(name, self.text[name])
                (self.deploy / f"{name}.conf").write_text(self.text[name])
        write(NODES["bare"], folder / "roots" / "controller")
        self.text["controller"] = CONTROLLER
        self._home("controller", CONTROLLER)
        (self.deploy / "controller/nova.conf").write_text(CONTROLLER)
        (self.deploy / "controller/placement.conf").write_text(PLACEMENT)

    def _home(self, name: str, text: str) -> None:
        place = self.home(name) / ".nova"
        (place / "nova.conf.d").mkdir(parents=True)
        (place / "nova.conf").write_text(text)

    def home(self, name: str) -> Path:
        """Where the services of a machine find their files."""
        return self.folder / "homes" / name

    def type(self, text: str, node: str = ""):
        """Commands that an operator types on a node, or on the machine that deploys."""
        text = text.replace("/etc/kolla/config", str(self.kolla))
        text = text.replace("/etc/nova/nova.conf.d", str(self.home(node) / ".nova/nova.conf.d"))
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(TOP),
            "HOME": str(self.home(node) if node else self.folder),
            **({"NODE": node, "ROOT": str(self.folder / "roots" / node)} if node else {}),
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

    def typed(self) -> list[tuple[int, str, str]]:
        """Status, machine and words of each call of our command."""
        lines = (line.split(" ", 2) for line in self.calls.read_text().splitlines())
        return [(int(status), node, words) for status, node, words in lines]

    def collect(self) -> str:
        """The first section of the page; what kinds there are."""
        for node in NAMES:
            status, _, err = self.type(blocks()["save"], node)
            assert status == 0, err
        status, out, err = self.type(blocks()["look"])
        assert status == 0, err
        return out


@pytest.fixture
def cloud(tmp_path):
    return Cloud(tmp_path)


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
            assert [each for each in now[0].split(",") if each in old] == old, (where, name)
        elif name in ("max_placement_results", "max_allocation_candidates"):
            assert int(now[0]) >= int(values[0]), (where, name)
        elif name == "compute_driver":
            assert now == [settings.DRIVER], (where, name)
        else:
            assert now == values, (where, name)


def names_of(options):
    return {json.loads(each)["name"] for each in options["pci", "alias"]}


def report(cloud, begin, what, added):
    calls = cloud.typed()
    print(
        f"RESULT: {what}: {len(NAMES)} nodes, {len(calls)} commands, "
        f"{sum(status == 2 for status, _, _ in calls)} refused first, "
        f"{time.monotonic() - begin:.0f} s; options added {added}, taken away 0"
    )


def test_ten_nodes_with_kolla(cloud, tmp_path):
    begin = time.monotonic()
    seen = cloud.collect()
    assert "Kind 1: 4 nodes: hgx1, hgx2, hgx3, hgx4" in seen
    assert "Kind 2: 3 nodes: bridged1, bridged2, bridged3" in seen
    assert "Kind 3: 3 nodes: old1, old2, old3" in seen
    script = f"{blocks()['kinds']}\n{blocks()['kolla']}"
    status, _, err = cloud.type(script)
    assert status == 0, err
    # Only the node whose devices servers have is refused, by the name of each new device.
    assert [words for status, _, words in cloud.typed() if status] == [
        words for _, _, words in cloud.typed() if "--root old2 " in words
    ]
    refused = [line for line in err.splitlines() if "--replace" in line]
    assert len(refused) >= 1
    status, _, err = cloud.type(f"{blocks()['kinds']}\nnode=old2\n{blocks()['replace']}")
    assert status == 0, err
    added = 0
    every = {}
    for node in NAMES:
        override = (cloud.kolla / f"nova/{node}/nova-compute.conf").read_text()
        before = told(cloud.text[node], tmp_path)
        every[node] = told(kolla([cloud.text[node], override]), tmp_path)
        nothing_went(before, every[node], node)
        added += len(every[node].keys() - before.keys())
    override = (cloud.kolla / "nova/nova-scheduler.conf").read_text()
    before, after = (told(text, tmp_path) for text in (CONTROLLER, kolla([CONTROLLER, override])))
    nothing_went(before, after, "scheduler")
    added += len(after.keys() - before.keys())
    merged = kolla([PLACEMENT, (cloud.kolla / "placement.conf").read_text()])
    nothing_went(told(PLACEMENT, tmp_path), told(merged, tmp_path), "placement")
    # Every node has the same names, and the controllers have them, too.
    assert all(names_of(every[node]) - {"a30"} == names_of(after) - {"a30"} for node in NAMES)
    assert {"gpu-2330", "gpu-20b5", "gpu-20b7"} <= names_of(after)
    report(cloud, begin, "Kolla-Ansible", added)
    # Again: nothing to do.
    written = {path: path.read_text() for path in cloud.kolla.rglob("*.conf")}
    status, out, err = cloud.type(script)
    assert status == 0, err
    assert out.count("Nothing to do.") == len(NAMES) + 1
    assert {path: path.read_text() for path in cloud.kolla.rglob("*.conf")} == written


@pytest.mark.slow
def test_ten_nodes_without_a_tool(cloud, tmp_path):
    begin = time.monotonic()
    cloud.collect()
    added = 0
    every = {}
    for node in NAMES:
        place = cloud.home(node) / ".nova/nova.conf.d"
        script = f"{blocks()['kinds']}\n{blocks()['node']}"
        status, _, err = cloud.type(script, node)
        if node == "old2":
            assert status == 2
            assert list(place.iterdir()) == []
            status, _, err = cloud.type(f"{script} --replace device_spec", node)
        assert status == 0, (node, err)
        files = [path.read_text() for path in sorted(place.glob("*.conf"))]
        before = told(cloud.text[node], tmp_path)
        every[node] = read([cloud.text[node], *files], tmp_path)
        nothing_went(before, every[node], node)
        added += len(every[node].keys() - before.keys())
    place = cloud.home("controller") / ".nova/nova.conf.d"
    common = cloud.home("hgx1") / ".nova/nova.conf.d/nova-hpc-common.conf"
    (place / common.name).write_text(common.read_text())
    status, _, err = cloud.type(blocks()["controller"], "controller")
    assert status == 0, err
    files = [path.read_text() for path in sorted(place.glob("*.conf"))]
    before, after = told(CONTROLLER, tmp_path), read([CONTROLLER, *files], tmp_path)
    nothing_went(before, after, "controller")
    added += len(after.keys() - before.keys())
    assert all(names_of(every[node]) - {"a30"} == names_of(after) - {"a30"} for node in NAMES)
    report(cloud, begin, "without a tool", added)
    # The findings of all nodes, put together.
    for node in ("hgx1", "bridged1", "old3"):
        status, _, err = cloud.type(blocks()["doctor"], node)
        assert status == 0, err
    status, out, err = cloud.type("rm -f *.conf; nova-hpc doctor --merge . -f json")
    assert status in (0, 1, 3), err
    assert {"hgx1", "old3"} <= set(re.findall(r"hgx1|old3", out))
