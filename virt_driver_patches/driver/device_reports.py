# SPDX-License-Identifier: Apache-2.0
"""Files the reports that owners write as tags of their servers (``hpc-report=WORD``).

The watch reads them once a minute, in one request for all servers with devices here; its answer
contains only servers with a known word. A server's end reads them once more. Each new word becomes
an instance action and an entry of the ledger for the server's devices. A tag that is gone becomes
an action, too.

The server's own actions show which words are filed. So a report is filed once, also if nova-compute
ends between the action and the ledger, or if the ledger is lost. A word that was filed before the
server was last launched is about other devices, after a move for example: that report is over.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.watch import owner_report
from nova_hpc.tenancy.watch.rules import ServerCondition
from nova_hpc.wire.ledger import Ledger
from nova_hpc_common.wire import server_faults
from nova_hpc_common.wire.server_faults import (
    OWNER_WORDS,
    REPORTED_ACTION,
    WITHDRAWN_ACTION,
    FaultWord,
)
from virt_driver_patches.driver import server_standing

LOG = logging.getLogger(__name__)

#: Seconds between two readings.
PAUSE: Final = 60.0
#: Actions of a server that are read, the latest first.
_MOST_ACTIONS: Final = 200


@attrs.define
class DeviceReports:
    """The reports about the devices of one node."""

    #: The service's name for this node.
    _host: str
    _ledger: LedgerFile
    #: The moment of the next reading.
    _due: float = attrs.field(default=0.0, init=False)
    _failed: bool = attrs.field(default=False, init=False)
    #: The watch and the end of a server may settle the same report.
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def read(self, users: Mapping[str, str], moment: float) -> None:
        """Read and file the reports of this node's servers if a minute has passed. Never raises.

        :param users: device address -> server.
        :param moment: seconds of a clock that only goes forward.
        """
        if not users or moment < self._due:
            return
        self._due = moment + PAUSE
        try:
            self._read(users)
        except Exception as error:
            if not self._failed:
                LOG.info("The reports of owners are read later: %s", error)
            self._failed = True
        else:
            self._failed = False

    def _read(self, users: Mapping[str, str]) -> None:
        addresses_by_server: dict[str, list[str]] = {}
        for address, server in users.items():
            addresses_by_server.setdefault(server, []).append(address)
        tagged = _read_tagged_servers(sorted(addresses_by_server))
        recorded = _recorded_words_of(self._ledger.known(), addresses_by_server)
        present = {
            server: server_faults.read_report_tags(tag.tag for tag in instance.tags)
            for server, instance in tagged.items()
            # A server that has moved answers for its devices there.
            if instance.host == self._host
        }
        # These have no such tag any more, or are deleted.
        states = server_standing.read_server_states(self._host, recorded.keys() - tagged.keys())
        for server, state in states.items():
            if state.tags is not None and state.standing is not ServerCondition.AWAY:
                present[server] = server_faults.read_report_tags(state.tags)
        failures: list[Exception] = []
        for server, words in present.items():
            if set(words) == recorded.get(server, {}).keys():
                continue
            launched = tagged[server].launched_at if server in tagged else None
            try:
                self._settle(server, addresses_by_server[server], words, launched)
            except exception.InstanceNotFound:
                continue  # deleted, and its tags with it
            except Exception as error:  # it holds up no other server
                failures.append(error)
                if isinstance(error, oslo_messaging.MessagingTimeout):
                    break
        if failures:
            raise failures[0]

    def end(self, instance: Any, users: Mapping[str, str] | None) -> None:
        """Read the reports of a server that ends, before its devices are checked. Never raises."""
        addresses = [
            address for address, server in (users or {}).items() if server == instance.uuid
        ]
        if not addresses:
            return
        try:
            context = nova_context.get_admin_context()
            tags = objects.TagList.get_by_resource_id(context, instance.uuid)
            words = server_faults.read_report_tags(tag.tag for tag in tags)
            self._settle(instance.uuid, addresses, words, instance.launched_at)
        except exception.InstanceNotFound:
            return
        except Exception as error:
            LOG.info("Its owner's last reports are not read: %s", error, instance=instance)

    def _settle(
        self,
        server: str,
        addresses: Sequence[str],
        present: Sequence[FaultWord],
        launched: datetime.datetime | None,
    ) -> None:
        """File the words that came and went since the ledger's entry, and write that.

        :param launched: when the server began to run with these devices; None if unknown.
        :raises nova.exception.InstanceNotFound: the server is deleted.
        :raises nova_hpc.tenancy.ledger.LedgerError: the ledger cannot be written.
        """
        with self._lock:
            before = _recorded_words_of(self._ledger.known(), {server: addresses}).get(server, {})
            if set(present) == before.keys():
                return
            filed = _read_filed_words(server)
            after = {word: since for word, since in before.items() if word in present}
            for word in OWNER_WORDS:
                began = filed.get(word)
                if word in before and word not in present and began is not None:
                    _write_action(server, WITHDRAWN_ACTION, word)
                elif word in present and word not in before:
                    if began is not None and launched is not None and began < launched:
                        _remove_tag(server, word)
                        _write_action(server, WITHDRAWN_ACTION, word)
                        continue
                    began = began or _write_action(server, REPORTED_ACTION, word)
                    after[word] = began.timestamp()
            self._ledger.change(
                lambda ledger: ledger.put(
                    {
                        address: owner_report.put_reported_words(
                            ledger.device(address), server, after
                        )
                        for address in addresses
                    }
                )
            )
            LOG.info(
                "The owner of server %s reports of PCI devices %s: %s",
                *(server, ", ".join(addresses), ", ".join(word.value for word in after) or "-"),
            )


def _recorded_words_of(
    ledger: Ledger, addresses_by_server: Mapping[str, Sequence[str]]
) -> dict[str, dict[FaultWord, float]]:
    """Server -> words in the ledger -> Unix time, for servers with any."""
    recorded: dict[str, dict[FaultWord, float]] = {}
    for server, addresses in addresses_by_server.items():
        for address in addresses:
            report = owner_report.load_owner_report(ledger.device(address).report)
            if report is not None and report.server == server:
                recorded.setdefault(server, {}).update(report.words)
    return recorded


def _read_tagged_servers(servers: Sequence[str]) -> dict[str, Any]:
    """Return those of some servers that have a known word, with their tags: one request."""
    filters = {
        "uuid": list(servers),
        "tags-any": [word.report_tag for word in OWNER_WORDS],
        "deleted": False,
        "soft_deleted": True,
    }
    instances = objects.InstanceList.get_by_filters(
        nova_context.get_admin_context(), filters, expected_attrs=["tags"]
    )
    return {instance.uuid: instance for instance in instances}


def _read_filed_words(server: str) -> dict[FaultWord, datetime.datetime]:
    """Return the words that are reported and not withdrawn by the server's actions, with times."""
    actions = objects.InstanceActionList.get_by_instance_uuid(
        nova_context.get_admin_context(), server, limit=_MOST_ACTIONS
    )
    filed: dict[FaultWord, datetime.datetime] = {}
    words = {word.value: word for word in OWNER_WORDS}
    for action in reversed(list(actions)):
        word = words.get(action.message)
        if word is not None and action.action == REPORTED_ACTION:
            filed[word] = action.start_time
        elif word is not None and action.action == WITHDRAWN_ACTION:
            filed.pop(word, None)
    return filed


def _remove_tag(server: str, word: FaultWord) -> None:
    with contextlib.suppress(exception.InstanceTagNotFound):  # its owner was faster
        objects.Tag.destroy(nova_context.get_admin_context(), server, word.report_tag)


def _write_action(server: str, action: str, word: FaultWord) -> datetime.datetime:
    """Write an action for the owner, and return its time."""
    context = nova_context.get_admin_context()
    moment: datetime.datetime = timeutils.utcnow(with_timezone=True)
    objects.InstanceAction(
        context=context,
        instance_uuid=server,
        request_id=context.request_id,
        action=action,
        message=word.value,
        start_time=moment,
        updated_at=moment,
    ).create()
    return moment
