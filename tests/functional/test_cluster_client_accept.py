# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster accept`` and ``create --accept`` against Nova's own API.

In place of ssh stands a program that prints what members would; it is tried for itself, with
the guest's own command behind it, in ``tests/unit/accept``.
"""

from __future__ import annotations

import copy
import os
import re
import stat
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from nova_hpc_common.wire import member_verdict
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.first_sample import FirstSample, write_first_sample
from nova_hpc_guest.accept.options import SERVED
from nova_hpc_guest.accept.own_probes import read_probe_file
from nova_hpc_guest.accept.sample import Reading, Sample, write_sample
from tests.functional.cluster_client import base

#: Of each three the member that is asked second is slow, until so many have been asked.
_SSH = """#!/bin/sh
cd HOME
echo "$*" >> lines
while [ "$1" != -- ]; do shift; done
case "$3" in *--first*) echo "$2" >> asked; cat first; exit ;; esac
count=$(wc -l < asked); bad=$(sed -n "$(((count - 1) / 3 * 3 + 2))p" asked)
if [ "$2" = "$bad" ] && [ "$count" -le "$(cat until)" ]; then cat slow; else cat good; fi
"""
FACTS = GuestFacts(model="Some CPU", online=(0, 1), allowed=(0, 1))


class AcceptTest(base.ClusterClientTest):
    def setUp(self) -> None:
        super().setUp()
        self.home = Path(self._folder, "members")
        self.home.mkdir()
        program = self.home / "ssh"
        program.write_text(_SSH.replace("HOME", str(self.home)))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.environment = {"PATH": f"{self.home}:{os.environ['PATH']}"}
        first = FirstSample(
            Sample(FACTS, {"clock": Reading(40.0)}), obstacles=dict.fromkeys(SERVED, "no tool")
        )
        self.lay_down("first", write_first_sample(first, None))
        for name, rate in (("good", 1000.0), ("slow", 500.0)):
            self.lay_down(name, write_sample(Sample(FACTS, {"cpu_one": Reading(rate)})))
        self.lay_down("until", "0")
        self._make_port, self.neutron.create_port = self.neutron.create_port, self.create_port

    def create_port(self, body: Any = None) -> dict[str, Any]:
        """As Nova's fixture, which gives all ports one address."""
        port = self._make_port(body)["port"]
        stored = self.neutron._ports[port["id"]]
        address = f"192.168.1.{100 + len(self.neutron._ports)}"
        stored["fixed_ips"] = [{**stored["fixed_ips"][0], "ip_address": address}]
        return {"port": copy.deepcopy(stored)}

    def lay_down(self, name: str, text: str) -> None:
        (self.home / name).write_text(f"{text}\n")

    def verdicts(self) -> dict[str, str]:
        """What the servers' metadata say."""
        verdicts = {}
        for server in self.servers():
            text = server["metadata"].get(member_verdict.KEY)
            if text is not None:
                verdicts[server["name"]] = member_verdict.read_member_verdict(text).verdict
        return verdicts

    @pytest.mark.slow
    def test_all_are_accepted_and_it_is_written_down(self) -> None:
        self.create("train", 3)
        before = {server["name"]: server["metadata"] for server in self.servers()}
        said = self.cluster("accept", "train", "--no-record")
        self.assertIn("verdict of train (quick, 6 rounds): accepted\n", said.out)
        self.assertEqual({}, self.verdicts())
        self.cluster("accept", "train")
        self.assertEqual(dict.fromkeys(before, "accepted"), self.verdicts())
        # Beside what the cluster is.
        for server in self.servers():
            self.assertLessEqual(before[server["name"]].items(), server["metadata"].items())
        shown = self.cluster("show", "train", "-f", "json").json
        self.assertEqual(self.verdicts(), shown["verdicts"])

    def test_the_slow_one_goes_first(self) -> None:
        self.create("train", 3)
        self.lay_down("until", "99")
        rows = self.cluster("accept", "train", "-f", "json", status=1).json
        (bad,) = [row["Member"] for row in rows if row["Verdict"] == "slow"]
        self.assertEqual({"cpu_one 0.50"}, {row["Slow"] for row in rows if row["Member"] == bad})
        self.assertEqual(
            {name: "slow" if name == bad else "accepted" for name in self.verdicts()},
            self.verdicts(),
        )
        said = self.cluster("scale", "train", "--members", "2", "--dry-run", "-f", "json").json
        self.assertEqual([bad], said["Goes"])
        # Without names, the rejected one is made anew.
        before = {server["name"]: server["id"] for server in self.servers()}
        self.cluster("replace", "train")
        after = {server["name"]: server["id"] for server in self.servers()}
        self.assertEqual({bad}, {name for name in after if after[name] != before[name]})
        self.assertNotIn(bad, self.verdicts())

    def test_the_users_own_program_is_measured_as_any_other(self) -> None:
        self.create("train", 3)
        self.lay_down("until", "99")
        for name, rate in (("good", 8.0), ("slow", 4.0)):
            self.lay_down(name, write_sample(Sample(FACTS, {"mine": Reading(rate)})))
        file = self.home / "mine.ini"
        own = ("--probe", str(file), "--only", "mine")
        said = self.cluster("accept", "train", *own, status=1)
        self.assertIn(f"--probe '{file}': No such file or directory", said.err)
        file.write_text(
            "[mine]\ncommand = mine\nfigure = rate (.*)\nunit = x/s\nbetter = higher\nfloor = 0.7"
        )
        said = self.cluster("accept", "train", *own, status=1)
        self.assertIn("mine          0.500 (0.500-0.500) of the rest, floor 0.7: slow", said.out)
        words = " ".join(read_probe_file(str(file)).words)
        lines = (self.home / "lines").read_text().splitlines()
        self.assertEqual([True] * len(lines), [words in line for line in lines])
        self.assertEqual({}, self.verdicts(), "--only writes nothing down")
        said = self.cluster("accept", "train", "--probe", str(file), *own, status=1)
        self.assertIn("--probe: two files have [mine]: rename one", said.err)
        said = self.cluster("accept", "train", "--only", "mine", status=1)
        self.assertIn("--only: 'mine' is not one of cpu_one", said.err)

    def test_other_formats(self) -> None:
        self.create("train", 2)
        said = self.cluster("accept", "train", "-f", "junit", "--no-record")
        self.assertEqual(2, len(ElementTree.fromstring(said.out)))
        said = self.cluster("accept", "train", "-f", "svg", "--no-record")
        self.assertIn("svg", ElementTree.fromstring(said.out).tag)

    def test_a_member_that_is_off_is_a_row(self) -> None:
        self.create("train", 3)
        (server,) = [each for each in self.servers() if each["name"] == "train-2"]
        self.api.post_server_action(server["id"], {"os-stop": None})
        self._wait_for_state_change(server, "SHUTOFF")
        rows = self.cluster("accept", "train", "-f", "json", status=2).json
        reasons = {row["Member"]: row["Reasons"] for row in rows}
        self.assertEqual({"train-1": "", "train-2": "turn: it is SHUTOFF", "train-3": ""}, reasons)
        self.assertEqual("not-measurable", self.verdicts()["train-2"])

    def test_what_cannot_be_compared_is_refused(self) -> None:
        self.create("one", 1)
        said = self.cluster("accept", "one", status=1)
        self.assertIn("run nova-hpc-guest accept in it", said.err)
        said = self.create("two", 1, "--accept", "quick", status=1)
        self.assertIn("there is only one", said.err)
        said = self.create("two", 2, "--accept", "quick", "--no-wait", status=1)
        self.assertIn("leave --no-wait out", said.err)
        said = self.cluster("accept", "one", "--tier", "full", status=1)
        self.assertIn("say --yes", said.err)

    @pytest.mark.slow
    def test_a_new_cluster_is_held_against_floors_of_a_file(self) -> None:
        floors = self.home / "floors"
        floors.write_text('{"cpu_one": 1.5}')
        words = ("--accept", "quick", "--floors", str(floors))
        said = self.create("train", 2, *words, status=1)
        self.assertIn("cpu_one is no ratio from 0 to 1", said.err)
        # Before anything was made.
        self.assertEqual([], self.servers())
        floors.write_text('{"cpu_one": 0.4}')
        self.lay_down("until", "99")
        made = self.create("train", 3, *words).json
        self.assertEqual("ACTIVE", made["state"])
        self.assertEqual(["accepted"] * 3, list(self.verdicts().values()))

    def test_a_new_cluster_has_its_bad_member_replaced(self) -> None:
        self.lay_down("until", "3")
        made = self.create("train", 3, "--accept", "quick").json
        self.assertEqual("ACTIVE", made["state"])
        self.assert_complete("train", [1, 2, 3])
        self.assertEqual(dict.fromkeys(made["members"], "accepted"), self.verdicts())
        # One request for all of them, and one for the one in place of another.
        self.assertEqual(2, self.front.requests.count("POST /v2.1/servers"))

    def test_new_members_have_new_host_keys(self) -> None:
        self.lay_down("until", "3")
        self.create("train", 3, "--accept", "quick", "--ssh-option", "Port=2222")
        lines = (self.home / "lines").read_text().splitlines()
        found = [re.findall(r'Port=2222 .*UserKnownHostsFile="(\S+)"', line) for line in lines]
        # One file before the replacement, another one after it, and none is left.
        files = {each for (each,) in found}
        self.assertEqual(2, len(files))
        self.assertFalse(any(Path(each).exists() for each in files))
        self.assertTrue(all("StrictHostKeyChecking=accept-new" in line for line in lines))
        # Members that are there have keys that the user knows.
        (self.home / "lines").unlink()
        self.cluster("accept", "train", "--no-record")
        self.assertNotIn("KnownHosts", (self.home / "lines").read_text())

    @pytest.mark.slow
    @pytest.mark.slow
    def test_a_member_that_stays_bad_ends_the_new_cluster(self) -> None:
        self.lay_down("until", "99")
        said = self.create("train", 3, "--accept", "quick", status=1)
        self.assertIn("cluster train is not accepted: slow", said.err)
        self.assertIn("had been replaced once before", said.err)
        self.assertIn("nothing is left of the cluster", said.err)
        self.assert_nothing_left()

    def heal(self, name: str) -> base.Said:
        """Let Nova fail a member, and heal the cluster."""
        (server,) = [each for each in self.servers() if each["name"] == name]
        self.admin_api.post_server_action(server["id"], {"os-resetState": {"state": "error"}})
        undrain = self.home / "undrain"
        undrain.write_text(f'#!/bin/sh\necho "$1" >>{self.home}/undrained\n')
        undrain.chmod(0o755)
        words = ("--accept", "quick", "--interval", "0.3", "--force", "--undrain", str(undrain))
        return self.cluster("heal", "train", *words)

    @pytest.mark.slow
    def test_a_new_member_has_to_be_accepted(self) -> None:
        self.create("train", 3)
        self.heal("train-3")
        # Only the new member has a verdict; the others may have jobs.
        self.assertEqual({"train-3": "accepted"}, self.verdicts())
        # A healer begins with all that are well: a dead one may have drained them.
        undrained = lambda: (self.home / "undrained").read_text().split()  # noqa: E731
        self.assertEqual(["train-1", "train-2", "train-3"], undrained())
        (self.home / "undrained").unlink()
        # The first new server is slow, and the second one is not.
        self.lay_down("until", "6")
        said = self.heal("train-2")
        self.assertIn("cluster train is not accepted: slow", said.out)
        self.assertIn("train-2 (slow) is replaced", said.out)
        self.assertEqual({"train-2": "accepted", "train-3": "accepted"}, self.verdicts())
        self.assertEqual(["train-1", "train-3", "train-2"], undrained())
