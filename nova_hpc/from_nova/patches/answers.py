# SPDX-License-Identifier: Apache-2.0
"""The scheduler's answer if there is no host for a server with an ``hpc:`` flavor.

A filter may raise the exception that shows the user the reason. Then Nova neither returns the
claims of earlier servers of the same request, nor logs which filter removed the last host. So
the filter answers like any other, with no hosts, and stores its reason on the request. Nova's
own exception for a missing host then includes it.

Placement may have no candidate for all that a server requests. Then no filter runs, and Nova
does not report which part was missing.

No bug is known to be filed: Nova has no hook here; this is not a bug. A filter answers yes or
no, and no plug-in stands between Placement's answer and the user.
"""

from __future__ import annotations

from typing import Any, Final

import oslo_messaging as messaging
from nova import exception, objects
from nova.scheduler import manager
from oslo_config import cfg
from oslo_log import log as logging
from oslo_messaging.rpc.dispatcher import ExpectedException

from nova_hpc.from_nova import (
    hosts,
    live_moves,
    placement_answer,
    server,
    shortage,
    withheld,
)
from nova_hpc.from_nova.full_collections import FULL_COLLECTIONS
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back
from nova_hpc.from_nova.patches import candidate_question, claims
from nova_hpc.placement import flavor, user_reasons
from nova_hpc.placement.grouping import FlavorError, UnknownNameError
from nova_hpc.placement.shortage import Shortage
from nova_hpc.wire.stats import StatsDocument

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

_MANAGER: Final = "nova.scheduler.manager:SchedulerManager"
SELECT: Final = Patch(
    f"{_MANAGER}.select_destinations",
    parameters=("self", "context", "spec_obj"),
    lines={32: (159, 279), 33: (182, 302), 34: (187, 307)},
    why="Where Placement has no candidate Nova answers without a reason, and no filter runs.",
    until="Placement returns the reason of an empty answer, or Nova calls a hook",
)
DECIDE: Final = Patch(
    f"{_MANAGER}._select_destinations",
    parameters=(
        *("self", "context", "spec_obj", "instance_uuids"),
        *("alloc_reqs_by_rp_uuid", "provider_summaries"),
    ),
    lines={32: (281, 309), 33: (304, 332), 34: (309, 337)},
    why="A filter can give no reason with its answer, and no message warns that "
    "[scheduler]max_placement_results has hidden hosts.",
    until="a filter can return its reason, and Nova warns of an answer that was cut off",
)

#: A fault's message holds 255 characters, Nova's own text included.
_LONGEST: Final = 220
_MARK: Final = "hpc_answers"
#: On a request specification: the reason of the filter that ran last.
_REASON: Final = "_hpc_reason"
#: Also there: the number of servers, and whether Placement's answer was cut off.
_SERVERS: Final = "_hpc_servers"
_CUT: Final = "_hpc_cut"


def install_answers_patches() -> None:
    """Wrap the scheduler's functions that return the reason of a refusal.

    Nova's classes are wrapped, because the filters are made before there is an object of them.
    """
    for patch, around in ((SELECT, _select_with_reason), (DECIDE, _decide_with_reason)):
        if not hasattr(getattr(manager.SchedulerManager, patch.name), _MARK):
            wrap_method(manager.SchedulerManager, patch, around)
            setattr(getattr(manager.SchedulerManager, patch.name), _MARK, True)


def are_answers_installed() -> bool:
    """Whether the wraps are installed, so that a stored reason reaches the user."""
    return hasattr(manager.SchedulerManager._select_destinations, _MARK)


def put_down_reason(spec: objects.RequestSpec, reason: str | None) -> None:
    """Store on *spec* why no host is left for it; None if some are left."""
    setattr(spec, _REASON, None if reason is None else shorten_fault_reason(reason))


def refuse_request(spec: objects.RequestSpec, reason: str, *, placed: bool = False) -> list[Any]:
    """Refuse *spec* as a filter: no host; the reason is stored for the answer.

    Without the wraps only an exception brings the reason to the user. It would leave the
    claims of earlier servers of the same request behind, because only Nova's own code path
    returns them. So there is no exception once one of them is claimed.

    :param placed: the filter has a record of earlier servers of the request.
    :raises nova.exception.NoValidHost: without the wraps, if nothing is claimed yet.
    """
    groups = spec.requested_resources if "requested_resources" in spec else None
    # The providers of a server that moves are on its present host.
    several = count_asked_servers(spec) > 1
    claimed = several and (placed or any(group.provider_uuids for group in groups or ()))
    if claimed:
        reason = f"Not for every server of the request: {reason}"
    put_down_reason(spec, reason)
    if are_answers_installed() or claimed:
        return []
    raise exception.NoValidHost(reason=shorten_fault_reason(reason))


