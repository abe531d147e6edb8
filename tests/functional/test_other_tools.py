# SPDX-License-Identifier: Apache-2.0
"""Ten configurations as other tools write them: configured, looked at, and started with.

Each has two entries of others. What they say is compared by Nova's own parser before and after:
a key that a device has no more was named, and refused until it was given up by its name. Entries
that hide ours are removed as the refusals say. Then a nova-compute of this project starts with it.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import yaml
from nova.compute import pci_placement_translator
from nova.pci import whitelist
from nova.virt.libvirt import driver as libvirt_driver
from oslo_config import cfg

from nova_hpc.topology import sysfs
from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.adopt.prepare import Prepare
from nova_hpc_tools.doctor.command import Doctor
from nova_hpc_tools.site import service_settings, spec_entries
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

CONFS = Path(__file__).parents[1] / "data/others"
PF = "0000:40:02.0"
SHAPE = fixtures.Shape((fixtures.Switch(gpus=2, pfs=1, vfs=3),))
_NAME = re.compile(r": --replace (\S+) where it is meant")
_KEY = re.compile(r"first add the device settings of these lines to \S+: (.*)")
#: The line of the operator's file with which a refusal begins.
_LINE = re.compile(r"nova-hpc configure: (\S+/nova\.conf):([0-9]+): ")
_OPTIONS = {
    "pci": [*service_settings.PCI, cfg.BoolOpt("report_in_placement", default=False)],
    "filter_scheduler": [cfg.BoolOpt("pci_in_placement", default=False)],
}


class Node:
    """A node of files with a nova.conf, and our commands for it."""

    def __init__(self, root: Path, conf: Path) -> None:
        self.root = root
        self.conf = root / "nova.conf"
        self.conf.write_text(conf.read_text(encoding="utf-8"), encoding="utf-8")
        self.folder = root / "nova.conf.d"
        self.folder.mkdir()
        (root / "etc").mkdir()

    def run(self, kind, *words):
        command = kind(None, None)
        parser = command.get_parser(f"nova-hpc {kind.__name__.lower()}")
        place = ["--root", self.root, "--config-file", self.conf, "--config-dir", self.folder]
        file = self.folder / "node.yaml"
        if kind is Configure or file.exists():
            place += ["--declaration", file]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.run(parser.parse_args(list(map(str, [*place, *words]))))
        return status, out.getvalue(), err.getvalue()

    def configure(self, *words):
        parts = ("--part", "compute", "--part", "common")
        return self.run(Configure, "--write", self.folder, *parts, *words)

    def doctor(self):
        """Check -> findings."""
        _, out, err = self.run(Doctor, "-f", "json")
        assert out, err
        found: dict[str, list[dict[str, str]]] = {}
        for each in json.loads(out)["findings"]:
            found.setdefault(each["check"], []).append(each)
        return found

    def told(self):
        paths = service_settings.config_files_of(list(map(str, self._config())))
        return service_settings.load_options(paths, _OPTIONS)

    def _config(self):
        return [f"--config-file={self.conf}", f"--config-dir={self.folder}"]

    def tags(self, device_spec):
        """Address -> what the entry that counts says, as Nova has parsed it."""
        matcher = whitelist.Whitelist(list(device_spec))
        found = {}
        for function in sysfs.read_sysfs_node(self.root).functions:
            entry = matcher.device_assignable(
                {
                    "address": function.address,
                    "vendor_id": function.vendor_id,
                    "product_id": function.product_id,
                    "parent_addr": function.physical_function,
                    "capabilities": {"vpd": {"card_serial_number": "made up"}},
                }
            )
            if entry is not None:
                found[function.address] = dict(entry.get_tags())
        return found


class OtherToolsTest(DriverTest):
    """Each of the ten."""

    def setUp(self) -> None:
        super().setUp()
        patch = fixtures.fixtures.MonkeyPatch
        # Nova's fake libvirt is as old as Nova takes, and live_migratable wants a newer one.
        for name in ("LIBVIRT", "QEMU"):
            option = f"MIN_VFIO_PCI_VARIANT_{name}_VERSION"
            if hasattr(libvirt_driver, option):
                self.useFixture(patch(f"nova.virt.libvirt.driver.{option}", (1, 0, 0)))
        # As it is on this node: not every single address is that of a physical function.
        self.useFixture(
            patch(
                "nova.pci.utils.is_physical_function", lambda *at: "{}:{}:{}.{}".format(*at) == PF
            )
        )
        self.useFixture(
            patch(
                "nova.pci.utils.get_function_by_ifname",
                lambda name: (PF, True) if name == "enp64s2f0" else (None, False),
            )
        )

    def _until_written(self, node):
        """Do as each refusal says: remove lines, declare keys, give up names; all that was said."""
        said = ""
        words: list[str] = []
        wishes: dict[str, object] = {}
        for _ in range(4):
            before = node.conf.read_text()
            status, out, err = node.configure(*words)
            said += out + err
            self.assertEqual(before, node.conf.read_text())
            if status == 0:
                return said
            assert status == 2, said
            refused = [line for line in err.splitlines() if line.startswith("nova-hpc conf")]
            lines = before.splitlines()
            for line in refused:
                words += ["--replace", found[1]] if (found := _NAME.search(line)) else []
                if (found := _KEY.search(line)) is not None:
                    wishes |= yaml.safe_load(found[1])
                if (found := _LINE.match(line)) is not None:
                    number = int(found[2]) - 1
                    text = before.splitlines()[number].strip()
                    self.assertIn(f":{found[2]}: {text}: ", line)
                    self.assertIn(f"remove {node.conf}:{found[2]} in", line)
                    lines[number] = ""
            node.conf.write_text("".join(f"{line}\n" for line in lines if line))
            if wishes:
                document = {"schema": "nova-hpc/node", "version": 1, **wishes}
                (node.folder / "node.yaml").write_text(yaml.safe_dump(document))
        raise AssertionError(said)

    def _assert_nothing_lost(self, node, before, said):
        """By Nova's parser: the same keys, or they were named."""
        after = node.tags(node.told().pci.device_spec)
        for address, tags in before.items():
            if address not in after:
                self.assertIn(f"{address} is offered", said)
                continue
            for key, value in tags.items():
                now = after[address].get(key)
                if key == "traits":
                    get = pci_placement_translator.get_traits
                    same = get(value) <= get(now)
                elif key == "resource_class":
                    get_class = pci_placement_translator.get_resource_class
                    same = get_class(value, "", "") == get_class(now, "", "")
                else:
                    same = now == value
                if not same:
                    self.assertIn(f"{address}: {key} is", said)
        return after

    def _check(self, name: str, damage=None) -> None:
        entries: list[object] = []
        kept: dict[str, object] = {}

        def before(tree) -> None:
            (tree.devices / PF / "net/enp64s2f0").mkdir(parents=True)
            if damage is not None:
                damage(tree)
            node = Node(tree.root, CONFS / f"{name}.conf")
            kept["node"] = node
            had = node.tags(node.told().pci.device_spec)
            assert len(had) >= 2, had
            kept["had"] = had
            # What is not ours is said by Nova, and what Nova refuses is an error.
            node.conf.write_text(f"{node.conf.read_text()}\n[pci]\nreport_in_placement = true\n")
            found = node.doctor()
            kept["naive"] = found
            node.conf.write_text((CONFS / f"{name}.conf").read_text())
            kept["said"] = self._until_written(node)
            self._assert_nothing_lost(node, had, kept["said"])
            told = node.told()
            self.assertTrue(told.pci.report_in_placement)
            self.flags(alias=list(told.pci.alias), group="pci")
            entries.extend(map(json.loads, spec_entries.split_entries(told.pci.device_spec)))
            status, _, err = node.run(Prepare)
            self.assertEqual(0, status, err)

        self.host("alpha", SHAPE, device_spec=entries, before=before)
        node, had = kept["node"], kept["had"]
        tracked = self.tracked("alpha")
        self.assertTrue(tracked)
        found = node.doctor()
        self.assertNotIn("nova-refuses", found)
        self.assertNotIn("alias-broken", found)
        self.assertNotIn("not-looked", found)
        self.assertNotIn("entry-hidden", found)
        now = node.tags(node.told().pci.device_spec)
        lost = self._assert_nothing_lost(node, had, kept["said"])
        self.assertEqual(now, lost)
        status, out, err = node.configure()
        self.assertEqual((0, "Nothing to do.\n"), (status, out), err)
        self.flags(device_spec=list(node.told().pci.device_spec), group="pci")
        self.restart_compute_service("alpha", keep_hypervisor_state=True)
        found = node.doctor()
        self.assertNotIn("nova-refuses", found)
        kept["found"], kept["after"] = found, now
        return kept

    def test_an_interface(self) -> None:
        kept = self._check("devname")
        self.assertIn("enp64s2f0", kept["naive"]["nova-refuses"][0]["seen"])
        self.assertEqual("tenant1", kept["after"]["0000:40:02.1"]["physical_network"])

    def test_functions_of_a_dpu(self) -> None:
        kept = self._check("dpu")
        for address in ("0000:40:02.1", "0000:40:02.2"):
            tags = kept["after"][address]
            self.assertIsNone(tags["physical_network"])
            self.assertEqual(("true", "vf"), (tags["remote_managed"], tags["hpc_role"]))

    def test_an_adapter_with_its_network(self) -> None:
        kept = self._check("adapter")
        self.assertEqual("physnet1", kept["after"][PF]["physical_network"])

    def test_by_ids(self) -> None:
        kept = self._check("ids")
        self.assertNotIn("alias-type", kept["found"])
        self.assertEqual("true", kept["after"]["0000:40:02.1"]["live_migratable"])

    def test_by_ids_with_the_wrong_type(self) -> None:
        kept = self._check("ids-wrong-type")
        for each in ("naive", "found"):
            self.assertIn("type-PF", kept[each]["alias-type"][0]["seen"])

    def test_wildcards_and_expressions(self) -> None:
        kept = self._check("globs")
        self.assertEqual("CUSTOM_BIG_GPU", kept["after"]["0000:40:00.0"]["resource_class"])
        self.assertEqual("true", kept["after"]["0000:40:02.2"]["trusted"])

    def test_a_list(self) -> None:
        kept = self._check("list")
        self.assertEqual("true", kept["after"]["0000:40:01.0"]["one_time_use"])
        self.assertEqual("physnet1", kept["after"]["0000:40:02.3"]["physical_network"])

    def test_the_old_name_of_the_option(self) -> None:
        kept = self._check("whitelist")
        self.assertEqual("physnet1", kept["after"]["0000:40:02.3"]["physical_network"])

    def test_some_functions_of_an_adapter(self) -> None:
        kept = self._check("some-functions")
        self.assertEqual("physnet2", kept["after"]["0000:40:02.3"]["physical_network"])
        self.assertEqual("7", kept["after"]["0000:40:01.0"]["rack"])
        self.assertEqual("PGPU", kept["after"]["0000:40:01.0"]["resource_class"])

    def test_functions_on_their_vendors_driver(self) -> None:
        def share(tree) -> None:
            for number in (1, 2, 3):
                tree.bind(f"0000:40:02.{number}", "nvidia")

        kept = self._check("vgpu", share)
        for number in (1, 2, 3):
            tags = kept["after"][f"0000:40:02.{number}"]
            self.assertEqual("CUSTOM_VGPU_4C", tags["resource_class"])
            self.assertNotIn("hpc_role", tags)
