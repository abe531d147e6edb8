# SPDX-License-Identifier: Apache-2.0
"""Reads from Nova whether servers still have devices, as the user of Neutron's ``[nova]``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final
from urllib import parse

from keystoneauth1 import adapter, exceptions, loading

#: Seconds for an answer of Nova, and of Keystone before it.
_LIMIT: Final = 3.0
_SECTION: Final = "nova"
#: From this version on, Nova lists services and servers of cells that do not answer.
_HEADERS: Final = {"Accept": "application/json", "OpenStack-API-Version": "compute 2.69"}
#: Values of ``OS-EXT-STS:vm_state`` in which a server has devices only on the host that Nova
#: names. A resized server has them on two hosts until it is confirmed.
_SETTLED: Final = frozenset(
    {"active", "paused", "rescued", "shelved", "shelved_offloaded", "stopped", "suspended"}
)


def explain_presence(server: Mapping[str, Any], host: str) -> str:
    """Explain why a server of Nova may have devices on a host; "" if it has none there.

    :param server: Nova's document, as administrators get it.
    """
    now, state = server.get("OS-EXT-SRV-ATTR:host", host), server.get("OS-EXT-STS:vm_state")
    task = server.get("OS-EXT-STS:task_state", "unknown")
    if now == host:
        return "Nova has the server there"
    if task is not None or state not in _SETTLED:
        return f"Nova has the server in state {state}, task {task}"
    return ""


class NovaServerLookup:
    """Queries Nova's API for servers, with the credentials of Neutron's own notifier."""

    def __init__(self, conf: Any) -> None:
        """Send no request yet.

        :param conf: ``oslo_config.cfg.CONF`` of Neutron's server.
        """
        self._conf = conf

    def explain_hold(self, server_id: str, host: str) -> str:
        """Query Nova and explain why a server may still have devices on a host; "" if none there.

        If a host is down, Nova may give a server up and evacuate it while its guest still runs
        there. So the host's service has to be up, or removed by the operator. Nova reports servers
        of other projects as missing unless its user is an administrator. Only administrators can
        read the list of services, so a user without the rights is noticed.

        :param host: as Nova's service and the port's binding name it.
        """
        try:
            status, document = self._get(f"/servers/{server_id}")
            if status == 200:
                reason = explain_presence(document["server"], host)
            elif status != 404:
                reason = f"Nova answers {status}"
            # Other services and proxies also answer 404.
            elif server_id not in document.get("itemNotFound", {}).get("message", ""):
                reason = "the answer 404 is not Nova's"
            else:
                reason = ""
            return reason or self._explain_service(host)
        except exceptions.HttpError as error:
            # The text has the request's ID: each one would be a new complaint.
            return f"Keystone answers {error.http_status}"
        except Exception as error:
            # Catch everything: after any error of the library the server may be there.
            return f"Nova does not answer: {error}"

    def _explain_service(self, host: str) -> str:
        query = parse.urlencode({"binary": "nova-compute", "host": host})
        status, document = self._get(f"/os-services?{query}")
        if status != 200:
            return f"the user of section [nova] does not reach Nova as an administrator ({status})"
        down = [service for service in document["services"] if service.get("state") != "up"]
        return f"nova-compute of its host {host} is down" if down else ""

    @functools.cached_property
    def _api(self) -> Any:
        options = self._conf[_SECTION]
        auth = loading.load_auth_from_conf_options(self._conf, _SECTION)
        session = loading.load_session_from_conf_options(
            self._conf, _SECTION, auth=auth, timeout=_LIMIT
        )
        return adapter.Adapter(
            session,
            service_type="compute",
            interface=options.endpoint_type,
            region_name=options.region_name,
        )

    def _get(self, path: str) -> tuple[int, Any]:
        answer = self._api.get(path, raise_exc=False, headers=_HEADERS)
        return answer.status_code, answer.json() if answer.status_code in (200, 404) else None
