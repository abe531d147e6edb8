# SPDX-License-Identifier: Apache-2.0
"""HpcFabricFilter: the members of a server group near each other on the fabric.

The domain of a group is decided once for all schedulers, and kept in Placement
(:mod:`nova_hpc.cluster.group_domain.model`). This filter keeps the hosts of that domain. It comes
after all other filters, so that it counts only hosts that can take the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
from nova import exception, objects
from nova.scheduler import filters
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.membership import Ask, GroupDomains, Joined, Refused
from nova_hpc.cluster.group_domain.model import EVERYWHERE
from nova_hpc.cluster.group_domain.records import PlacementSilentError
from nova_hpc.fabric.model import FabricLevel
from nova_hpc.from_nova import (
    contract,
    fabric,
    fabric_nearness,
    fabric_records,
    new_servers,
    rebuilds,
)
from nova_hpc.from_nova.patches import answers
from nova_hpc.from_nova.patches import scheduler as scheduler_patches
from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc.placement.grouping import FlavorError
from nova_hpc_common.level import AffinityPolicy

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)

#: On a request specification: the decision for its servers.
_MARK: Final = "_hpc_fabric"
_LATER: Final = "The place of the server group on the fabric is unknown now; try again later"


@attrs.define
class _Decided:
    """The chosen domain, shared by the servers of one request. It belongs to one thread."""

    #: UUID of the domain.
    domain: str
    #: Servers that have a ticket, or need none.
    done: set[str]


class HpcFabricFilter(filters.BaseHostFilter):
    """Keep the members of a server group in one domain of the fabric."""

    # A rebuild stays on its host.
    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        self._unknown = scheduler_patches.try_scheduler_patches()
        enabled = list(CONF.filter_scheduler.enabled_filters)
        if type(self).__name__ in enabled[:-1]:
            LOG.warning(
                "%s should be the last of [filter_scheduler]enabled_filters: it counts the hosts "
                "that the others leave",
                type(self).__name__,
            )

    def filter_all(
        self, filter_obj_list: Iterable[Any], spec_obj: objects.RequestSpec
    ) -> Iterable[Any]:
        """Return the hosts of the server group's domain that can take the next server.

        If there are none, the reason is stored for :mod:`nova_hpc.from_nova.patches.answers`.

        :raises nova.exception.NoValidHost: there is none, if this Nova's scheduler is not
            supported and would lose the reason.
        """
        specs = spec_obj.flavor.extra_specs or {}
        if not hpc_flavor.has_fabric_keys(specs) or rebuilds.is_own_rebuild(spec_obj):
            return filter_obj_list
        hosts = list(filter_obj_list)
        if not hosts:
            return hosts
        if rebuilds.has_forged_check(spec_obj):
            LOG.error("A server with hpc:fabric is refused: %s", rebuilds.FORGED)
            return _refuse_fabric_request(spec_obj, rebuilds.FORGED)
        answers.put_down_reason(spec_obj, None)
        fabric_nearness.forget_nearness(spec_obj)
        try:
            return self._filter(hosts, spec_obj)
        except exception.NoValidHost:
            raise
        except (FlavorError, fabric.HintError) as error:
            text = f"Flavor: {error}" if isinstance(error, FlavorError) else str(error)
            return _refuse_fabric_request(spec_obj, text)
        except PlacementSilentError as error:
            LOG.error("The domain of a server group is not known: %s", error)
            return _refuse_fabric_request(spec_obj, _LATER)
        except Exception:
            LOG.exception("HpcFabricFilter failed; the server is refused")
            return _refuse_fabric_request(spec_obj, "The scheduler could not read the request.")

    def _filter(self, hosts: Sequence[Any], spec: objects.RequestSpec) -> Sequence[Any]:
        """Return the hosts that may take the server; refuse new servers on an unsupported Nova."""
        wish = hpc_flavor.read_fabric(spec.flavor.extra_specs or {})
        if wish is None:
            return hosts
        view = fabric.locate_hosts(hosts, spec)
        fabric.remember_seats(view)
        task = _FabricTask(spec, wish, view, fabric_records.open_group_domains(spec._context))
        strange = [*contract.list_release_differences(), *fabric_records.list_client_differences()]
        strange += self._unknown
        if strange and task.new:
            LOG.error("New servers with hpc:fabric are refused: %s", "; ".join(strange))
            return _refuse_fabric_request(
                spec,
                "This cloud's Nova is of a release for which hpc: flavors are not ready; "
                "contact its operator",
            )
        return task.hosts()


class _FabricTask:
    """The choice of hosts for one server by its server group's fabric domain."""

    def __init__(
        self,
        spec: objects.RequestSpec,
        wish: hpc_flavor.Fabric,
        view: fabric.FabricView,
        groups: GroupDomains,
    ) -> None:
        self.spec = spec
        self.wish = wish
        self.view = view
        self.groups = groups
        self.server = str(spec.instance_uuid)
        self.group: Any = spec.instance_group if "instance_group" in spec else None
        self.flexible = wish.policy is not AffinityPolicy.REQUIRED
        self._new: bool | None = None

    @property
    def new(self) -> bool:
        """Whether the server is being created, and not moved; queried from the database once."""
        if self._new is None:
            self._new = new_servers.is_new_server(self.spec)
        return self._new

    def hosts(self) -> Sequence[Any]:
        """Return the hosts that the filter passes for this server.

        The first server of a request decides about the domain. Nova calls the filter again for each
        further server, and for the alternates of a server, which stay in that domain.
        """
        decided: _Decided | None = getattr(self.spec, _MARK, None)
        if decided is not None and self.server in decided.done:
            # These are its alternates.
            return self._within(decided.domain)
        if decided is not None and self.group is None:
            decided.done.add(self.server)
            return self._within(decided.domain)
        return self._alone() if self.group is None else self._of_group()

    # -- without a group -------------------------------------------------------

    def _alone(self) -> Sequence[Any]:
        """Return the hosts for a server without a group, or whose group was deleted.

        Servers of one request without a group share a domain that the first one chooses.
        """
        domain = self.groups.where(self.server)
        if domain is not None:
            self._decide(domain)
            return self._within(domain)
        if self.spec.num_instances <= 1 or not self.new:
            if self.new and fabric.announced_members_of(self.spec) not in (None, 1):
                raise fabric.HintError(
                    f"The scheduler hint {fabric.HINT} is about a server group; name one with the "
                    "hint group"
                )
            return [spot.host for spot in self.view.spots]
        ask = Ask(self.server, "", self.spec.num_instances, flexible=self.flexible)
        outcome = self.groups.look(ask, self.view.offer(self.wish))
        if isinstance(outcome, Refused):
            return self._refused(outcome, ask.members)
        self._decide(outcome[0].uuid)
        return self._within(outcome[0].uuid)

    # -- with a group ----------------------------------------------------------

    def _of_group(self) -> Sequence[Any]:
        """Return the hosts for a server with a group.

        The server takes a ticket of the group's domain, and gives it back if no host is left.
        """
        group = self.group
        members = self._members()
        if group.project_id != self.spec.project_id:
            # Nova lets an administrator name any group.
            if self.new:
                return _refuse_fabric_request(
                    self.spec, f"The server group {group.uuid} belongs to another project"
                )
            LOG.warning("Server %s is in another project's server group", self.server)
            self.group = None
            return self._alone()
        ask = Ask(
            server=self.server,
            group=str(group.uuid),
            members=members,
            alone=not (group.hosts if "hosts" in group else ()),
            flexible=self.flexible,
        )
        outcome = self.groups.join(ask, self.view.offer(self.wish))
        if isinstance(outcome, Refused):
            return self._refused(outcome, members)
        self._log(outcome, members)
        hosts = self._within(outcome.domain)
        if hosts:
            self._decide(outcome.domain)
        elif outcome.new:
            self.groups.leave(self.server)
        return hosts

    def _members(self) -> int:
        """Return the number of places that are kept for the group in its domain."""
        if not self.new:
            try:
                return fabric.announced_members_of(self.spec) or 1
            except fabric.HintError:
                # Accepted by another release, or under another limit: a move goes on.
                return 1
        return max(fabric.announced_members_of(self.spec) or 1, int(self.spec.num_instances))

    def _decide(self, domain: str) -> None:
        decided: _Decided | None = getattr(self.spec, _MARK, None)
        if decided is None:
            setattr(self.spec, _MARK, _Decided(domain, {self.server}))
        else:
            decided.done.add(self.server)

    def _log(self, joined: Joined, members: int) -> None:
        if joined.step is not None:
            LOG.info(
                "Server group %s with %d members has its domain on the fabric now: %s",
                self.group.uuid,
                members,
                self._named(joined.domain),
            )

    # -- hosts -----------------------------------------------------------------

    def _within(self, domain: str) -> Sequence[Any]:
        """Return the hosts in the domain; others, the nearest first, if the policy allows them.

        :param domain: UUID of the domain.
        """
        spots = self.view.within(domain)
        if not spots and self.flexible:
            LOG.info(
                "Server %s goes outside of the %s of its server group, which has no host for it "
                "(hpc:fabric_policy is preferred)",
                self.server,
                self._named(domain),
            )
            spots = self.view.spots
        if not spots:
            return self._refused(Refused(domain), 1)
        fabric_nearness.rank_hosts_by_nearness(self.spec, spots, domain, self._left())
        return [spot.host for spot in spots]

    def _left(self) -> int:
        """Return the number of remaining members of the group, this one included."""
        hosts = self.group.hosts if self.group is not None and "hosts" in self.group else ()
        try:
            announced = fabric.announced_members_of(self.spec) or 1
        except fabric.HintError:
            announced = 1
        return max(1, max(announced, int(self.spec.num_instances)) - len(hosts or ()))

    def _named(self, domain: str) -> str:
        if domain == EVERYWHERE.uuid:
            return str(EVERYWHERE)
        for seen_domain in fabric.enclosing_domains_of(domain).values():
            if seen_domain.uuid == domain:
                return str(seen_domain)
        return f"domain {domain}, of which no host was seen"

    # -- refusals ----------------------------------------------------------------

    def _refused(self, refused: Refused, members: int) -> Sequence[Any]:
        level = _level_in_words(self.wish.level)
        whose = f"server group {self.group.uuid}" if self.group is not None else "the request"
        if refused.domain is not None:
            LOG.info(
                "HpcFabricFilter finds no host for server %s of %s: its domain is %s, and %d hosts "
                "that fit are all elsewhere",
                self.server,
                whose,
                self._named(refused.domain),
                len(self.view.spots),
            )
            return _refuse_fabric_request(
                self.spec,
                f"The {level} of the server group has no host left for this server; "
                "hpc:fabric_policy preferred may help",
            )
        free = self.view.ground.free(FabricLevel.from_word(self.wish.level))
        near = refused.nearest
        LOG.info(
            "HpcFabricFilter finds no %s for the %d members of %s (server %s): %d hosts fit, in "
            "%d domains of this level; the nearest miss is %s",
            level,
            members,
            whose,
            self.server,
            len(self.view.spots),
            len(free),
            f"{near.domain} with room for {near.free} servers, of which {near.promised} are kept "
            "for other server groups"
            if near
            else "none: no aggregate contains these hosts' places (nova-hpc fabric sync)",
        )
        wider = fabric.levels_at_or_above(FabricLevel.from_word(self.wish.level))[1:-1]
        helps = [f"hpc:fabric {wider[0].word}"] if wider else []
        helps.append("hpc:fabric_policy preferred")
        if members > 1:
            helps.append("fewer members")
        counted = ""
        if CONF.hpc.disclose_capacity:
            counted = f": at most {near.left if near else 0} fit into one"
        return _refuse_fabric_request(
            self.spec,
            f"No {level} has room for the {members} members of the server group{counted}; "
            f"{' or '.join(helps)} may help",
        )


def _level_in_words(level: str) -> str:
    return FabricLevel.from_word(level).noun(1)


def _refuse_fabric_request(spec: objects.RequestSpec, reason: str) -> list[Any]:
    """Refuse the request: return no host, and store the reason for the answer to the user."""
    LOG.info("HpcFabricFilter refuses server %s: %s", spec.instance_uuid, reason)
    return answers.refuse_request(spec, reason, placed=getattr(spec, _MARK, None) is not None)
