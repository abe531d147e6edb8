# SPDX-License-Identifier: Apache-2.0
"""A check for sites that have ReFrame: is each node of a partition as fast as it should be?

    reframe -c /etc/nova-hpc/reframe/nova_hpc_accept_check.py -r \
        --distribute -S NovaHpcAccept.baseline=/shared/good.json

Nodes need nova-hpc-guest and its tools. It runs alone on its node. What it measured is shown by
--performance-report, and what it found is in the reason of a failure. ReFrame's own references
are not needed: the verdict comes from intervals, against the baseline or the node itself.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.builtins import (
    performance_function,
    run_before,
    sanity_function,
    variable,
)


@rfm.simple_test
class NovaHpcAccept(rfm.RunOnlyRegressionTest):
    """nova-hpc-guest accept on one node."""

    descr = "Is this node as fast as it should be, and if not, by which cause?"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "nova-hpc-guest"
    num_tasks = 1
    exclusive_access = True
    time_limit = "15m"
    #: quick, or full, which takes up to two hours: set time_limit as well.
    tier = variable(str, value="quick")
    #: What nova-hpc-guest accept --save-baseline wrote on a good node; empty: the node itself.
    baseline = variable(str, value="")
    #: More options of nova-hpc-guest accept, with commas in between: --peer=HOST,--budget=600.
    more_options = variable(typ.List[str], value=[])

    @run_before("run")
    def set_options(self):
        """Have it print its document; its exit status says no more than that does."""
        self.executable_opts = ["accept", "--format", "json", "--tier", self.tier]
        if self.tier == "full":
            self.executable_opts.append("--yes")
        if self.baseline:
            self.executable_opts += ["--baseline", self.baseline]
        self.executable_opts += self.more_options

    @sanity_function
    def assert_accepted(self):
        """Accepted; else the causes, or why it was not measured."""
        result = self.read_result()
        verdict = result.get("verdict", "it printed no result")
        return sn.assert_true(verdict == "accepted", msg=f"{verdict}: {self.list_reasons(result)}")

    @run_before("performance")
    def show_probes(self):
        """One performance variable a probe."""
        for probe in self.read_result().get("measured", []):
            self.perf_variables[probe["probe"]] = self.take_value(probe["median"], probe["unit"])

    def take_value(self, value, unit):
        """A value as ReFrame has it."""

        @performance_function(unit)
        def value_of(_):
            return value

        return value_of(self)

    def read_result(self):
        """The document; empty where there is none."""
        text = Path(self.stagedir, self.stdout.evaluate()).read_text(errors="replace")
        start = text.find("{")
        try:
            return json.JSONDecoder().raw_decode(text, start)[0] if start >= 0 else {}
        except ValueError:
            return {}

    @staticmethod
    def list_reasons(result):
        """What was found, in one line."""
        refused = result.get("refused") or {}
        reasons = [refused["text"]] if "text" in refused else []
        findings = result.get("promise", {}).get("findings", [])
        reasons += [finding["text"] for finding in findings if finding.get("wrong")]
        reasons += [f"{cause['cause']}: {cause['says']}" for cause in result.get("causes", [])]
        reasons += [f"no cause found for {probe}" for probe in result.get("unexplained", [])]
        reasons += [f"{probe}: {why}" for probe, why in result.get("failed", {}).items()]
        return "; ".join(reasons) or "see its output"
