# SPDX-License-Identifier: Apache-2.0
"""What only root may do, through a real daemon of oslo.privsep."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tenancy.hygiene_node import GPU, OTHER, config, make

# In a process of its own: the daemon is a fork of it.
SCRIPT = f"""\
import os, sys
from pathlib import Path
from oslo_config import cfg
from oslo_privsep import priv_context
from nova_hpc.tenancy.hygiene.reset import ResetError
from virt_driver_patches import privileged

root = Path(sys.argv[1])
cfg.CONF([], project="nova")
privileged.default.start(priv_context.Method.FORK)
privileged.reset(root, "{GPU}", 20.0, root / "locks")
try:
    privileged.reset(root, "{OTHER}", 1.0, root / "locks")
except ResetError as error:
    print(error)
found = privileged.read_configs(root, ["{GPU}", "0000:99:00.0", "../../etc"])
print(sorted(found), len(found["{GPU}"]), found["{GPU}"].hex()[:16])
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the daemon by itself")
def test_reset_and_reading(tmp_path: Path) -> None:
    node = make(tmp_path)
    node.hang(OTHER)
    argv = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "it did not answer within 1 seconds",
        f"['{GPU}', '0000:99:00.0'] 4096 {config().hex()[:16]}",
    ]
    assert node.resets(GPU)


REFUSED = """\
import os
import nova.conf
from nova import exception
from nova_hpc import conf as hpc_conf
from virt_driver_patches import privileged
from virt_driver_patches.driver.reading import Source
from virt_driver_patches.driver.tenancy import steps_of

CONF = nova.conf.CONF
CONF([], project="nova")
hpc_conf.register(CONF)
# As with nova-rootwrap that knows no filter for the helper.
CONF.set_override("helper_command", "false", group="nova_hpc_privileged")
os.geteuid = lambda: 1000
try:
    list(steps_of(CONF, Source.from_config(CONF)))
except exception.InvalidConfiguration as error:
    print(error)
"""


def test_a_service_that_may_not_is_refused() -> None:
    argv = [sys.executable, "-W", "ignore", "-c", REFUSED]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "copy etc/rootwrap.d/nova-hpc.filters" in done.stdout
    assert "[hpc]clean_devices = False" in done.stdout
