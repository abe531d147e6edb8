# SPDX-License-Identifier: Apache-2.0
"""A host that an operator forces (``--availability-zone az:host``), which skips all filters.

The node's own check before the start decides then. A node with Nova's own driver has no such
check, so it is not a host for a server with an ``hpc:`` flavor, forced or not.

No bug is known to be filed: Nova intends it, and forcing is the operator's decision. It
is wrapped because nothing else would detect a misaligned server on such a node.
"""

from __future__ import annotations

from typing import Any, Final

from nova import objects
from nova.scheduler import host_manager
from oslo_log import log as logging

from nova_hpc.from_nova import hosts, rebuilds, server
from nova_hpc.from_nova.gate import Call, Patch, wrap_method
from nova_hpc.from_nova.patches import answers
from nova_hpc.placement import flavor, user_reasons

LOG = logging.getLogger(__name__)

FORCE: Final = Patch(
    "nova.scheduler.host_manager:HostManager.get_filtered_hosts",
    parameters=("self", "hosts", "spec_obj"),
    lines={32: (499, 618), 33: (497, 616), 34: (498, 617)},
    why="A forced host skips all filters, and a node with Nova's own driver checks nothing itself.",
    until="forced hosts go through the filters",
)

_MARK: Final = "hpc_forced"


def install_forced_patch() -> None:
    """Wrap Nova's host manager, so that a forced host does not skip the filter (idempotent)."""
    if not hasattr(host_manager.HostManager.get_filtered_hosts, _MARK):
        wrap_method(host_manager.HostManager, FORCE, _drop_unchecked_hosts)
        setattr(host_manager.HostManager.get_filtered_hosts, _MARK, True)


def _drop_unchecked_hosts(call: Call) -> Any:
    """Wrap Nova's filtering: leave out forced hosts whose node does not check devices.

    Nova is called a second time with only these hosts if none is left. So the log and the reason
    name them only if Nova would have taken them.
    """
    spec = call.given["spec_obj"]
    if not _is_forced(spec):
        return _filter_with_reason(call, spec)
    whole = list(call.given["hosts"])
    out = {
        host: reason for host in whole if (reason := hosts.node_word_of_host(host).out) is not None
    }
    passed_hosts = call(hosts=[host for host in whole if host not in out])
    if passed_hosts or not out:
        return passed_hosts
    for host in call(hosts=list(out)):
        LOG.info(
            "%s, %s is forced, and gets no server of flavor %s: %s",
            host.host,
            host.nodename,
            spec.flavor.flavorid,
            out[host],
        )
        answers.put_down_reason(spec, user_reasons.UNUSABLE)
    return passed_hosts


def _filter_with_reason(call: Call, spec: Any) -> Any:
    """Run Nova's filtering, and store a reason if a rule outside this project leaves no host."""
    if not isinstance(spec, objects.RequestSpec) or not flavor.has_hpc_keys(
        spec.flavor.extra_specs or {}
    ):
        return call()
    whole = list(call.given["hosts"])
    answers.put_down_reason(spec, None)
    passed_hosts = call(hosts=whole)
    if passed_hosts or not whole or answers.reason_put_down_for(spec) is not None:
        return passed_hosts
    never = {host.lower() for host in spec.ignore_hosts or ()}
    left_out = all(host.host.lower() in never for host in whole)
    try:
        wants = server.read_server_task(spec).server.wants
    except Exception as error:
        # The decision reads the request again, and reports its fault.
        LOG.debug("The request cannot be read for its reason: %s", error)
        return passed_hosts
    text = (
        user_reasons.explain_all_left_out(wants)
        if left_out
        else user_reasons.explain_other_rules(wants)
    )
    answers.put_down_reason(spec, text)
    return passed_hosts


def _is_forced(spec: objects.RequestSpec) -> bool:
    return bool(
        (spec.force_hosts or spec.force_nodes)
        and flavor.has_hpc_keys(spec.flavor.extra_specs or {})
        # Nova forces the host of a rebuild, which keeps its devices.
        and not rebuilds.is_own_rebuild(spec)
    )
