# SPDX-License-Identifier: Apache-2.0
"""Tells tempest where the tests are, and which options they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oslo_config import cfg
from tempest.test_discover import plugins

GROUP = cfg.OptGroup("nova_hpc", title="nova-hpc")
OPTIONS = [
    cfg.StrOpt("flavor", help="A flavor with hpc: keys that one host of the cloud can serve."),
    cfg.StrOpt("largest_flavor", help="The flavor of the same family with all devices of a host."),
    cfg.StrOpt("gpu_alias", default="gpu", help="The alias of their devices."),
]


class NovaHpcTempestPlugin(plugins.TempestPlugin):
    """The plug-in of tempest."""

    def load_tests(self) -> tuple[str, str]:
        """The folder of the tests, and what is above their package."""
        here = Path(__file__).resolve().parent
        return str(here), str(here.parent)

    def register_opts(self, conf: Any) -> None:
        """Declare the options."""
        conf.register_group(GROUP)
        conf.register_opts(OPTIONS, group=GROUP)

    def get_opt_lists(self) -> list[tuple[str, list[cfg.Opt]]]:
        """The same, for a sample of tempest.conf."""
        return [(GROUP.name, OPTIONS)]
