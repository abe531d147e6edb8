# SPDX-License-Identifier: Apache-2.0
"""The lab as a site that its operator keeps: configuration, services and servers."""

import functools
import json
import re
import threading

from oslo_config import cfg

from nova_hpc_lab import cloud as lab_cloud
from nova_hpc_lab.node import qemu
from nova_hpc_lab.state import Paths

COMMAND = "/opt/nova-hpc/venv/bin/nova-hpc"
INCLUDES = "/etc/nova/nova.conf.d"
FOREIGN = "AggregateMultiTenancyIsolation"
LIMIT = 5000
STARTS = "Starting compute node"
SAME = "role_options: {{{}: {{identity: ids}}}}"
SERVICES = ("nova-conductor", "nova-scheduler", "nova-api")
STOCK_FILTERS = (
    f"ComputeFilter,{FOREIGN},ImagePropertiesFilter,NUMATopologyFilter,PciPassthroughFilter"
)
GPUS = json.dumps(dict(zip(("vendor_id", "product_id"), qemu.GPU_IDS, strict=True)))
#: As an operator of stock Nova has it: GPUs by ids, functions of adapters by their addresses,
#: CPU sets of his own.
STOCK_NODE = f"""\
[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[compute]
cpu_shared_set = 0,2
cpu_dedicated_set = 1,3
[pci]
device_spec = {GPUS}
"""
FLAVOR = (
    *("--vcpus", "1", "--ram", "512", "--disk", "1"),
    *("--property", "hw:cpu_policy=dedicated"),
    *("--property", "hw:mem_page_size=2048"),
    *("--property", "hw:pci_numa_affinity_policy=preferred"),
)
GPU = ":".join(qemu.GPU_IDS)


