# SPDX-License-Identifier: Apache-2.0
"""HpcTopologyFilter: the right devices, or a reason.

For a server with an ``hpc:`` flavor the filter chooses the devices on every
host and replaces the host's allocation candidates by the one that names them.
The scheduler claims it, Placement makes it binding and the compute node takes
exactly these devices. All decisions are in ``nova_hpc.placement``.
This file translates, and checks with Nova's own functions whether CPUs and memory
pages fit as well.

A pass has three phases. The filter reads the request and all hosts (:class:`TopologyFacts`).
:func:`choose_on_all_hosts` decides, and changes no host state (:class:`TopologyAnswer`).
:func:`_give_answer` hands the decision to Nova and to the log.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
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
from nova_hpc.placement.model import DeviceMiss, Unmet
from nova_hpc.topology import roles
from scheduler_filters import choice, filter_log, shared_memory_hosts
from scheduler_filters.again import ChooseAgain

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)


#: The user's operator reads the same line, and the settings are not secret.
_NOT_SET_UP: Final = "This cloud is not set up for hpc: flavors; contact its operator to {}"


class HpcTopologyFilter(filters.BaseHostFilter):
    """Filters hosts for ``hpc:`` flavors, and chooses the exact devices on each host that
    passes.
    """

    # A rebuild keeps its devices; there are no candidates to choose from.
    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        #: Why Nova's functions could not be wrapped; [] if they could.
        self._unknown = scheduler_patches.try_scheduler_patches()
        strange = contract.list_release_differences() or self._unknown
        for text in (*contract.list_wrong_settings(CONF), *strange):
            LOG.warning("Servers with hpc: flavors will be refused: %s", text)
        for text in contract.list_setting_advice(CONF):
            LOG.info("For hpc: flavors: %s", text)
        #: Roles that are configured, or were seen since the start.
        self._known = roles.configured_role_names(CONF.hpc.device_role)
        self._lock = threading.Lock()

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: objects.RequestSpec
    ) -> Iterable[Any]:
        """Return the hosts that can serve *spec_obj*, each with one allocation candidate.

        If there are none, the reason is stored for :mod:`nova_hpc.from_nova.patches.answers`.

        :raises nova.exception.NoValidHost: no host can, if this Nova's scheduler is
            not supported and would lose the reason.
        """
        extra_specs = spec_obj.flavor.extra_specs or {}
        if not (
            hpc_flavor.has_shared_memory_keys(extra_specs) or hpc_flavor.has_hpc_keys(extra_specs)
        ) or rebuilds.is_own_rebuild(spec_obj):
            return filter_obj_list
        hosts = list(filter_obj_list)
        if not hosts:
            return hosts
        answers.put_down_reason(spec_obj, None)
        claims.put_down_choice(spec_obj, None)
        try:
            facts = self._read(hosts, spec_obj)
            answer = choose_on_all_hosts(facts) if isinstance(facts, TopologyFacts) else facts
        except Exception:
            LOG.exception("HpcTopologyFilter failed; the server is refused")
            answer = TopologyAnswer("The scheduler could not read the request.")
        return _give_answer(answer, spec_obj)

    def _read(
        self, hosts: Sequence[Any], spec: objects.RequestSpec
    ) -> TopologyFacts | TopologyAnswer:
        """Read the request and all hosts; an answer if less than that is enough for one.

        The cheap facts come first. A fault for the operator is logged here, and the reason for
        the user with the answer. An existing server may still move if this Nova is not
        supported, without guarantees: it must be possible to empty a host, and to recover the
        servers of a failed one.
        """
        if rebuilds.has_forged_check(spec):
            LOG.error("Server %s is refused: %s", _uuid_of_server(spec), rebuilds.FORGED)
            return TopologyAnswer(rebuilds.FORGED)
        extra_specs = spec.flavor.extra_specs or {}
        if hpc_flavor.has_shared_memory_keys(extra_specs):
            try:
                hosts = shared_memory_hosts.list_giving_hosts(hosts, spec)
            except FlavorError as error:
                return TopologyAnswer(f"Flavor: {error}")
            if not hosts:
                return TopologyAnswer(shared_memory_hosts.NONE_GIVES)
            if not hpc_flavor.has_hpc_keys(extra_specs):
                return TopologyAnswer(hosts=dict.fromkeys(hosts))
        wrong = "; ".join(contract.list_wrong_settings(CONF))
        if wrong:
            LOG.error("Servers with hpc: flavors are refused: %s", wrong)
            return TopologyAnswer(_NOT_SET_UP.format(wrong))
        strange = "; ".join(contract.list_release_differences() or self._unknown)
        if strange and new_servers.is_new_server(spec):
            LOG.error("New servers with hpc: flavors are refused: %s", strange)
            return TopologyAnswer(
                "This cloud's Nova is of a release for which hpc: flavors are not ready; "
                "contact its operator"
            )
        if strange:
            LOG.warning(
                "A server with an hpc: flavor moves without a promise (%s): %s",
                _uuid_of_server(spec),
                strange,
            )
        anyway = hosts if strange and CONF.hpc.moves_on_unknown_nova == "any" else ()
        try:
            return attrs.evolve(self._read_all_hosts(hosts, spec), anyway=anyway)
        except server.RequestError as error:
            LOG.error("A server with an hpc: flavor is refused: %s", error)
            return TopologyAnswer(_NOT_SET_UP.format(error.cure), anyway)
        except UnknownNameError as error:
            # The hosts with such devices may be full: the flavor is not at fault.
            return TopologyAnswer(str(error), anyway)
        except FlavorError as error:
            # Only the operator can cure a conflict of roles.
            conflict = isinstance(error, hpc_roles.RoleConflictError)
            level = logging.ERROR if conflict else logging.INFO
            LOG.log(level, "Flavor %s is refused: %s", spec.flavor.flavorid, error)
            return TopologyAnswer(f"Flavor: {error}", anyway)

    def _read_all_hosts(self, hosts: Sequence[Any], spec: objects.RequestSpec) -> TopologyFacts:
        """Read the request and every host; one that cannot be read is a miss.

        All hosts are read before the first decision, because the roles of an alias depend on them.

        :raises nova_hpc.from_nova.server.RequestError: the request cannot be read.
        :raises nova_hpc.placement.grouping.FlavorError: the flavor contradicts itself, or its
            aliases are ambiguous.
        """
        task = server.read_server_task(spec)
        answer = placement_answer.answer_of(spec)
        free = reader.Available.of(task, answer)
        views: dict[Any, reader.HostView] = {}
        unread: dict[Any, DeviceMiss] = {}
        # Placement is queried again for each server that has ports with bandwidth.
        same = None if answer is None or free.bandwidth else (answer, task.matching)
        for host in hosts:
            view = placement_answer.recall_view(host, same)
            if view is None:
                view = _call_guarded(reader.read_host, host, task, free.devices, free.bandwidth)
            if isinstance(view, DeviceMiss):
                unread[host] = view
            else:
                views[host] = view
                placement_answer.keep_view(host, same, view)
        filter_log.log_unusable_devices(views)
        bound = self._bind(task, views.values())
        request = task.server.request(_add_known_roles(bound, task))
        views = {host: reader.bind_view_roles(view, bound) for host, view in views.items()}
        order = choice.ServerOrder.of(spec, task, request, CLOUD_PROFILES.current())
        left_out = bool("ignore_hosts" in spec and spec.ignore_hosts)
        asked = user_reasons.AskedHosts(cut=answers.is_answer_cut(spec), left_out=left_out)
        disclosed = CONF.hpc.disclose_capacity
        return TopologyFacts(order, bound, answer, views, unread, asked, disclosed)

    def _bind(self, task: server.ServerTask, views: Iterable[reader.HostView]) -> Mapping[str, str]:
        """Return want (requested alias) -> the role whose devices the server may have.

        :raises nova_hpc.placement.roles.RoleConflictError: its aliases are ambiguous.
        """
        played = hpc_roles.roles_played_by_hosts(view.pattern.roles for view in views)
        # A role whose devices are all taken still exists.
        with self._lock:
            self._known |= played.known
            existing = self._known
        return hpc_roles.bind_alias_roles(task.server.wants, played, existing)


@attrs.frozen
class TopologyFacts:
    """All inputs of the filter's decision about one server and its hosts."""

    order: choice.ServerOrder
    #: Want -> role.
    bound: Mapping[str, str]
    #: Placement's free amounts; None if Placement was queried instead.
    placement: PlacementAnswer | None
    #: In Nova's order, with only devices of the server's roles.
    views: Mapping[Any, reader.HostView]
    #: Hosts that could not be read.
    unread: Mapping[Any, DeviceMiss]
    asked: user_reasons.AskedHosts
    #: Whether users may read counts.
    disclosed: bool
    #: As :attr:`TopologyAnswer.anyway`.
    anyway: Sequence[Any] = ()


