# SPDX-License-Identifier: Apache-2.0
"""Neutron's mechanism driver ``hpc_partitions``: a network is an InfiniBand partition.

This module is the shell: the methods that Neutron calls, in its transactions and outside. Rules
are in ``network_rules`` and ``port_rules``, rows in ``member_store``.

The phases of a port:

1. its host is set, and a *block* keeps it from ACTIVE;
2. ``bind_port`` names the GUID;
3. the transaction that commits the binding gives the port that GUID until it is unbound, and adds
   a row;
4. an agent puts the membership in force and reports it;
5. the block goes, the port is ACTIVE, and the request that has waited for it gets its answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from neutron_lib import constants
from neutron_lib import context as neutron_context
from neutron_lib import exceptions as neutron_exceptions
from neutron_lib import rpc as neutron_rpc
from neutron_lib.api import validators
from neutron_lib.api.definitions import portbindings
from neutron_lib.callbacks import events, registry, resources
from neutron_lib.db import api as db_api
from neutron_lib.plugins import directory
from neutron_lib.plugins.ml2 import api
from oslo_concurrency import lockutils
from oslo_config import cfg
from oslo_log import log

from neutron_drivers import (
    fabric_heartbeats,
    guid_holders,
    member_store,
    member_sync,
    network_rules,
    port_rules,
)
from neutron_drivers.agent_client import FabricAgentClient
from neutron_drivers.agent_endpoint import FabricAgentEndpoint
from neutron_drivers.bind_waits import WaitPlaces, count_places
from neutron_drivers.errors import (
    FabricUnavailableError,
    PartitionError,
    PartitionInUseError,
    WrongWishError,
)
from neutron_drivers.fabrics import FabricSettings, read_fabric_settings
from neutron_drivers.member_watch import MemberWatch
from neutron_drivers.network_rules import FabricKey
from neutron_drivers.nova_servers import NovaServerLookup
from neutron_drivers.owner_waits import find_leaving_owner, wait_for_last_owner
from neutron_drivers.port_places import PortPlaces
from neutron_drivers.rpc_names import SERVER_TOPIC
from nova_hpc.conf import partitions as options
from nova_hpc.fabric.partitions.backends.choice import read_capabilities
from nova_hpc.fabric.partitions.keys import format_guid

LOG = log.getLogger(__name__)

#: Seconds between two looks at a port while its request waits: at first, and at most.
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


class WrongPartitionWish(neutron_exceptions.BadRequest):
    """The request about a network or port can never be met; Neutron's API answers 400."""

    message = "%(reason)s"


class PartitionInUse(neutron_exceptions.Conflict):
    """Another network or port uses a part of the request; Neutron's API answers 409."""

    message = "%(reason)s"


class FabricUnavailable(neutron_exceptions.ServiceUnavailable):
    """No live fabric agent can serve the request; Neutron's API answers 503."""

    message = "%(reason)s"


_ANSWERS: Final[dict[type[PartitionError], Any]] = {
    WrongWishError: WrongPartitionWish,
    PartitionInUseError: PartitionInUse,
    FabricUnavailableError: FabricUnavailable,
}


@contextmanager
def _answers_of_api(what: str) -> Iterator[None]:
    """Turn refusals into errors of Neutron's API; details for the operator go to the log."""
    try:
        yield
    except PartitionError as error:
        LOG.warning("%s is refused: %s%s", what, error, f" ({error.detail})" * bool(error.detail))
        raise _ANSWERS[type(error)](reason=str(error)) from error


def _is_asked_by_service(asker: Any) -> bool:
    return bool(asker.is_admin or getattr(asker, "is_service_role", False))


def _read_heartbeats(context: Any) -> tuple[fabric_heartbeats.FabricHeartbeat, ...]:
    # In the session of the request: a second connection for each could exhaust the pool.
    return fabric_heartbeats.read_heartbeats(directory.get_plugin(), context.elevated())


def _read_status(port_id: str) -> str | None:
    # A session of its own: the request's session would return the status at its start.
    admin = neutron_context.get_admin_context()
    with db_api.CONTEXT_READER.using(admin):
        port = member_store.find_port(admin.session, port_id)
        return None if port is None else port.status