def reason_put_down_for(spec: objects.RequestSpec) -> str | None:
    """Return the reason for a refusal that was stored on *spec*; None if there is none."""
    reason: str | None = getattr(spec, _REASON, None)
    return reason


def shorten_fault_reason(reason: str) -> str:
    """Cut *reason* to the length that fits into a server's fault; the cut end becomes ``...``."""
    return reason if len(reason) <= _LONGEST else reason[: _LONGEST - 3] + "..."


def count_asked_servers(spec: objects.RequestSpec) -> int:
    """Return the number of servers of the request that need hosts now."""
    count: int | None = getattr(spec, _SERVERS, None)
    if count is not None:
        return count
    # For a server that moves, it is the number with which it was created.
    return int(spec.num_instances) if "num_instances" in spec else 1


def is_answer_cut(spec: objects.RequestSpec) -> bool:
    """Whether Placement's answer for *spec* was cut off, and hosts may be missing in it."""
    return bool(getattr(spec, _CUT, False))


def _decide_with_reason(call: Call) -> Any:
    """Wrap Nova's decision about hosts: its refusal gets the filter's reason.

    Placement's answer lies on the request specification while the filters run.
    """
    spec = call.given["spec_obj"]
    if _is_hpc_request(spec):
        uuids = call.given["instance_uuids"]
        setattr(spec, _SERVERS, len(uuids) if uuids else None)
        setattr(spec, _CUT, _reaches_limit(call))
        _warn_of_limit(call, spec)
    elif not (_is_fabric_request(spec) or _is_shared_request(spec)):
        return call()
    placement_answer.keep_answer(spec, call.given["provider_summaries"])
    try:
        return call()
    except exception.NoValidHost as error:
        reason = reason_put_down_for(spec)
        if reason is None:
            raise
        raise exception.NoValidHost(reason=reason) from error
    finally:
        # A specification has reference cycles (each of its lists refers to its owner). So all
        # host states and the answer of a request would stay until a full pass of the collector.
        placement_answer.keep_answer(spec, None)
        claims.put_down_choice(spec, None)


def _select_with_reason(call: Call) -> Any:
    """Wrap Nova's selection of hosts: its refusal without candidates gets a reason.

    The filters never run then. So Placement is queried for the wishes that no host meets.
    """
    asked_spec = call.given["spec_obj"]
    try:
        if not _is_hpc_request(asked_spec):
            return call()
        refusal = live_moves.refusal_of_request(call.given["context"], asked_spec)
        if refusal is not None:
            _raise_no_valid_host(refusal)
        with FULL_COLLECTIONS.put_off(), candidate_question.serve_question(asked_spec):
            return call()
    except ExpectedException as expected:
        # Nova's decorator raises it (oslo_messaging/rpc/server.py).
        error = expected.exc_info[1]
        spec = call.given["spec_obj"]
        # The one place with an empty reason: scheduler/manager.py:296 of release 34.
        if not isinstance(error, exception.NoValidHost) or error.kwargs.get("reason") != "":
            raise
        if not _is_hpc_request(spec):
            raise
        reason = _explain_missing_candidates(call.given["self"], call.given["context"], spec)
        if reason is None:
            raise
        _raise_no_valid_host(reason)


@messaging.expected_exceptions(exception.NoValidHost)
def _raise_no_valid_host(reason: str) -> None:
    raise exception.NoValidHost(reason=shorten_fault_reason(reason))


def _is_hpc_request(spec: Any) -> bool:
    return isinstance(spec, objects.RequestSpec) and flavor.has_hpc_keys(
        spec.flavor.extra_specs or {}
    )


def _is_fabric_request(spec: Any) -> bool:
    return isinstance(spec, objects.RequestSpec) and flavor.has_fabric_keys(
        spec.flavor.extra_specs or {}
    )


def _is_shared_request(spec: Any) -> bool:
    return isinstance(spec, objects.RequestSpec) and flavor.has_shared_memory_keys(
        spec.flavor.extra_specs or {}
    )


def _explain_missing_candidates(this: Any, context: Any, spec: objects.RequestSpec) -> str | None:
    """Return a sentence for the user if Placement has no candidate; else None."""
    try:
        task = server.read_server_task(spec)
        request_shortage = _log_shortage(this, context, spec, task)
        # No host ever fits a wrong flavor, whatever is free.
        _check_flavor_of_task(task)
    except FlavorError as error:
        return f"Flavor: {error}"
    except Exception:
        LOG.exception("The reason why Placement has no candidates is unknown")
        return None
    reason = user_reasons.explain_unplaced(request_shortage, task.server.wants)
    if request_shortage is None or not CONF.hpc.disclose_capacity:
        return reason
    return reason + _describe_nearest_host(this, context, spec, task, request_shortage)