class Site:
    """The lab as its operator has it."""

    def __init__(self, lab):
        self.lab = lab
        self.nova_conf = lab.state / "etc" / "nova" / "nova.conf"
        self.folder = lab.state / "adoption"
        self.commands = 0

    # -- the controllers -------------------------------------------------------------------

    def restart(self):
        """Nova's services begin anew, with the packages of ``PYTHONPATH`` before all others."""
        found = lab_cloud.existing(Paths.from_environment(self.lab.environ)).services()
        for name in SERVICES:
            found[name].process.stop()
        for name in SERVICES:
            found[name].start(threading.Event())

    def without_ours(self):
        """The controllers' file but for what this project asks for."""
        ours = re.compile(
            r"enabled_filters|available_filters|weight_classes|pci_in_placement|"
            r"max_placement_results|disable_fallback"
        )
        lines = self.nova_conf.read_text().splitlines()
        return "".join(f"{line}\n" for line in lines if not ours.match(line))

    def stock_controllers(self):
        self.nova_conf.write_text(
            f"{self.without_ours()}"
            f"[filter_scheduler]\nenabled_filters = {STOCK_FILTERS}\n"
            f"[scheduler]\nmax_placement_results = {LIMIT}\n"
        )
        self.restart()

    def adopt_controllers(self):
        """As the docs say; the lab's controllers read one file, so ours is put behind it."""
        self.folder.mkdir(exist_ok=True)
        common = self.lab.inside(f"cat {INCLUDES}/nova-hpc-common.conf 2>/dev/null || true")
        done = self.lab.run(
            *("configure", "--part", "controller", "--write", str(self.folder)),
            *("--config-file", str(self.nova_conf)),
        )
        assert done.returncode == 0, done.stderr
        self.commands += 1
        ours = (self.folder / "nova-hpc-controller.conf").read_text()
        self.nova_conf.write_text(
            self.nova_conf.read_text()
            + common
            + ours
            + "[filter_scheduler]\npci_in_placement = true\n"
        )
        self.restart()

    def controllers(self):
        options = cfg.ConfigOpts()
        options.register_opts([cfg.ListOpt("enabled_filters")], group="filter_scheduler")
        options.register_opts([cfg.IntOpt("max_placement_results")], group="scheduler")
        options([], default_config_files=[str(self.nova_conf)], default_config_dirs=[])
        return options.filter_scheduler.enabled_filters, options.scheduler.max_placement_results

    # -- the node --------------------------------------------------------------------------

    @functools.cached_property
    def functions(self):
        """The entries of the functions of adapters, those of a network for its ports alone."""
        text = self.lab.inside(f"cat {INCLUDES}/nova-hpc-compute.conf")
        found = ""
        for entry in map(json.loads, re.findall(r"^device_spec = (.*)$", text, re.MULTILINE)):
            if (entry["vendor_id"], entry["product_id"]) != qemu.VF_IDS:
                continue
            physical = f"/sys/bus/pci/devices/{entry['address']}"
            paths = self.lab.inside(f"readlink -f {physical}/virtfn*").split()
            network = {key: entry[key] for key in ("physical_network",) if key in entry}
            for path in paths:
                mine = {"address": path.rpartition("/")[2]} | network
                found += f"device_spec = {json.dumps(mine)}\n"
        return found

    def node(self, script):
        """Change the node's files, restart nova-compute, and wait until it is up again."""
        before = self.pid()
        self.starts = self.log().count(STARTS)
        self.lab.inside(f"set -e; {script}; sync; kill -KILL {before}")
        self.lab.until(lambda: self.pid() not in ("", before), "nova-compute runs again")
        self.lab.until(self._up, "nova-compute is up")

    def _up(self):
        """Its service is up, and reported after the restart."""
        text = self.lab.openstack("compute", "service", "list", "-f", "json")
        (service,) = (each for each in json.loads(text) if each["Binary"] == "nova-compute")
        return service["State"] == "up" and self.log().count(STARTS) > self.starts

    def log(self):
        """What nova-compute has said since the node began."""
        path = self.lab.state / "nodes" / "hpc1" / "nova-compute.log"
        return path.read_text(errors="replace")

    def pid(self):
        return self.lab.inside(
            "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline 2>/dev/null"
            " | grep -q 'inside/[c]ompute.py' && echo ${each#/proc/} && break; done; true"
        ).strip()

    def stock_node(self):
        self.node(
            f"rm -f {INCLUDES}/nova-hpc-*.conf {INCLUDES}/nova-hpc-undo.json"
            " /etc/nova-hpc/node.yaml;"
            f" cat >{INCLUDES}/stock.conf <<'END'\n{STOCK_NODE}{self.functions}END\n"
            # Of the lab's own nova.conf: a later file says it again.
            "true"
        )

    def adopt_node(self):
        """As the docs say: entries of one's own that name the same devices go first."""
        words = f"{COMMAND} configure --write {INCLUDES} --part common --part compute"
        said = self.lab.inside(f"{words} 2>&1")
        print("RESULT: configure says", said)
        # Servers may have them, so they stay what they are in Placement.
        assert SAME.format("gpu") in said
        assert SAME.format("vf") in said
        self.commands += 2
        self.node(
            f"sed -i '/^device_spec/d' {INCLUDES}/stock.conf"
            f" && sed -i '/^compute_driver/d' {INCLUDES}/stock.conf"
        )

    def leave_node(self):
        """The way back of the docs: tags out, restart; then the stock driver."""
        self.commands += 2
        self.node(f'sed -i \'s/, "hpc_[a-z_]*": "[^"]*"//g\' {INCLUDES}/nova-hpc-compute.conf')
        self.node(
            f"sed -i 's/^compute_driver.*/compute_driver = libvirt.LibvirtDriver/'"
            f" {INCLUDES}/nova-hpc-compute.conf"
        )

    # -- servers ---------------------------------------------------------------------------

    def devices(self, server):
        xml = self.lab.inside(f"virsh -c qemu:///system dumpxml {server}")
        return tuple(
            sorted(
                re.findall(
                    r"<source>\s*<address domain='0x(\w+)' bus='0x(\w+)' slot='0x(\w+)' function"
                    r"='0x(\w)'",
                    xml,
                )
            )
        )

    def used(self):
        (node,) = self.lab.status()["nodes"]
        return {each["address"]: each["used"] for each in node["providers"] if each["used"]}

    def create(self, name, flavor):
        self.lab.openstack(
            "server",
            "create",
            "--flavor",
            flavor,
            "--image",
            "hpc-guest",
            "--nic",
            "none",
            "--wait",
            name,
            check=False,
        )
        found = self.lab.show(name)
        assert found["status"] == "ACTIVE", f"{found.get('fault')}\n{self.lab.tail()}"
        return found["id"]

    def still_there(self, servers, what):
        """Each server survives a hard reboot with the devices it had, and so does Placement."""
        used = self.used()
        for server, devices in servers.items():
            self.lab.openstack("server", "reboot", "--hard", "--wait", server)
            found = self.lab.show(server)
            assert found["status"] == "ACTIVE", (what, found.get("fault"), self.lab.tail())
            assert self.devices(server) == devices, what
        assert self.used() == used, what
        print(f"RESULT: {what}: {len(servers)} servers, {used}")
