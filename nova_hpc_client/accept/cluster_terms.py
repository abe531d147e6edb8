# SPDX-License-Identifier: Apache-2.0
"""The members that are measured, and the terms of the measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import attrs

from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_guest.accept.probes import Probe

#: Shows the progress: the present work, the number of steps done, and the number of all steps.
ShowStep = Callable[[str, int, int], None]


@attrs.frozen
class AcceptedHost:
    """A member of the cluster that acceptance measures, and how it is reached.

    :ivar server: id of its server.
    :ivar address: name or address that other members use.
    :ivar problem: the reason why it is not measured; empty if it is.
    :ivar rails: name of each of its networks -> its address there.
    """

    number: int
    name: str
    server: str
    address: str
    remote: RemoteMember
    problem: str = ""
    rails: Mapping[str, str] = attrs.Factory(dict)


@attrs.frozen
class ClusterTerms:
    """The parameters and time limits of a cluster's acceptance measurement.

    :ivar least: rounds that each probe gets before it is judged.
    :ivar budget: seconds for the turns of all members.
    :ivar only: names of the probes to run; empty for all of the tier.
    :ivar own: the user's own probes, which members have as further words of their command.
    :ivar floors: probe -> ratio below which it is slow, instead of the probe's own.
    :ivar busy: measure members even if they are busy.
    :ivar patience: seconds until members without an answer are given up.
    """

    tier: str
    least: int
    budget: float
    only: tuple[str, ...] = ()
    own: tuple[Probe, ...] = ()
    floors: Mapping[str, float] = attrs.Factory(dict)
    busy: bool = False
    patience: float = 0.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
