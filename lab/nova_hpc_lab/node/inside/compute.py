# SPDX-License-Identifier: Apache-2.0
"""Loads nova-compute while the node is still being prepared.

In an emulated machine, imports take most of nova-compute's start time. From the first line of
``main`` on, it is the ordinary program with its ordinary configuration.
"""

import sys
import time
from importlib import import_module
from pathlib import Path

READY = Path("/run/nova-hpc/start-nova-compute")

# This module is imported first, because it applies patches before all other imports.
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
