# SPDX-License-Identifier: Apache-2.0
"""HpcTopologyFilter: the right devices, or a reason.

For a server with an ``hpc:`` flavor the filter chooses the devices on every
host and replaces the host's allocation candidates by the one that names them.
The scheduler claims it, Placement makes it binding and the compute node takes
exactly these devices. All decisions are in ``nova_hpc.placement``.
This file translates, and checks with Nova's own functions whether CPUs and memory
pages fit as well.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nova import exception, objects
from nova.scheduler import filters
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, new_servers, placement_answer, rebuilds, server
from nova_hpc.from_nova import hosts as reader
from nova_hpc.from_nova.patches import answers, claims
from nova_hpc.from_nova.patches import scheduler as scheduler_patches
from nova_hpc.from_nova.placement_answer import PlacementAnswer
from nova_hpc.from_nova.pools import SAMPLES
from nova_hpc.from_nova.profile import CLOUD_PROFILES
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement import user_reasons, withheld
from nova_hpc.placement.grouping import FlavorError, UnknownNameError
from nova_hpc.placement.model import DeviceMiss, Request, Unmet
from nova_hpc.topology import roles
from scheduler_filters import choice, filter_log, shared_memory_hosts
from scheduler_filters.again import ChooseAgain

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)


#: The user's operator reads the same line, and the settings are not secret.
_NOT_SET_UP: Final = "This cloud is not set up for hpc: flavors; ask its operator to {}"


class HpcTopologyFilter(filters.BaseHostFilter):
    """Choose the devices of servers with ``hpc:`` flavors."""

    # A rebuild keeps its devices; there are no candidates to choose from.
    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        #: Why Nova's functions could not be wrapped; "" if they could.
        self._unknown = ""
        try:
            scheduler_patches.install_scheduler_patches()
        except exception.InvalidConfiguration as error:
            self._unknown = str(error)
        for text in (*contract.list_wrong_settings(CONF), *self._strange()):
            LOG.warning("Servers with hpc: flavors will be refused: %s", text)
        for text in contract.list_setting_advice(CONF):
            LOG.info("For hpc: flavors: %s", text)
        #: Roles that are configured, or were seen since the start. Replaced as a whole; the
        #: next request sees a role again if two threads overwrite each other.
        self._known = roles.configured_role_names(CONF.hpc.device_role)

    def _strange(self) -> list[str]:
        """Why this Nova is not supported; [] if it is."""
        return contract.list_release_differences() or ([self._unknown] if self._unknown else [])

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: objects.RequestSpec
    ) -> Iterable[Any]:
        """The hosts that can serve *spec_obj*, each with its one candidate.

        If there are none, the reason is stored for :mod:`nova_hpc.from_nova.patches.answers`.

        :raises nova.exception.NoValidHost: no host can, if this Nova's scheduler is
            not supported and would lose the reason.
        """
        extra_specs = spec_obj.flavor.extra_specs or {}
        shared = hpc_flavor.has_shared_memory_keys(extra_specs)
        if not (shared or hpc_flavor.has_hpc_keys(extra_specs)):
            return filter_obj_list
        if rebuilds.is_own_rebuild(spec_obj):
            return filter_obj_list
        hosts = list(filter_obj_list)
        if not hosts:
            return hosts
        if rebuilds.has_forged_check(spec_obj):
            LOG.error("Server %s is refused: %s", _uuid_of_server(spec_obj), rebuilds.FORGED)
            return _refuse_topology_request(spec_obj, rebuilds.FORGED)
        answers.put_down_reason(spec_obj, None)
        if shared:
            hosts = _keep_giving_hosts(hosts, spec_obj)
            if not hosts or not hpc_flavor.has_hpc_keys(extra_specs):
                return hosts
        claims.put_down_choice(spec_obj, None)
        try:
            return self._filter(hosts, spec_obj)
        except exception.NoValidHost:
            raise
        except Exception:
            LOG.exception("HpcTopologyFilter failed; the server is refused")
            return _refuse_topology_request(spec_obj, "The scheduler could not read the request.")

    def _filter(self, hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
        """The hosts, or a refusal if settings are wrong or this Nova is not supported.

        An existing server may still move on such a Nova.
        """
        wrong = contract.list_wrong_settings(CONF)
        if wrong:
            LOG.error("Servers with hpc: flavors are refused: %s", "; ".join(wrong))
            return _refuse_topology_request(spec, _NOT_SET_UP.format("; ".join(wrong)))
        strange = self._strange()
        if not strange:
            return self._place(hosts, spec)
        if new_servers.is_new_server(spec):
            LOG.error("New servers with hpc: flavors are refused: %s", "; ".join(strange))
            return _refuse_topology_request(
                spec,
                "This cloud's Nova is of a release for which hpc: flavors are not ready; ask its "
                "operator",
            )
        return self._move(hosts, spec, strange)

    def _move(
        self, hosts: Sequence[Any], spec: objects.RequestSpec, strange: Sequence[str]
    ) -> Sequence[Any]:
        """Hosts for an existing server, on a Nova that is not supported.

        Without guarantees: it must be possible to empty a host, and to recover the
        servers of a failed one.
        """
        LOG.warning(
            "A server with an hpc: flavor moves without a promise (%s): %s",
            _uuid_of_server(spec),
            "; ".join(strange),
        )
        try:
            passed_hosts = self._place(hosts, spec)
        except exception.NoValidHost:
            if CONF.hpc.moves_on_unknown_nova != "any":
                raise
            passed_hosts = []
        if passed_hosts or CONF.hpc.moves_on_unknown_nova != "any":
            return passed_hosts
        LOG.warning(
            "Server %s moves to any host, whatever its devices: [hpc]moves_on_unknown_nova is any",
            _uuid_of_server(spec),
        )
        answers.put_down_reason(spec, None)
        return hosts

    def _place(self, hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
        """Choose devices on every host.

        First the request and all hosts are read, because the roles of an alias depend on all
        hosts. Then each host gets its choice. The data of this pass is kept for claims that
        another scheduler wins.
        """
        try:
            task = server.read_server_task(spec)
            answer = placement_answer.answer_of(spec)
            views, misses = _read_all_hosts(hosts, task, answer)
            filter_log.log_unusable_devices(views)
            bound = self._bind(task, views.values())
            request = task.server.request(_add_known_roles(bound, task))
        except server.RequestError as error:
            LOG.error("A server with an hpc: flavor is refused: %s", error)
            return _refuse_topology_request(spec, _NOT_SET_UP.format(error.cure))
        except hpc_roles.RoleConflictError as error:
            LOG.error("Flavor %s is refused: %s", spec.flavor.flavorid, error)
            return _refuse_topology_request(spec, f"Flavor: {error}")
        except UnknownNameError as error:
            # The hosts with such devices may be full: the flavor is not at fault.
            return _refuse_topology_request(spec, str(error))
        except FlavorError as error:
            LOG.info("Flavor %s is refused: %s", spec.flavor.flavorid, error)
            return _refuse_topology_request(spec, f"Flavor: {error}")
        views = {host: reader.bind_view_roles(view, bound) for host, view in views.items()}
        order = choice.ServerOrder.of(spec, task, request, CLOUD_PROFILES.current())
        passed = []
        for host in hosts:
            view = views.get(host)
            if view is None:
                continue
            outcome = view.miss or _call_guarded(
                host, choice.place_devices_on_host, host, order, view
            )
            if outcome is None:
                passed.append(host)
            else:
                misses[host] = withheld.count_withheld_in_miss(outcome, view.counted)
        filter_log.log_rejected_hosts(misses, views, spec, len(passed))
        filter_log.log_unmeasured_hosts(order.work, spec)
        if not passed:
            return _refuse_topology_request(spec, _reason_for_user(request, misses.values(), spec))
        if answer is not None:
            named = {host.uuid: host for host in passed}
            claims.put_down_choice(spec, ChooseAgain(named, order, bound, answer))
        return passed

    def _bind(self, task: server.ServerTask, views: Iterable[reader.HostView]) -> Mapping[str, str]:
        """The roles whose devices the server may have.

        :raises nova_hpc.placement.roles.RoleConflictError: its aliases are ambiguous.
        """
        played = hpc_roles.roles_played_by_hosts(view.pattern.roles for view in views)
        # A role whose devices are all taken still exists.
        if not played.known <= self._known:
            self._known |= played.known
        return hpc_roles.bind_alias_roles(task.server.wants, played, self._known)


def _keep_giving_hosts(hosts: list[Any], spec: objects.RequestSpec) -> list[Any]:
    """The hosts that may offer the server's shared memory; none, with the reason."""
    try:
        giving_hosts = list(shared_memory_hosts.list_giving_hosts(hosts, spec))
    except FlavorError as error:
        return _refuse_topology_request(spec, f"Flavor: {error}")
    return giving_hosts or _refuse_topology_request(spec, shared_memory_hosts.NONE_GIVES)


