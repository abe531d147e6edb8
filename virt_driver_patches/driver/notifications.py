# SPDX-License-Identifier: Apache-2.0
"""Sends notifications when the state of a device has changed, or when a guest lacks one.

These are Nova's own versioned notifications (nova/notifications/objects/base.py, releases 32 to
34). Nova's options ``[notifications]`` and ``[oslo_messaging_notifications]`` define what is
sent, if anything. The event ``hpc_device.update`` is about a device of
the node. Its payload contains no serial numbers and no reasons, because reasons name servers:
they are in ``stats['hpc']`` and in the ledger of the node. ``hpc_guest_device.update`` is about a
server whose guest lacks devices of Nova's records, or has others. ``hpc_server_fault.update`` is
about a fault of a running server's device. Both name the server, as Nova's own notifications of
servers do.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs
from nova import context as nova_context
from nova.notifications.objects import base
from nova.objects import base as nova_base
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.wire.ledger import DeviceState, Ledger

LOG = logging.getLogger(__name__)

_OBJECT: Final = "hpc_device"
_GUEST: Final = "hpc_guest_device"
_FAULT: Final = "hpc_server_fault"
#: The most changes of one update that are sent; the others are only counted.
_MOST: Final = 64
_Key = TypeVar("_Key", str, tuple[str, str])


class _HpcPayload(base.NotificationPayloadBase):
    """Base of the payloads: each is created from the values of its fields, given by name."""

    def __init__(self, **values: Any) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, value)


@nova_base.NovaObjectRegistry.register_notification
class HpcDeviceStatePayload(_HpcPayload):
    """Payload of a change of a device's state, with the state before and the state now."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {
        "host": fields.StringField(),
        "node": fields.StringField(),
        # PCI address in the node.
        "address": fields.StringField(),
        # offered, suspect or quarantined.
        "old_state": fields.StringField(),
        "state": fields.StringField(),
        # Kind of fault, a value of nova_hpc.tenancy.sign.HealthSign; "" if there is none.
        "sign": fields.StringField(),
        # Number of times that it was found faulty.
        "tries": fields.IntegerField(),
        # When the state began.
        "since": fields.DateTimeField(nullable=True),
        # Changes of the same update that are not sent.
        "left_out": fields.IntegerField(),
    }


@nova_base.NovaObjectRegistry.register_notification
class HpcDeviceStateNotification(base.NotificationBase):
    """The versioned notification ``hpc_device.update``: a device's state has changed."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {"payload": fields.ObjectField("HpcDeviceStatePayload")}


@nova_base.NovaObjectRegistry.register_notification
class HpcGuestDevicePayload(_HpcPayload):
    """Payload of a device that a server's guest lacks, or has although it must not."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {
        "host": fields.StringField(),
        "node": fields.StringField(),
        # PCI address in the node.
        "address": fields.StringField(),
        "server_uuid": fields.UUIDField(),
        # gone: its guest has lost it; more: its guest has it, and was not given it; "": no
        # difference any more, or the server is no longer here.
        "difference": fields.StringField(),
        # Changes of the same update that are not sent.
        "left_out": fields.IntegerField(),
    }


@nova_base.NovaObjectRegistry.register_notification
class HpcGuestDeviceNotification(base.NotificationBase):
    """The versioned notification ``hpc_guest_device.update``: a guest's devices differ."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {"payload": fields.ObjectField("HpcGuestDevicePayload")}


@nova_base.NovaObjectRegistry.register_notification
class HpcServerFaultPayload(_HpcPayload):
    """A fault of a device that a running server has, or its end."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {
        "host": fields.StringField(),
        # PCI address in the node.
        "address": fields.StringField(),
        "server_uuid": fields.UUIDField(),
        # A value of nova_hpc_common.wire.server_faults.FaultWord.
        "fault": fields.StringField(),
        # False if the fault is over, or the server is no longer here.
        "present": fields.BooleanField(),
        # When the fault was found.
        "since": fields.DateTimeField(nullable=True),
    }


@nova_base.NovaObjectRegistry.register_notification
class HpcServerFaultNotification(base.NotificationBase):
    """The versioned notification ``hpc_server_fault.update``: a server has a fault of a device."""

    # Version 1.0: Initial version
    VERSION = "1.0"
    fields: Final = {"payload": fields.ObjectField("HpcServerFaultPayload")}


