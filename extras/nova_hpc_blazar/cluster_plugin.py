# SPDX-License-Identifier: Apache-2.0
"""Blazar's plug-in for leases of whole clusters: hosts from the planner, devices from Placement.

A subclass of Blazar 18's plug-in for flavors (blazar/plugins/flavor/flavor_plugin.py), which makes
the private flavor, the aggregate and the resource class of a lease, starts it and ends it. The
subclass replaces the choice of hosts and the update of a lease.

Blazar's manager restores a lease after a refusal only if the exception has one of some types
(``update_lease``, blazar/manager/service.py), so refusals are of these types and not of subclasses.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
from blazar import context, status
from blazar.db import api as db_api
from blazar.db import utils as db_utils
from blazar.exceptions import BlazarException
from blazar.manager import exceptions
from blazar.plugins.flavor import RESOURCE_TYPE as STOCK_TYPE
from blazar.plugins.flavor import flavor_plugin
from blazar.utils.openstack import nova
from keystoneauth1 import exceptions as auth_exceptions
from novaclient import exceptions as nova_exceptions
from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import strutils, timeutils

from nova_hpc.cluster.plan import Gang, GangPlan, GangRefusal, plan_gang
from nova_hpc.cluster.plan.model import MOST_MEMBERS
from nova_hpc.placement.grouping import FlavorError
from nova_hpc_blazar import cloud_reading, flavor_request
from nova_hpc_blazar.flavor_request import LeaseAliasError, MemberNearness
from nova_hpc_blazar.lease_room import (
    ALWAYS_BEGUN,
    NEVER_ENDS,
    Booking,
    LeasableRoom,
    Request,
    ResourceKind,
)

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

# Nova's own option, in the words of Nova's own configuration.
CONF.register_opts([cfg.MultiStrOpt("alias", default=[])], group="pci")
CONF.register_opts(
    [
        cfg.BoolOpt(
            "tell_lease_begin",
            default=True,
            help="Name the earliest begin at which a refused lease fits. It shows users when "
            "leases of other projects end.",
        )
    ],
    group="hpc",
)

#: The command ``openstack reservation`` sends only types that contain one of Blazar's own.
RESOURCE_TYPE: Final = "hpc:flavor:instance"

_TIME: Final = "%Y-%m-%d %H:%M"
#: A refusal tries so many later begins: other leases wait until it is written.
_MOST_BEGINS: Final = 100


@attrs.frozen
class _Member:
    """One member of a cluster, as its flavor describes it."""

    flavor: Mapping[str, Any]
    request: Request
    #: Traits of the host; ``!`` before those that it must not have.
    traits: frozenset[str]
    nearness: MemberNearness


class ClusterPlugin(flavor_plugin.FlavorPlugin):
    """Leases of whole clusters."""

    resource_type = RESOURCE_TYPE
    title = "Clusters of nova-hpc"
    description = "Reserves the devices of whole clusters, in one domain of the fabric."

    def __init__(self) -> None:
        super().__init__()
        self._trees = cloud_reading.ProviderTrees()
        #: Blazar's manager has threads: a plan is made and written under this lock.
        self._planning = threading.RLock()
        #: Lease -> begin and end that an update has been granted, and that Blazar writes later.
        self._granted: dict[str, tuple[datetime.datetime, datetime.datetime]] = {}
        self.monitor = self._host_plugin.monitor
        self.monitor.register_healing_handler(self.heal_reservations)

    # -- new leases ----------------------------------------------------------------------

    def allocation_candidates(self, reservation: dict[str, Any]) -> list[str]:
        """List the hosts that a new or a changed reservation would get."""
        with self._planning:
            hosts: list[str] = super().allocation_candidates(reservation)
            return hosts

    def reserve_resource(self, reservation_id: str, values: dict[str, Any]) -> Any:
        """Reserve the hosts of a new cluster; see Blazar's plug-in for flavors."""
        # Users may send any key. This one is Blazar's, and names the reservation of an update.
        values.pop("id", None)
        with self._planning:
            return super().reserve_resource(reservation_id, values)

    def _pick_hosts(self, reservation: dict[str, Any]) -> tuple[list[str], Any]:
        """Choose the hosts of a lease, for new leases and for Blazar's question before an update.

        :returns: ids of hosts, one for each member, and the flavor.
        """
        stored = None
        if reservation.get("id") is not None:
            stored = db_api.reservation_get(reservation["id"])
        if stored is not None:
            member = self._read_member(self._get_cached_flavor(stored))
            if stored["status"] != status.reservation.PENDING:
                return self._list_hosts(stored["id"]), member.flavor
        else:
            member = self._read_member(self._fetch_flavor(reservation))
        reservation["amount"] = self._read_amount(reservation)
        hosts = self._plan(
            member,
            reservation["amount"],
            reservation["start_date"],
            reservation["end_date"],
            None if stored is None else stored["id"],
        )
        return hosts, member.flavor

    def _plan(
        self,
        member: _Member,
        amount: int,
        begin: datetime.datetime,
        end: datetime.datetime,
        own: str | None,
    ) -> list[str]:
        """Plan the hosts of a cluster that has not begun.

        :param own: id of its reservation, which does not count; None if there is none.
        :returns: ids of hosts, one for each member.
        """
        room = self._read_room(member, own)
        hosts = {host["service_name"]: host["id"] for host in self._list_reservable_hosts()}
        gang = Gang(amount, member.nearness.level, member.nearness.policy, group=own or "")
        with _cloud_reading():
            fabric = cloud_reading.read_fabric_map(nova.ReservationPool().get_all())

        def plan_at(first: datetime.datetime) -> GangPlan | GangRefusal:
            counts = room.count(first, first + (end - begin))
            return plan_gang(
                fabric, {name: counts.get(host, 0) for name, host in hosts.items()}, gang
            )

        plan = plan_at(begin)
        if isinstance(plan, GangPlan):
            return [hosts[name] for name, count in plan.hosts.items() for _ in range(count)]
        LOG.info("A lease of %s finds no hosts: %s", member.flavor["name"], plan.reason)
        later = None
        if CONF.hpc.tell_lease_begin:
            begins = itertools.islice(room.list_begins(begin), _MOST_BEGINS)
            later = next((first for first in begins if isinstance(plan_at(first), GangPlan)), None)
        raise exceptions.NotEnoughHostsAvailable(
            f"{member.nearness.text} cannot hold {amount} x "
            f"{member.flavor['name']} from {begin:{_TIME}} to {end:{_TIME}}; lease "
            + (f"them from {later:{_TIME}} to {later + (end - begin):{_TIME}}, " if later else "")
            + "fewer members, another time, or a flavor with a wider hpc:fabric"
        )

    # -- updates -------------------------------------------------------------------------

    def update_reservation(self, reservation_id: str, values: dict[str, Any]) -> None:
        """Move, lengthen or shorten a lease, or change its members before it begins.

        The cluster of a lease that has begun keeps its hosts and members.
        """
        with self._planning:
            reservation = db_api.reservation_get(reservation_id)
            begin, end = values["start_date"], values["end_date"]
            amount = self._check_changes(reservation, values)
            if reservation["status"] == status.reservation.PENDING:
                member = self._read_member(self._get_cached_flavor(reservation))
                hosts = self._plan(member, amount, begin, end, reservation_id)
                _replace_hosts(reservation_id, hosts)
                db_api.instance_reservation_update(reservation["resource_id"], {"amount": amount})
            elif reservation["status"] != status.reservation.ACTIVE:
                raise exceptions.CantUpdateParameter(
                    f"a reservation of status {reservation['status']} cannot be updated; delete "
                    "its lease and create another"
                )
            else:
                self._check_begun(reservation, amount, begin, end)
            # Blazar writes the new times only after all plug-ins have agreed.
            self._granted[reservation["lease_id"]] = (begin, end)

    def _check_changes(self, reservation: Mapping[str, Any], values: Mapping[str, Any]) -> int:
        """Check the new parameters of a reservation, and return its number of members."""
        flavor = self._get_cached_flavor(reservation)
        if values.get("flavor_id") not in (None, reservation["flavor_id"], flavor["id"]):
            raise exceptions.CantUpdateParameter(
                "flavor_id cannot be updated; create another lease"
            )
        _refuse_affinity(values)
        amount = values.get("amount", reservation["amount"])
        return self._read_amount({"amount": amount})

    def _check_begun(
        self,
        reservation: Mapping[str, Any],
        amount: int,
        begin: datetime.datetime,
        end: datetime.datetime,
    ) -> None:
        """Check that a cluster that has begun may keep its hosts until *end*."""
        lease = db_api.lease_get(reservation["lease_id"])
        if amount != reservation["amount"]:
            raise exceptions.CantUpdateParameter(
                "amount cannot be updated, because the lease has begun; create another lease for "
                "more members, or delete servers for fewer"
            )
        # Blazar's own check compares with the clock, which may have been set back.
        if begin != lease["start_date"]:
            raise exceptions.CantUpdateParameter(
                "start_date cannot be updated, because the lease has begun"
            )
        if end <= lease["end_date"]:
            return
        member = self._read_member(self._get_cached_flavor(reservation))
        room = self._read_room(member, reservation["id"]).count(begin, end)
        hosts = Counter(self._list_hosts(reservation["id"]))
        if any(room.get(host, 0) < count for host, count in hosts.items()):
            raise exceptions.NotEnoughHostsAvailable(
                f"the hosts of the lease are not free until {end:{_TIME}}; end it at "
                f"{lease['end_date']:{_TIME}}, and lease a new cluster"
            )

    # -- begin, and failed hosts ---------------------------------------------------------

    def on_start(self, resource_id: str) -> None:
        """Give the cluster to its project; if a host cannot be added, give it none.

        :raises EventError: the reservation then has the status ``error``.
        """
        try:
            super().on_start(resource_id)
        except Exception as error:
            reservation = db_api.instance_reservation_get(resource_id)["reservation_id"]
            try:
                self._instance_plugin.nova.flavor_access.remove_tenant_access(
                    reservation, context.current().project_id
                )
            except nova_exceptions.ClientException:
                LOG.exception("The flavor of reservation %s stays usable", reservation)
            raise exceptions.EventError(
                error=f"reservation {reservation} has not begun, because one of its hosts cannot "
                f"be added: {error}"
            ) from error

    def heal_reservations(
        self,
        failed_resources: Iterable[Mapping[str, Any]],
        interval_begin: datetime.datetime,
        interval_end: datetime.datetime,
    ) -> dict[str, dict[str, bool]]:
        """Plan clusters with failed hosts again if they have not begun.

        :returns: id of a reservation without another place -> flags that Blazar sets.
        """
        flags = {}
        failed = [host["id"] for host in failed_resources]
        for row in db_utils.get_reservations_by_host_ids(failed, interval_begin, interval_end):
            if row["resource_type"] != self.resource_type:
                continue
            reservation = db_api.reservation_get(row["id"])
            lease = db_api.lease_get(reservation["lease_id"])
            dates = {key: lease[key] for key in ("start_date", "end_date")}
            try:
                if reservation["status"] != status.reservation.PENDING:
                    raise exceptions.NotEnoughHostsAvailable
                self.update_reservation(reservation["id"], dates)
            except BlazarException:
                flags[reservation["id"]] = {"missing_resources": True}
        return flags

    # -- facts ---------------------------------------------------------------------------

    def _read_amount(self, values: Mapping[str, Any]) -> int:
        """Read the number of members, and check it."""
        _refuse_affinity(values)
        if values.get("amount") is None:
            raise exceptions.MissingParameter(param="amount")
        try:
            return int(strutils.validate_integer(values["amount"], "amount", 1, MOST_MEMBERS))
        except ValueError as error:
            raise exceptions.MalformedParameter(
                f"{error}; amount is the number of members"
            ) from error

    def _fetch_flavor(self, reservation: Mapping[str, Any]) -> dict[str, Any]:
        """Read the requested flavor from Nova, with the user's rights."""
        if not reservation.get("flavor_id"):
            raise exceptions.MissingParameter(param="flavor_id")
        try:
            flavor: dict[str, Any] = self._get_flavor_details(reservation["flavor_id"])[2]
        except nova_exceptions.NotFound as error:
            raise exceptions.MalformedParameter(
                f"flavor {reservation['flavor_id']} does not exist; flavor_id is the ID of a "
                "flavor that openstack flavor list shows"
            ) from error
        return flavor

    def _read_member(self, flavor: dict[str, Any]) -> _Member:
        """Read the request of one member from a flavor.

        :raises MalformedParameter: Blazar cannot count its resources.
        """
        try:
            request, traits = self._read_request(flavor)
            nearness = flavor_request.read_nearness(flavor["extra_specs"])
        except (FlavorError, LeaseAliasError) as error:
            raise exceptions.MalformedParameter(f"flavor {flavor['name']}: {error}") from error
        return _Member(flavor, request, traits, nearness)

    def _read_request(self, flavor: dict[str, Any]) -> tuple[Request, frozenset[str]]:
        extra_specs = flavor["extra_specs"]
        aliases = flavor_request.read_aliases(CONF.pci.alias)
        devices = flavor_request.list_device_kinds(extra_specs, aliases)
        resources, traits = self._estimate_flavor_resources(flavor)
        if extra_specs.get("hw:emulator_threads_policy") == "isolate":
            resources["PCPU"] = int(resources.get("PCPU", 0)) + 1
        plain = {ResourceKind(name): int(amount) for name, amount in resources.items()}
        marks = {"required": "", "forbidden": "!"}
        return {**plain, **devices}, frozenset(
            marks[word] + trait for trait, word in traits.items()
        )

    def _list_reservable_hosts(self) -> list[dict[str, Any]]:
        hosts: list[dict[str, Any]] = db_api.reservable_host_get_all_by_queries([])
        return hosts

    def _list_hosts(self, reservation: str) -> list[str]:
        """List the ids of a reservation's hosts, one for each member."""
        allocations = db_api.host_allocation_get_all_by_values(reservation_id=reservation)
        return [allocation["compute_host_id"] for allocation in allocations]

    def _read_room(self, member: _Member, own: str | None) -> LeasableRoom:
        """Read the hosts that can be leased, with the bookings of all leases.

        :param own: id of the reservation that does not count.
        """
        hosts = self._list_reservable_hosts()
        bookings = self._read_bookings(own)
        uses = [booking.uses or {} for of_host in bookings.values() for booking in of_host]
        kinds = set(member.request).union(*uses)
        with _cloud_reading():
            client = self._placement_client._create_client()
            trees = self._trees.read(
                client,
                (host["hypervisor_hostname"] for host in hosts),
                {kind.traits for kind in kinds},
            )
            able = set(trees)
            if member.traits:
                matches = cloud_reading.list_providers(client, member.traits)
                able = {provider["name"] for provider in matches}
        return LeasableRoom(
            member.request,
            {
                host["id"]: trees.get(host["hypervisor_hostname"], ())
                for host in hosts
                if host["hypervisor_hostname"] in able
            },
            bookings,
            datetime.timedelta(minutes=CONF.cleaning_time),
        )

    def _read_bookings(self, own: str | None) -> dict[str, list[Booking]]:
        """Read the bookings of all leases except *own*: id of a host -> bookings."""
        bookings: dict[str, list[Booking]] = defaultdict(list)
        members: dict[str, Counter[str]] = defaultdict(Counter)
        for allocation in db_api.host_allocation_get_all_by_values():
            members[allocation["reservation_id"]][allocation["compute_host_id"]] += 1
        for reservation_id, hosts in members.items():
            reservation = db_api.reservation_get(reservation_id)
            if reservation_id == own or reservation is None:
                continue
            lease = db_api.lease_get(reservation["lease_id"])
            if lease is None:
                continue
            begin, end = self._find_times(reservation, lease)
            request = self._read_uses(reservation)
            for host, count in hosts.items():
                uses = None
                if request is not None:
                    uses = {kind: amount * count for kind, amount in request.items()}
                bookings[host].append(Booking(begin, end, uses))
        return bookings

    def _find_times(
        self, reservation: Mapping[str, Any], lease: Mapping[str, Any]
    ) -> tuple[datetime.datetime, datetime.datetime]:
        """Find the time in which a lease may have its hosts.

        A lease that has begun has them now, whatever the clock shows. One whose end has failed
        keeps them until it is deleted.
        """
        begin, end = lease["start_date"], lease["end_date"]
        if lease["status"] == status.lease.UPDATING and lease["id"] in self._granted:
            granted_begin, granted_end = self._granted[lease["id"]]
            begin, end = min(begin, granted_begin), max(end, granted_end)
        else:
            self._granted.pop(lease["id"], None)
        if reservation["status"] != status.reservation.PENDING:
            begin = ALWAYS_BEGUN
        if lease["status"] == status.lease.ERROR and end <= timeutils.utcnow():
            end = NEVER_ENDS
        return begin, end

    def _read_uses(self, reservation: dict[str, Any]) -> Request | None:
        """Read the resources of each member of another lease; None for whole hosts."""
        flavor = None
        if reservation["resource_type"] in (RESOURCE_TYPE, STOCK_TYPE):
            flavor = self._get_cached_flavor(reservation)
        if not flavor:
            return None
        try:
            return self._read_request(flavor)[0]
        except (FlavorError, LeaseAliasError):
            return None