def _describe_nearest_host(
    this: Any, context: Any, spec: objects.RequestSpec, task: server.ServerTask, shortage: Shortage
) -> str:
    """Describe the nearest host's resources for users who may see them: no name, no address.

    :returns: the end of a sentence; "" if no host is near.
    """
    host = shortage.nearest
    if host is None:
        return ""
    counted = withheld.count_withheld_by_alias(_read_stats_of_host(this, context, spec, host), task)
    short = shortage.short_of(host, counted)
    return f"; the nearest has {short}" if short else ""


def _check_flavor_of_task(task: server.ServerTask) -> None:
    """Refuse a flavor that contradicts itself.

    :raises nova_hpc.placement.grouping.FlavorError: the flavor contradicts itself.
    """
    try:
        task.server.request({})
    except UnknownNameError:
        # It may be a role whose hosts are full.
        LOG.debug("A name in hpc:group may be a role of devices that are all in use")


def _log_shortage(
    this: Any, context: Any, spec: objects.RequestSpec, task: server.ServerTask
) -> Shortage | None:
    """Find and log why there is no candidate; None if Placement cannot be queried."""
    name, uuid = spec.flavor.flavorid, spec.instance_uuid if "instance_uuid" in spec else None
    try:
        request_shortage = shortage.ask_for_shortage(context, spec, task, this.host_manager)
    except shortage.ShortageUnansweredError as error:
        if LOG_THROTTLE.due(("no answer", name)) is not None:
            LOG.warning("Why Placement has no candidates for flavor %s is unknown: %s", name, error)
        return None
    # The same flavor may be refused for another cause the next time.
    held = LOG_THROTTLE.due(
        ("no candidates", name, tuple(map(str, sum(request_shortage.causes, ()))))
    )
    if held is not None:
        host = request_shortage.nearest
        document = _read_stats_of_host(this, context, spec, host)
        LOG.info(
            "Placement has no candidate for flavor %s (server %s)%s: requested are %s; free are "
            "%s; %s",
            name,
            uuid,
            format_held_back(held),
            request_shortage.asked(),
            request_shortage.have(),
            request_shortage.why(
                _name_of_host(host),
                document.withheld if document else {},
                withheld.count_withheld_by_alias(document, task),
            ),
        )
    return request_shortage


def _name_of_host(host: str | None) -> str:
    try:
        return "" if host is None else shortage.provider_name_of(host)
    except shortage.ShortageUnansweredError:
        return str(host)


def _read_stats_of_host(
    this: Any, context: Any, spec: objects.RequestSpec, host: str | None
) -> StatsDocument | None:
    """Read the stats document of a host's node; None if they cannot be read."""
    if host is None:
        return None
    try:
        states = this.host_manager.get_host_states_by_uuids(context.elevated(), [host], spec)
        documents = [hosts.node_word_of_host(state).document for state in states]
    except Exception as error:
        LOG.debug("The withheld devices of host %s could not be read: %s", host, error)
        return None
    return next((document for document in documents if document is not None), None)


def _reaches_limit(call: Call) -> bool:
    listed = call.given["alloc_reqs_by_rp_uuid"] or {}
    candidates = {id(candidate) for each_list in listed.values() for candidate in each_list}
    return len(candidates) >= int(CONF.scheduler.max_placement_results)


def _warn_of_limit(call: Call, spec: objects.RequestSpec) -> None:
    """Warn if Placement's answer was cut off, so that hosts are missing in it."""
    if not is_answer_cut(spec):
        return
    limit = CONF.scheduler.max_placement_results
    held = LOG_THROTTLE.due(("limit", spec.flavor.flavorid))
    if held is None:
        return
    try:
        task = server.read_server_task(spec)
        this = call.given["self"]
        fitting = shortage.ask_for_shortage(
            call.given["context"], spec, task, this.host_manager
        ).fitting
    except Exception as error:
        LOG.warning("How many hosts [scheduler]max_placement_results hides is unknown: %s", error)
        return
    summaries = call.given["provider_summaries"] or {}
    hidden = fitting - {summary.get("root_provider_uuid") for summary in summaries.values()}
    if hidden:
        LOG.warning(
            "Placement's answer for flavor %s was cut off at %d candidates%s: %d of the %d hosts "
            "with enough free devices, CPUs and memory are not in it. Set [scheduler]"
            "max_placement_results, and for Placement [placement]max_allocation_candidates, to "
            "at least %d, with [placement]allocation_candidates_generation_strategy = "
            "breadth-first",
            spec.flavor.flavorid,
            limit,
            format_held_back(held),
            len(hidden),
            len(fitting),
            len(fitting),
        )
