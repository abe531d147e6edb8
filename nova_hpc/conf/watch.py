# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the watch over devices in use."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.FloatOpt(
        "watch_interval",
        default=15.0,
        min=0.0,
        max=25.0,
        help="""
Seconds between two looks at the devices that servers have. Two looks in a row that
show a fault add a tag and an instance action to the server, so its owner learns of it
within a minute. 0 switches the watch off. Looks change nothing at a device.

Related options:

* ``[hpc]errors_per_hour``
* ``[hpc]watch_error_file``
""",
    ),
    cfg.StrOpt(
        "watch_error_file",
        default="",
        help="""
A file in the format of node_exporter's textfile collector, with the errors that
drivers of the host report of devices in use. A label of each line has the PCI
address of a device as its value. An empty value, or a file that is missing, means
that such errors are unknown.

Related options:

* ``[hpc]watch_error_metric``
""",
    ),
    cfg.StrOpt(
        "watch_error_metric",
        default="gpu_driver_errors_total",
        help="""
A regular expression for the whole names of the metrics in
``[hpc]watch_error_file`` that count errors. They have to be counters: a growth by
one is a fault of the device.
""",
    ),
]