def _replace_hosts(reservation: str, hosts: Iterable[str]) -> None:
    """Replace the hosts of a reservation by these, one for each member.

    Blazar's own ``update_host_allocations`` (blazar/plugins/instances/instance_plugin.py) removes
    one row twice if several members leave one host.
    """
    missing = Counter(hosts)
    surplus = []
    for allocation in db_api.host_allocation_get_all_by_values(reservation_id=reservation):
        if missing[allocation["compute_host_id"]]:
            missing[allocation["compute_host_id"]] -= 1
        else:
            surplus.append(allocation["id"])
    for host in missing.elements():
        db_api.host_allocation_create({"compute_host_id": host, "reservation_id": reservation})
    for allocation in surplus:
        db_api.host_allocation_destroy(allocation)


def _refuse_affinity(values: Mapping[str, Any]) -> None:
    if values.get("affinity") not in (None, "None", "none", ""):
        raise exceptions.MalformedParameter(
            "affinity does not apply to clusters; leave it out, and set hpc:fabric of the flavor"
        )


@contextlib.contextmanager
def _cloud_reading() -> Iterator[None]:
    """Refuse a lease if Nova or Placement does not answer.

    An error of another type would end a lease that is updated.
    """
    try:
        yield
    except (BlazarException, nova_exceptions.ClientException, auth_exceptions.ClientException) as e:
        raise exceptions.NotEnoughHostsAvailable(
            f"the hosts of the cloud cannot be read: {e}; try again later"
        ) from e
