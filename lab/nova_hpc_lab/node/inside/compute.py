# SPDX-License-Identifier: Apache-2.0
"""nova-compute, loaded while the node is still being prepared.

Importing Nova is most of the time that nova-compute takes to start in an
emulated machine. From the first line of ``main`` on it is the ordinary program
with its ordinary configuration.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

READY = Path("/run/nova-hpc/start-nova-compute")

# This one first: it patches what it has to before all others.
compute = import_module("nova.cmd.compute")
import_module("nova.virt.libvirt.driver")

while not READY.exists():
    time.sleep(0.2)
sys.argv = [
    "nova-compute",
    *("--config-file", "/etc/nova/nova.conf"),
    *("--config-dir", "/etc/nova/nova.conf.d"),
]
sys.exit(compute.main())
