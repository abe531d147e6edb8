# SPDX-License-Identifier: Apache-2.0
"""HpcTopologyFilter: the right devices, or a reason.

For a server with an ``hpc:`` flavor the filter chooses the devices on every
host and replaces the host's allocation candidates by the one that names them.
The scheduler claims it, Placement makes it binding and the compute node takes
exactly these devices. Everything that decides is in ``nova_hpc.placement``;
this file translates, and asks Nova's own functions whether CPUs and memory
pages fit as well.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nova import exception, objects
from nova.scheduler import filters
from nova.scheduler import utils as scheduler_utils
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, providers, server
from nova_hpc.from_nova import hosts as reader
from nova_hpc.from_nova.cache import Once
from nova_hpc.from_nova.patches import scheduler as scheduler_patches
from nova_hpc.from_nova.profile import CLOUD_PROFILES
from nova_hpc.offer import roles
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Miss
from scheduler_filters import choice

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register(CONF)

_ONCE: Final = Once()

#: Up to this many hosts each rejection is worth a line at INFO.
_FEW: Final = 32

#: A fault's message holds 255 characters, Nova's own words included.
_LONGEST_REASON: Final = 220


class HpcTopologyFilter(filters.BaseHostFilter):
    """Choose the devices of servers with ``hpc:`` flavors."""

    # A rebuild keeps its devices; there are no candidates to choose from.
    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        #: Why Nova's functions could not be wrapped; "": they are.
        self._unknown = ""
        try:
            scheduler_patches.install()
        except exception.InvalidConfiguration as error:
            self._unknown = str(error)
        for text in self._problems():
            LOG.warning("Servers with hpc: flavors will be refused: %s", text)
        for text in contract.advice(CONF):
            LOG.info("For hpc: flavors: %s", text)
        #: Roles that are configured, or were seen since the start; replaced as a whole, and
        #: what one thread takes from another is seen again by the next request.
        self._known = roles.configured(CONF.hpc.device_role)

    def _problems(self) -> list[str]:
        """Why servers with ``hpc:`` flavors cannot be served; [] if they can."""
        return contract.problems(CONF) + ([self._unknown] if self._unknown else [])

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: objects.RequestSpec
    ) -> Iterable[Any]:
        """The hosts that can serve *spec_obj*, each with its one candidate.

        :raises nova.exception.NoValidHost: no host can, with the reason for
            the user.
        """
        extra_specs = spec_obj.flavor.extra_specs or {}
        if not hpc_flavor.has_hpc_keys(extra_specs):
            return filter_obj_list
        if scheduler_utils.request_is_rebuild(spec_obj):
            return filter_obj_list
        hosts = list(filter_obj_list)
        if not hosts:
            return hosts
        try:
            return self._filter(hosts, spec_obj)
        except exception.NoValidHost:
            raise
        except Exception:
            LOG.exception("HpcTopologyFilter failed; the server is refused")
            return _refuse(spec_obj, "The scheduler could not read the request.")

    def _filter(self, hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
        wrong = self._problems()
        if wrong:
            LOG.error("Servers with hpc: flavors are refused: %s", "; ".join(wrong))
            return _refuse(spec, "This cloud is not set up for hpc: flavors.")
        try:
            task = server.read_task(spec)
            views, misses = _read_all(hosts, task)
            bound = self._bind(task, views.values())
            request = task.server.request(bound)
        except server.RequestError as error:
            LOG.error("A server with an hpc: flavor is refused: %s", error)
            return _refuse(spec, "This cloud is not set up for hpc: flavors.")
        except hpc_roles.RoleConflictError as error:
            LOG.error("Flavor %s is refused: %s", spec.flavor.flavorid, error)
            return _refuse(spec, f"Flavor: {error}")
        except FlavorError as error:
            LOG.info("Flavor %s is refused: %s", spec.flavor.flavorid, error)
            return _refuse(spec, f"Flavor: {error}")
        views = {host: reader.bind(view, bound) for host, view in views.items()}
        order = choice.Order.of(spec, task, request, CLOUD_PROFILES.current())
        passed = []
        for host in hosts:
            view = views.get(host)
            if view is None:
                continue
            outcome = _guarded(host, choice.place, host, order, view)
            if outcome is None:
                passed.append(host)
            else:
                misses[host] = outcome
        _log(misses, views, spec)
        if not passed:
            return _refuse(spec, _for_user(misses.values()))
        return passed

    def _bind(self, task: server.Task, views: Iterable[reader.View]) -> Mapping[str, str]:
        """The roles whose devices the server may have.

        :raises nova_hpc.placement.roles.RoleConflictError: its aliases do not say.
        """
        played = hpc_roles.played_by(view.pattern.roles for view in views)
        # A role whose devices are all taken is still no other role.
        if not played.known <= self._known:
            self._known |= played.known
        return hpc_roles.bind(task.server.wants, played, self._known)


def _read_all(
    hosts: Sequence[Any], task: server.Task
) -> tuple[dict[Any, reader.View], dict[Any, Miss]]:
    """Read every host; one that cannot be read is a miss."""
    free = {kind: providers.free_providers(kind, most) for kind, most in task.kinds.items()}
    views: dict[Any, reader.View] = {}
    misses: dict[Any, Miss] = {}
    for host in hosts:
        got = _guarded(host, reader.read_host, host, task, free)
        if isinstance(got, Miss):
            misses[host] = got
        else:
            views[host] = got
    return views, misses


def _guarded(host: Any, function: Any, *arguments: Any) -> Any:
    """Call *function*; whatever it raises is a miss of this one host."""
    try:
        return function(*arguments)
    except Exception as error:
        where = f"{type(error).__name__} in {function.__name__}"
        if _ONCE.first((host.host, where, str(error))):
            LOG.exception("%s, %s: cannot be used for hpc: flavors", host.host, host.nodename)
        return Miss(operator=f"{where}: {error}", user="a node's state could not be read")


def _log(
    misses: Mapping[Any, Miss], views: Mapping[Any, reader.View], spec: objects.RequestSpec
) -> None:
    level = logging.INFO if len(misses) <= _FEW else logging.DEBUG
    for host, miss in misses.items():
        text = miss.operator
        view = views.get(host)
        if view is not None and view.unusable:
            text += f"; not usable: {'; '.join(view.unusable[:4])}"
        if view is not None and view.withheld:
            shown = [f"{address} ({why})" for address, why in sorted(view.withheld.items())[:4]]
            text += f"; {len(view.withheld)} withheld by the node: {', '.join(shown)}"
        LOG.log(
            level,
            "HpcTopologyFilter rejects %s, %s for flavor %s: %s",
            host.host,
            host.nodename,
            spec.flavor.flavorid,
            text,
        )
    if len(misses) > _FEW:
        LOG.info(
            "HpcTopologyFilter rejects %d hosts for flavor %s: %s",
            len(misses),
            spec.flavor.flavorid,
            _for_user(misses.values()),
        )


def _for_user(misses: Iterable[Miss]) -> str:
    """Counts and levels only: no host and no address leaves the operator's log."""
    counter = collections.Counter(miss.user for miss in misses)
    total = sum(counter.values())
    parts = sorted(counter.items(), key=lambda item: (-item[1], item[0]))
    return "; ".join(f"{count} of {total} nodes: {text}" for text, count in parts)


def _refuse(spec: objects.RequestSpec, reason: str) -> list[Any]:
    """No host; the reason reaches the server's fault where that is safe.

    An exception would leave the claims of earlier servers of the same request
    behind, because only Nova's own code path gives them back: once one of them
    is claimed, answer with no hosts instead.
    """
    groups = spec.requested_resources if "requested_resources" in spec else None
    if any(group.provider_uuids for group in groups or ()):
        LOG.info("HpcTopologyFilter finds no host for one more server: %s", reason)
        return []
    if len(reason) > _LONGEST_REASON:
        reason = reason[: _LONGEST_REASON - 3] + "..."
    raise exception.NoValidHost(reason=reason)
