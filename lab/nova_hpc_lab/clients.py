"""The ordinary ``openstack`` command, as a user would type it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from typing import Any, Final

import attrs
from rich.console import Console

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.paths import Paths

CLOUD: Final = "nova-hpc-lab"
_LIMIT: Final = 600.0


@attrs.frozen
class OpenStack:
    """Prints and runs ``openstack`` commands as the lab's administrator."""

    paths: Paths
    console: Console

    def run(self, *words: str) -> Any:
        """Run a command that prints JSON; returns what it printed, if anything.

        :raises LabError: it failed; the text is what it said.
        """
        command = shlex.join(["openstack", *words])
        self.console.print(
            f"$ {command}", style="bold", markup=False, highlight=False, soft_wrap=True
        )
        environ = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        environ |= {
            "OS_CLIENT_CONFIG_FILE": str(self.paths.config / "clouds.yaml"),
            "OS_CLOUD": CLOUD,
        }
        argv = [str(self.paths.venv / "bin" / "openstack"), *words]
        try:
            done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=_LIMIT)
        except (OSError, subprocess.TimeoutExpired) as err:
            raise LabError(f"cannot run {command}: {err}") from err
        if done.returncode:
            raise LabError(f"{command}: {done.stderr.strip() or f'status {done.returncode}'}")
        try:
            return json.loads(done.stdout) if done.stdout.strip() else None
        except ValueError:
            return None
