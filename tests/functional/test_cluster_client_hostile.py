# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster`` where members of the project have written what Nova takes."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from nova_hpc_client.cluster import hostfiles
from tests.functional.cluster_client import base
from tests.unit import hostile

OTHER = "1d3e5d2a-7a0f-4f0e-9c59-0b54a3b6f7a1"
#: Names that Nova takes, each in all formats. The standard set has the first one.
NAMES = ("template", "option of ssh", "range", "end of markup")


class HostileTest(base.ClusterClientTest):
    def setUp(self) -> None:
        super().setUp()
        self.marker = self._folder / "ran"
        self.create("train", 2)
        self.ids = {each["name"]: each["id"] for each in self.servers()}
        self.second = self.ids["train-2"]

    def rename(self, name: str) -> None:
        self.api.api_put(f"/servers/{self.second}", {"server": {"name": name}})

    def metadata(self, **values: str) -> None:
        self.api.api_post(f"/servers/{self.second}/metadata", {"metadata": values})

    def texts(self) -> dict[str, str]:
        return dict(zip(hostile.TEXTS, hostile.texts(self.marker), strict=True))

    def refused(self, *words: str) -> None:
        said = self.cluster(*words, status=1)
        self.assertEqual("", said.out)
        self.assertIn(f"openstack server set --name NAME {self.second}", said.err)
        self.assertEqual([], hostile.obeyed(said.err))
        self.assertEqual(1, len(said.err.splitlines()), said.err)

    def test_a_name_that_is_none_of_a_host(self) -> None:
        self.check_names(NAMES[:1])

    @pytest.mark.slow
    def test_more_names_that_are_none_of_a_host(self) -> None:
        self.check_names(NAMES[1:])

    def check_names(self, names: Sequence[str]) -> None:
        for what in names:
            self.rename(self.texts()[what])
            for form in (*hostfiles.FORMATS, "value", "csv"):
                self.refused("hosts", "train", "-f", form)
            self.refused("topology", "train", "-f", "slurm")
            for words in (("list", "--long"), ("show", "train"), ("topology", "train")):
                self.assertEqual([], hostile.obeyed(self.cluster(*words).out))
            # What is exact stays so.
            found = self.cluster("hosts", "train", "-f", "json").json
            self.assertEqual({"train-1", self.texts()[what]}, {row["Name"] for row in found})
        self.rename("train-2")
        found = yaml.safe_load(self.cluster("hosts", "train", "-f", "ansible").out)
        self.assertEqual(set(self.ids), set(found["all"]["children"]["train"]["hosts"]))

    def test_a_program_gets_no_such_name(self) -> None:
        program = self._folder / "drain"
        program.write_text(f"#!/bin/sh\ntouch {self.marker}\n")
        program.chmod(0o755)
        for what in ("option of ssh", "short option", "command"):
            self.rename(self.texts()[what])
            self.refused("scale", "train", "--remove", "2", "--drain", str(program))
        self.assertFalse(self.marker.exists())
        self.assertEqual(2, len(self.servers()))

    def test_shells_read_values(self) -> None:
        self.rename(self.texts()["command"])
        out = self.cluster("show", "train", "-f", "shell").out
        words = ["bash", "-euc", 'eval "$1"; printf "%s" "$members"', "bash", out]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        self.assertIn("touch", done.stdout)
        self.assertFalse(self.marker.exists())

    def test_what_is_no_id_of_a_cluster(self) -> None:
        made = self._create_server(name="odd", networks="none")
        for text in (f"../servers/{OTHER}", self.texts()["command"], self.texts()["eraser"]):
            self.api.api_post(
                f"/servers/{made['id']}/metadata", {"metadata": {"hpc_cluster_group": text}}
            )
            self.front.requests.clear()
            (row,) = self.cluster("list", "--long", "-f", "json").json
            self.assertEqual("train", row["Name"])
            said = self.cluster("delete", text, status=1)
            self.assertEqual([], hostile.obeyed(said.err))
            self.assertNotIn("DELETE", " ".join(self.front.requests))
            self.assertNotIn(OTHER, " ".join(self.front.requests))

    def test_a_group_that_is_called_as_no_cluster(self) -> None:
        text = self.texts()["command"]
        made = self.api.post_server_groups({"name": f"hpc:{text} {{}}", "policy": "affinity"})
        rows = self.cluster("list", "--long", "-f", "json").json
        (odd,) = [row for row in rows if row["ID"] == made["id"]]
        self.assertEqual(("?", "UNKNOWN"), (odd["Name"], odd["State"]))
        words = shlex.split(odd["Next"])
        self.assertEqual(["openstack", "hpc", "cluster", "delete", made["id"]], words)
        self.cluster(*words[3:])

    def test_metadata_of_a_member(self) -> None:
        usual = self.inventory()
        for text in ("{{ lookup('pipe', 'id') }}", "x State=DOWN", "\x1b[2J\u202e"):
            said = json.dumps({"v": 1, "leaf": text, "rails": [text]})
            self.metadata(hpc_position=said, hpc_devices=text)
            self.assertEqual(usual, self.inventory())
            out = self.openstack("hpc", "server", "show", self.second).out
            self.assertEqual([], hostile.obeyed(out))

    def inventory(self) -> Any:
        return yaml.safe_load(self.cluster("hosts", "train", "-f", "ansible").out)

    def test_a_flavor_that_metadata_name(self) -> None:
        for member in self.ids.values():
            body = self.api.api_get(f"/servers/{member}/metadata").body["metadata"]
            text = body["hpc_cluster"]
            wish = json.loads(text.partition(":")[2])
            wish |= {"f": f"../servers/{member}", "g": 2}
            said = f"1:{json.dumps(wish, separators=(',', ':'))}"
            self.api.api_post(f"/servers/{member}/metadata", {"metadata": {"hpc_cluster": said}})
        said = self.cluster("scale", "train", "--members", "3", status=1)
        self.assertIn("no flavor is called ../servers/", said.err)