@attrs.frozen
class TopologyAnswer:
    """The filter's decision about one server: the hosts, or the reason why there are none."""

    #: For the user; None if there are hosts.
    reason: str | None = None
    #: Hosts for an existing server in spite of *reason*, on a Nova that is not supported.
    anyway: Sequence[Any] = ()
    #: In Nova's order; a host without a choice keeps its candidates.
    hosts: Mapping[Any, choice.HostChoice | None] = attrs.field(factory=dict)
    #: Hosts that were read or searched in vain.
    misses: Mapping[Any, DeviceMiss] = attrs.field(factory=dict)
    #: None if no host was read.
    facts: TopologyFacts | None = None


def choose_on_all_hosts(facts: TopologyFacts) -> TopologyAnswer:
    """Choose devices on every host; no host state is changed."""
    passed: dict[Any, choice.HostChoice | None] = {}
    misses = dict(facts.unread)
    for host, view in facts.views.items():
        outcome = view.miss or _call_guarded(choice.place_devices_on_host, host, facts.order, view)
        if isinstance(outcome, DeviceMiss):
            misses[host] = withheld.count_withheld_in_miss(outcome, view.counted)
        else:
            passed[host] = outcome
    reason = None if passed else _reason_for_user(facts, misses.values())
    return TopologyAnswer(reason, facts.anyway, passed, misses, facts)


