# SPDX-License-Identifier: Apache-2.0
"""A claim that another scheduler has won: other devices of the same host.

Nova gives a host up once its first allocation candidate cannot be claimed. The candidate names
devices, so that may lose a host with others that are just as good. With packing, several
schedulers fill the same host, and all but one lose it. So the filter chooses again on this host,
from Placement's present data, and the claim is tried again.

No bug is known to be filed; a note in Nova's own scheduler/manager.py mentions that the other
candidates are not tried. A filter cannot do it: it has answered before Nova claims.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nova import objects
from nova.scheduler import utils
from oslo_log import log as logging

from nova_hpc.from_nova.contention import CONTENTION
from nova_hpc.from_nova.gate import Call, Patch, wrap_method

LOG = logging.getLogger(__name__)

CLAIM: Final = Patch(
    "nova.scheduler.utils:claim_resources",
    parameters=("ctx", "client", "spec_obj", "instance_uuid", "alloc_req"),
    lines={32: (1276, 1332), 33: (1277, 1333), 34: (1316, 1372)},
    why="Only the first allocation candidate of a host is claimed; where another scheduler has "
    "one of its devices, the host is lost, whatever else is free there.",
    until="Nova tries the other candidates of a host (the note in its scheduler/manager.py)",
)

_MARK: Final = "hpc_claims"
#: On a request specification: chooses other devices for a candidate.
_AGAIN: Final = "_hpc_choose_again"
#: How often devices are chosen again on one host. After so many losses another host is better.
_MOST: Final = 3

#: Changes a candidate in place, so that Nova continues with the new claim. Returns False if no
#: other devices could be claimed.
ChooseAgain = Callable[[dict[str, Any]], bool]


def install_claims_patch() -> None:
    """Wrap Nova's claim, so that a lost claim is repeated with other devices (idempotent).

    The scheduler looks the function up in its module each time.
    """
    if not hasattr(utils.claim_resources, _MARK):
        wrap_method(utils, CLAIM, _claim_with_retries)
        setattr(utils.claim_resources, _MARK, True)


def put_down_choice(spec: objects.RequestSpec, choose: ChooseAgain | None) -> None:
    """Store on *spec* how devices are chosen again after a lost claim; None to keep Nova's way."""
    setattr(spec, _AGAIN, choose)


def _claim_with_retries(call: Call) -> Any:
    """Wrap Nova's claim: repeat it with other devices of the same host if it is lost.

    Each win and each loss also changes the number of hosts that later servers choose from.
    """
    claimed = call()
    choose: ChooseAgain | None = getattr(call.given["spec_obj"], _AGAIN, None)
    if choose is None:
        return claimed
    if claimed:
        CONTENTION.won()
    tries = 0
    while not claimed and tries < _MOST:
        tries += 1
        CONTENTION.lost()
        try:
            if not choose(call.given["alloc_req"]):
                return claimed
        except Exception:
            # Nova continues with the next host, as without this wrap.
            LOG.exception("Other devices could not be chosen after a claim was lost")
            return claimed
        LOG.debug(
            "Server %s: the devices were claimed by another; trying others of the same host",
            call.given["instance_uuid"],
        )
        claimed = call()
    return claimed