def _read_all_hosts(
    hosts: Sequence[Any], task: server.ServerTask, answer: PlacementAnswer | None
) -> tuple[dict[Any, reader.HostView], dict[Any, DeviceMiss]]:
    """Read every host; one that cannot be read is a miss.

    :param answer: Placement's free amounts; Placement is queried if None.
    """
    available = reader.Available.of(task, answer)
    views: dict[Any, reader.HostView] = {}
    misses: dict[Any, DeviceMiss] = {}
    # Placement is queried again for each server that has ports with bandwidth.
    same = None if answer is None or available.bandwidth else (answer, task.matching)
    for host in hosts:
        view = placement_answer.recall_view(host, same)
        if view is None:
            view = _call_guarded(
                host, reader.read_host, host, task, available.devices, available.bandwidth
            )
        if isinstance(view, DeviceMiss):
            misses[host] = view
        else:
            views[host] = view
            placement_answer.keep_view(host, same, view)
    return views, misses


def _call_guarded(host: Any, function: Any, *arguments: Any) -> Any:
    """Call *function*; an exception makes a miss of only this host."""
    try:
        return function(*arguments)
    except Exception as error:
        where = f"{type(error).__name__} in {function.__name__}"
        filter_log.log_broken_host(host, where, error)
        return DeviceMiss(operator=f"{where}: {error}", user="a node's state could not be read")


