# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the treatment of devices with a health sign."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.FloatOpt(
        "suspect_retry",
        default=60.0,
        min=0.0,
        help="""
Seconds that a suspect device waits for its second try. A device with a symptom is
not offered and tried at the next periodic update; when it is ill again it waits
so long, and each further time twice as long as before.

Related options:

* ``[hpc]suspect_retry_most``
* ``[hpc]suspect_tries``
* ``[hpc]suspect_forgive``
""",
    ),
    cfg.FloatOpt(
        "suspect_retry_most",
        default=900.0,
        min=0.0,
        help="""
The most seconds that a suspect device waits for its next try: a healthy device is
never out of service for longer, whatever it did before.
""",
    ),
    cfg.IntOpt(
        "suspect_tries",
        default=8,
        min=2,
        help="""
Number of checks in which a suspect device may be found faulty until it is quarantined and needs
an operator. Only symptoms of the device itself count: it does not answer, has lost its addresses,
differs from its baseline, or reports errors. Symptoms that come and go with the set-up of the
host (a device that is away, an IOMMU group, the width of a link, the number of virtual functions)
are tried for ever. With the defaults eight tries take 45 minutes.
""",
    ),
    cfg.FloatOpt(
        "suspect_forgive",
        default=3600.0,
        min=0.0,
        help="""
Seconds for which a device has to be well until one of its tries is forgotten. One
that is ill again and again within that time waits longer each time.
""",
    ),
    cfg.FloatOpt(
        "suspect_share",
        default=0.25,
        min=0.0,
        max=1.0,
        help="""
Which part of a role's devices of a node may be withheld by suspicion alone: errors
that a guest may have provoked, a narrow link, another number of virtual functions.
It is never less than one device. Beyond that the node raises an alarm in its log
and in ``stats['hpc']``, and leaves further devices as they are. A device that is
away, does not answer, has changed or could not be cleaned is always withheld.
""",
    ),
    cfg.FloatOpt(
        "errors_per_hour",
        default=1.0,
        min=0.0,
        help="""
How many uncorrected errors (AER, fatal and nonfatal together) a device may report
in an hour without becoming suspect. They are counted from its last clean; a time
of less than an hour counts as one.
""",
    ),
    cfg.FloatOpt(
        "keep_vanished",
        default=7 * 24 * 3600.0,
        min=0.0,
        help="""
Seconds for which the resource provider of a device that has vanished is kept in Placement,
reserved as a whole: a card that is exchanged within that time comes back to the UUID, the traits
and the aggregates that it had. A provider with an allocation is kept for longer. 0 gives it up at
the update after the one that misses it.
""",
    ),
    cfg.FloatOpt(
        "model_share",
        default=0.5,
        min=0.0,
        max=1.0,
        help="""
Which part of a node's free devices of one model, and two at least, has to change in
the same way until that is taken for one event, as an update of firmware or driver
is. Such devices are suspect and never quarantined for it, until an operator accepts
the change with ``nova-hpc device accept``.
""",
    ),
]