def _give_answer(answer: TopologyAnswer, spec: objects.RequestSpec) -> Sequence[Any]:
    """Hand an answer to Nova, to its host states, to later claims and to the log."""
    facts, uuid = answer.facts, _uuid_of_server(spec)
    if facts is not None:
        filter_log.log_rejected_hosts(answer.misses, facts.views, spec, len(answer.hosts))
        filter_log.log_unmeasured_hosts(facts.order.work, spec)
    if answer.reason is not None:
        LOG.info("HpcTopologyFilter finds no host for server %s: %s", uuid, answer.reason)
        if not answer.anyway:
            return answers.refuse_request(spec, answer.reason)
        LOG.warning(
            "Server %s moves to any host, whatever its devices: [hpc]moves_on_unknown_nova is any",
            uuid,
        )
        return answer.anyway
    for host, chosen in answer.hosts.items():
        if chosen is not None:
            choice.put_choice_on_host(host, chosen)
    if facts is not None and facts.placement is not None:
        # Another scheduler may win a claim: then the data of this pass serves once more.
        named = {host.uuid: host for host in answer.hosts}
        again = ChooseAgain(named, facts.order, facts.bound, facts.placement)
        claims.put_down_choice(spec, again)
    return list(answer.hosts)


def _call_guarded(function: Any, host: Any, *arguments: Any) -> Any:
    """Call *function* for a host; an exception makes a miss of only this host."""
    try:
        return function(host, *arguments)
    except Exception as error:
        where = f"{type(error).__name__} in {function.__name__}"
        filter_log.log_broken_host(host, where, error)
        return DeviceMiss(operator=f"{where}: {error}", user="a node's state could not be read")


def _add_known_roles(bound: Mapping[str, str], task: server.ServerTask) -> dict[str, str]:
    """Add the roles of wants whose devices are all in use, from devices seen before.

    :returns: want (requested alias) -> role.
    """
    missing = [device for device in task.devices if device.want.key not in bound]
    seen = {device.want.key: SAMPLES.role_of(device) for device in missing}
    return {want: role for want, role in seen.items() if role is not None} | dict(bound)


def _reason_for_user(facts: TopologyFacts, misses: Collection[DeviceMiss]) -> str:
    """Explain why no host is left: no name of a host, no address, and by default no count."""
    if not facts.disclosed:
        unusable = any(miss.unmet is Unmet.OTHER for miss in misses)
        asked = attrs.evolve(facts.asked, unusable=unusable)
        unmet = user_reasons.nearest_unmet_wish(misses)
        return user_reasons.refusal_sentence(facts.order.request, unmet, asked)
    counter = collections.Counter(miss.user for miss in misses)
    parts = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} of {len(misses)} nodes: {text}" for text, count in parts)


def _uuid_of_server(spec: objects.RequestSpec) -> str | None:
    return spec.instance_uuid if "instance_uuid" in spec else None