def _add_known_roles(bound: Mapping[str, str], task: server.ServerTask) -> dict[str, str]:
    """The roles of all wants that have one, even if all of their devices are in use."""
    missing = [device for device in task.devices if device.want.key not in bound]
    seen = {device.want.key: SAMPLES.role_of(device) for device in missing}
    return {want: role for want, role in seen.items() if role is not None} | dict(bound)


def _reason_for_user(
    request: Request, misses: Iterable[DeviceMiss], spec: objects.RequestSpec
) -> str:
    """Why no host is left: no name of a host, no address, and by default no count."""
    all_misses = list(misses)
    if not CONF.hpc.disclose_capacity:
        asked = user_reasons.AskedHosts(
            unusable=any(miss.unmet is Unmet.OTHER for miss in all_misses),
            cut=answers.is_answer_cut(spec),
            left_out=bool("ignore_hosts" in spec and spec.ignore_hosts),
        )
        return user_reasons.refusal_sentence(
            request, user_reasons.nearest_unmet_wish(all_misses), asked
        )
    counter = collections.Counter(miss.user for miss in all_misses)
    parts = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} of {len(all_misses)} nodes: {text}" for text, count in parts)


def _refuse_topology_request(spec: objects.RequestSpec, reason: str) -> list[Any]:
    """No host; the reason is stored for the answer.

    Without the wraps only an exception brings the reason to the user. It would leave the
    claims of earlier servers of the same request behind, because only Nova's own code path
    returns them. So there is no reason once one of them is claimed.
    """
    LOG.info("HpcTopologyFilter finds no host for server %s: %s", _uuid_of_server(spec), reason)
    groups = spec.requested_resources if "requested_resources" in spec else None
    # The providers of a server that moves are on its present host.
    several = answers.count_asked_servers(spec) > 1
    claimed = several and any(group.provider_uuids for group in groups or ())
    if claimed:
        reason = f"Not for every server of the request: {reason}"
    answers.put_down_reason(spec, reason)
    if answers.are_answers_installed() or claimed:
        return []
    raise exception.NoValidHost(reason=answers.shorten_fault_reason(reason))


def _uuid_of_server(spec: objects.RequestSpec) -> str | None:
    return spec.instance_uuid if "instance_uuid" in spec else None