def notify_server_fault(
    host: str, address: str, server: str, fault: str, present: bool, since: float
) -> None:
    """Send that a fault of a server's device was found, or is over. Never raises.

    :param host: the service's name for this node.
    :param since: when it was found, Unix time in seconds.
    """
    try:
        HpcServerFaultNotification(
            priority=_priority_of_change(not present),
            publisher=_compute_publisher_of(host),
            event_type=base.EventType(object=_FAULT, action=fields.NotificationAction.UPDATE),
            payload=HpcServerFaultPayload(
                host=host,
                address=address,
                server_uuid=server,
                fault=fault,
                present=present,
                since=_datetime_of_moment(since),
            ),
        ).emit(nova_context.get_admin_context())
    except Exception:
        LOG.exception("No notification of the fault of PCI device %s was sent", address)


@attrs.define
class DeviceStateNotifier:
    """Sends each change once; after a restart of the service it sends withheld devices again."""

    _known: Mapping[str, DeviceState] = attrs.field(factory=dict)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def tell(self, ledger: Ledger, host: str, nodename: str) -> None:
        """Send the changes since the last call. Never raises.

        :param host: the service's name for this node.
        """
        if ledger.lost:
            return
        current = {
            address: device.state
            for address, device in ledger.devices.items()
            if device.state is not DeviceState.OFFERED
        }
        with self._lock:
            before, self._known = self._known, current
        for address, left_out in _select_changes(before, current):
            old = before.get(address, DeviceState.OFFERED)
            try:
                _build_state_notification(ledger, address, old, (host, nodename), left_out).emit(
                    nova_context.get_admin_context()
                )
            except Exception:
                LOG.exception("Nobody was told that the state of PCI device %s changed", address)
                return


@attrs.define
class GuestNotifier:
    """Sends once that a guest lacks a device or has an extra one, and that the difference is gone.

    After a restart of the service it sends the differences again. The caller holds a lock.
    """

    _known: Mapping[tuple[str, str], str] = attrs.field(factory=dict)

    def tell(self, current: Mapping[tuple[str, str], str], host: str, nodename: str) -> None:
        """Send the changes since the last call. Never raises.

        :param current: (server, address) -> difference, a value of
            :mod:`nova_hpc.tenancy.kept_devices`.
        :param host: the service's name for this node.
        """
        before, self._known = self._known, dict(current)
        for (server, address), left_out in _select_changes(before, current):
            difference = current.get((server, address), "")
            try:
                HpcGuestDeviceNotification(
                    priority=_priority_of_change(not difference),
                    publisher=_compute_publisher_of(host),
                    event_type=base.EventType(
                        object=_GUEST, action=fields.NotificationAction.UPDATE
                    ),
                    payload=HpcGuestDevicePayload(
                        host=host,
                        node=nodename,
                        address=address,
                        server_uuid=server,
                        difference=difference,
                        left_out=left_out,
                    ),
                ).emit(nova_context.get_admin_context())
            except Exception:
                LOG.exception("Nobody was told what the guest of server %s differs in", server)
                return


def _select_changes(
    before: Mapping[_Key, object], after: Mapping[_Key, object]
) -> Iterator[tuple[_Key, int]]:
    """Select the changes to send, at most _MOST, each with the number of the others."""
    changed = sorted(
        key for key in before.keys() | after.keys() if before.get(key) != after.get(key)
    )
    left_out = max(0, len(changed) - _MOST)
    return ((key, left_out) for key in changed[:_MOST])


def _priority_of_change(well: bool) -> str:
    priority: str = fields.NotificationPriority.INFO if well else fields.NotificationPriority.WARN
    return priority


def _compute_publisher_of(host: str) -> base.NotificationPublisher:
    return base.NotificationPublisher(host=host, source=fields.NotificationSource.COMPUTE)


def _build_state_notification(
    ledger: Ledger, address: str, old: DeviceState, where: tuple[str, str], left_out: int
) -> HpcDeviceStateNotification:
    device = ledger.device(address)
    trial = device.trial
    return HpcDeviceStateNotification(
        priority=_priority_of_change(device.state is DeviceState.OFFERED),
        publisher=_compute_publisher_of(where[0]),
        event_type=base.EventType(object=_OBJECT, action=fields.NotificationAction.UPDATE),
        payload=HpcDeviceStatePayload(
            host=where[0],
            node=where[1],
            address=address,
            old_state=old.value,
            state=device.state.value,
            sign="" if trial is None else trial.sign,
            tries=0 if trial is None else trial.tries,
            since=None if trial is None else _datetime_of_moment(trial.since),
            left_out=left_out,
        ),
    )


def _datetime_of_moment(moment: float) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(moment, datetime.UTC) if moment else None
    except (OverflowError, OSError, ValueError):
        return None