class PartitionMechanismDriver(api.MechanismDriver):
    """Neutron's mechanism driver that makes ports of vlan networks members of InfiniBand
    partitions.
    """

    def initialize(self) -> None:
        """Read the options of the driver.

        :raises neutron_drivers.fabrics.FabricOptionError: one cannot be used.
        """
        options.register_server_options(cfg.CONF)
        group = cfg.CONF.hpc_partitions
        self._settings = read_fabric_settings(group, read_capabilities(group.subnet_manager))
        self._port_places = PortPlaces(self._settings, Path(group.port_inventory))
        self._agents = FabricAgentClient()
        self._nova = NovaServerLookup(cfg.CONF)
        lock_path = lockutils.get_lock_path(cfg.CONF)
        self._places = WaitPlaces(count_places(group.bind_waiters, bool(lock_path)), lock_path)
        registry.subscribe(self._refuse_chosen_mac, resources.PORT, events.BEFORE_CREATE)

    def start_rpc_listeners(self) -> list[Any]:
        """Start the RPC server for the agents, in the processes of ``neutron-rpc-server``."""
        connection = neutron_rpc.Connection()
        connection.create_consumer(
            SERVER_TOPIC, [FabricAgentEndpoint(self._read_settings)], fanout=False
        )
        MemberWatch(self._read_settings, self._agents.wake, self._nova).start()
        servers: list[Any] = connection.consume_in_threads()
        return servers

    @property
    def connectivity(self) -> str:
        """The layer at which the driver connects ports: L2, so ports need no address to be
        bound.
        """
        connectivity: str = portbindings.CONNECTIVITY_L2
        return connectivity

    # -- networks ----------------------------------------------------------------------

    def create_network_precommit(self, context: Any) -> None:
        """Assign a P_Key to a new network, or refuse the network."""
        with _answers_of_api("A network"):
            key = network_rules.find_fabric_key(context.network_segments, self._settings)
            if key is not None:
                self._claim_key(context, key)

    def update_network_precommit(self, context: Any) -> None:
        """Assign a changed P_Key to a network; refuse the change while the network has members.

        Ports of a network that is switched off are not members.
        """
        if port_rules.has_changed(context.current, context.original, ("admin_state_up",)):
            member_sync.settle_network(
                context.plugin_context, self._settings, context.current["id"]
            )
        if not port_rules.has_changed(
            context.current, context.original, network_rules.PROVIDER_ATTRIBUTES
        ):
            return
        session, network_id = context.plugin_context.session, context.current["id"]
        with _answers_of_api(f"A change of network {network_id}"):
            before = member_store.keys_of_network(session, network_id)
            key = network_rules.find_fabric_key(context.network_segments, self._settings)
            if before == ({key} if key else set()):
                return
            if member_store.network_has_members(session, network_id):
                raise PartitionInUseError(
                    "the segments of an InfiniBand network cannot be changed while ports are "
                    "members of its partition, or were and are not rid of it yet"
                )
            member_store.release_keys(session, network_id)
            if key is not None:
                self._claim_key(context, key)

    def update_network_postcommit(self, context: Any) -> None:
        """Wake the agents if the network was switched off or on."""
        if port_rules.has_changed(context.current, context.original, ("admin_state_up",)):
            physical = {segment[api.PHYSICAL_NETWORK] for segment in context.network_segments}
            for fabric in sorted(
                {self._settings.fabrics[one] for one in physical & self._settings.fabrics.keys()}
            ):
                self._agents.wake(fabric)

    def delete_network_precommit(self, context: Any) -> None:
        """Release the P_Key of a network, unless ports still have it."""
        member_store.release_keys(context.plugin_context.session, context.current["id"])

    def _claim_key(self, context: Any, key: FabricKey) -> None:
        heartbeats = _read_heartbeats(context.plugin_context)
        foreign = fabric_heartbeats.foreign_pkeys_of(heartbeats, key.fabric)
        network_rules.check_free_key(key, self._settings, foreign)
        networks = [name for name, one in self._settings.fabrics.items() if one == key.fabric]
        session = context.plugin_context.session
        member_store.claim_key(session, key, context.current["id"], networks)

    # -- ports -------------------------------------------------------------------------

    def create_port_precommit(self, context: Any) -> None:
        """Add the provisioning block of a port that is created with a host."""
        self._keep_membership(context)

    def create_port_postcommit(self, context: Any) -> None:
        """Do nothing: a new port is bound after this call."""

    def update_port_precommit(self, context: Any) -> None:
        """Update the port's membership row and status so that they agree with its binding.

        A change to another server is refused while the old one may have the device.
        """
        self._refuse_chosen_server(context)
        self._keep_membership(context)

    def update_port_postcommit(self, context: Any) -> None:
        """Wake the agents, and hold the request that bound the port until it is a member."""
        key = self._find_key_of_port(context)
        port, original = context.current, context.original
        if key is None or not port_rules.has_changed(port, original, port_rules.DECIDING):
            return
        held = self._held_by(context, key)
        if held is None and not (original or {}).get("binding:vif_details", {}).get("guid"):
            return
        self._agents.wake(key.fabric)
        if (
            held is not None
            and port_rules.is_switched_on(port, context.network.current)
            and port["status"] == constants.PORT_STATUS_DOWN
            and port_rules.has_changed(port, original, port_rules.BOUND_WITH)
        ):
            with self._take_place(context) as taken:
                if taken:
                    self._wait_for_membership(context)

    def delete_port_precommit(self, context: Any) -> None:
        """Mark the member row of a deleted port as unwanted, and keep its GUID reserved."""
        session, port = context.plugin_context.session, context.current
        guid_holders.lock_holder(session, port["id"])
        member_store.set_membership(session, port["id"], None)
        guid_holders.leave_guid(session, port["id"])

    def delete_port_postcommit(self, context: Any) -> None:
        """Wake the agents, so that they remove the membership."""
        key = self._find_key_of_port(context)
        if key is not None and context.vif_details.get("guid"):
            self._agents.wake(key.fabric)

    def bind_port(self, context: Any) -> None:
        """Bind a port with a supported vnic type; without a binding Neutron sets
        ``binding_failed``.
        """
        key, port = self._find_key_of_port(context), context.current
        if key is None:
            return
        (segment,) = context.segments_to_bind
        try:
            guid = self._choose_guid(context, key)
        except PartitionError as error:
            LOG.error("Port %s is not bound: %s (%s)", port["id"], error, error.detail)
            return
        policy = self._settings.policies.get(key.pkey)
        context.set_binding(
            segment[api.ID],
            port_rules.choose_vif_type(port, self._settings),
            port_rules.describe_binding(
                key,
                format_guid(guid),
                segment[api.PHYSICAL_NETWORK],
                None if policy is None else policy.service_level,
            ),
            status=constants.PORT_STATUS_DOWN,
        )

    # -- inside ------------------------------------------------------------------------

    def _read_settings(self) -> FabricSettings:
        return self._settings

    def _find_key_of_port(self, context: Any) -> FabricKey | None:
        if not port_rules.is_partition_port(context.current):
            return None
        return self._find_key_of_network(context)

    def _find_key_of_network(self, context: Any) -> FabricKey | None:
        try:
            return network_rules.find_fabric_key(context.network.network_segments, self._settings)
        except WrongWishError:
            # A network of before the driver: none of its ports is bound by it.
            return None

    def _held_by(self, context: Any, key: FabricKey) -> port_rules.WantedMember | None:
        port = context.current
        return port_rules.held_of_binding(
            port,
            context.network.current,
            key,
            self._settings,
            self._port_places.find_physical_guid(context.host, port),
        )

    def _keep_membership(self, context: Any) -> None:
        """Bring the port's hold of a GUID and its membership in line with a change of the port.

        Phases: refuse a bind that cannot work, lock the GUID, hold it, change the membership. The
        GUID is released last, and only if the port is no longer bound and has left the host.
        """
        port, original = context.current, context.original
        if not port_rules.has_changed(port, original, port_rules.DECIDING):
            return
        key = self._find_key_of_port(context)
        if key is None and not (original and port_rules.is_partition_port(original)):
            return
        session = context.plugin_context.session
        with _answers_of_api(f"A change of port {port['id']}"):
            held = None if key is None else self._held_by(context, key)
            if key is not None and self._is_asked_to_bind(context):
                self._check_binding(context, key)
            before = guid_holders.lock_holder(session, port["id"])
            if held is not None:
                self._claim_key_of_member(context, held)
                most = self._settings.capabilities.most_pkeys_of_a_port
                held = guid_holders.hold_guid(session, port["id"], held, most)
            is_on = port_rules.is_switched_on(port, context.network.current)
            changed = member_sync.apply_membership(
                context.plugin_context,
                port["id"],
                held if is_on else None,
                has_host=key is not None and bool(context.host),
            )
            # The port is on the host and not bound: it has another type, or a bind failed. Its
            # server may run with the device.
            if held is None and before is not None and before.host != context.host:
                guid_holders.release_guid(session, port["id"])
        if changed:
            port["status"] = constants.PORT_STATUS_DOWN

    def _claim_key_of_member(self, context: Any, wanted: port_rules.WantedMember) -> None:
        """Claim the P_Key of a network that is older than the driver, with its first member."""
        session = context.plugin_context.session
        if wanted.key not in member_store.keys_of_network(session, wanted.network_id):
            networks = [n for n, one in self._settings.fabrics.items() if one == wanted.key.fabric]
            member_store.claim_key(session, wanted.key, wanted.network_id, networks)

    def _is_asked_to_bind(self, context: Any) -> bool:
        return bool(
            context.host
            and context.vif_type == portbindings.VIF_TYPE_UNBOUND
            and port_rules.has_changed(context.current, context.original, port_rules.ASKED_WITH)
        )

    def _check_binding(self, context: Any, key: FabricKey) -> None:
        """Refuse a binding early that ``bind_port`` could not make, with a reason.

        Nothing is changed.

        :raises PartitionError: ``bind_port`` could not make the binding.
        """
        place = self._choose_place(context, key)
        session, port_id = context.plugin_context.session, context.current["id"]
        owner = guid_holders.find_guid_owner(session, place)
        if owner is not None and owner.is_firm:
            raise guid_holders.conflict_of_guid(key.fabric, place.guid, owner.network_id)
        guid_holders.check_like_members(session, port_id, place)
        most = self._settings.capabilities.most_pkeys_of_a_port
        guid_holders.check_room(session, port_id, place, most)

    def _choose_guid(self, context: Any, key: FabricKey) -> int:
        """Choose the GUID for a binding, and wait for an owner that is about to leave it.

        :raises PartitionError: it cannot be bound.
        """
        active = self._find_active_host(context)
        if active not in ("", context.host):
            raise PartitionInUseError(
                "a port of an InfiniBand partition has one binding: no live migration",
                f"it is bound on {active}",
            )
        place = self._choose_place(context, key)
        if find_leaving_owner(place) is not None:
            with self._take_place(context) as taken:
                if taken:
                    wait_for_last_owner(place, self._settings.bind_wait, self._nova)
        return place.guid

    def _choose_place(self, context: Any, key: FabricKey) -> port_rules.WantedMember:
        heartbeats = _read_heartbeats(context.plugin_context)
        return self._port_places.choose_place(
            context.current, context.host, context.network.current, key, heartbeats
        )

    def _find_active_host(self, context: Any) -> str:
        admin = neutron_context.get_admin_context()
        with db_api.CONTEXT_READER.using(admin):
            return member_store.active_host_of_port(admin.session, context.current["id"])

    @contextmanager
    def _take_place(self, context: Any) -> Iterator[bool]:
        """Take a place among requests that wait for the fabric; yield False if it may not wait.

        Only Nova's requests wait: the other threads of the API are for all other users.
        """
        if not _is_asked_by_service(context.plugin_context):
            yield False
            return
        with self._places.take() as taken:
            yield taken

    def _wait_for_membership(self, context: Any) -> None:
        """Hold a request until its port is ACTIVE, is in ERROR, or has waited long enough.

        Nova does not wait for ports that are ACTIVE when the answer comes; an event before
        it waits for one would be lost.
        """
        port = context.current
        deadline, pause = time.monotonic() + self._settings.bind_wait, _FIRST_PAUSE
        while time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            try:
                status = _read_status(port["id"])
            except Exception as error:
                # The binding is committed; an error here would have Neutron delete a new port.
                LOG.warning("Port %s was not looked at: %s", port["id"], error)
                continue
            if status != constants.PORT_STATUS_DOWN:
                if status is not None:
                    # The answer to the request contains the new status, too.
                    port["status"] = status
                return

    def _refuse_chosen_server(self, context: Any) -> None:
        """Refuse another server in a port on a host if a project writes it.

        The driver queries Nova about the server of a port that was deleted while it was bound, so
        a project must not choose that server.
        """
        port, original = context.current, context.original
        if (
            port_rules.has_changed(port, original, ("device_id",))
            and original["binding:host_id"]
            and port_rules.is_partition_port(original)
            and not _is_asked_by_service(context.plugin_context)
            and self._find_key_of_network(context) is not None
        ):
            raise PartitionInUse(
                reason="the device_id of an InfiniBand port that is bound is set by Nova: detach "
                "the port (openstack server remove port)"
            )

    def _refuse_chosen_mac(
        self, _resource: str, _event: str, _trigger: object, payload: Any = None
    ) -> None:
        """Refuse a MAC that a project chose, if ``ebrctl`` makes a GUID of it.

        A MAC is unique only in its network, so a project could choose the GUID of another one.
        """
        if self._settings.direct_vif_type != port_rules.IB_HOSTDEV:
            return
        asker, port = payload.context, payload.latest_state
        if _is_asked_by_service(asker):
            return
        if not validators.is_attr_set(port.get("mac_address")):
            return
        try:
            directory.get_plugin().get_network(asker, port["network_id"])
        except neutron_exceptions.NetworkNotFound:
            return  # Neutron's own answer reveals no networks that the requester cannot see.
        with db_api.CONTEXT_READER.using(asker):
            physical = member_store.physical_networks_of(asker.session, port["network_id"])
        if physical & self._settings.fabrics.keys():
            raise WrongPartitionWish(
                reason="a port of an InfiniBand network gets its MAC address from the cloud: the "
                "GUID of its device is made of it"
            )
