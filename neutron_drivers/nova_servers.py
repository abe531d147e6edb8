# SPDX-License-Identifier: Apache-2.0
"""Asks Nova whether servers still exist, as the user of Neutron's section ``[nova]``."""

from __future__ import annotations

import functools
from typing import Any, Final

from keystoneauth1 import adapter, loading

#: Seconds for an answer of Nova, and of Keystone before it.
_LIMIT: Final = 3.0
_SECTION: Final = "nova"


class NovaServerLookup:
    """Nova's API, with the credentials of Neutron's own notifier."""

    def __init__(self, conf: Any) -> None:
        """Ask nothing yet.

        :param conf: ``oslo_config.cfg.CONF`` of Neutron's server.
        """
        self._conf = conf

    def explain_server(self, server_id: str) -> str:
        """The reason why a server may still have its devices; "": Nova has no such server.

        Nova reports servers of other projects as missing unless its user is an administrator, so
        the user has to list the aggregates as well.
        """
        try:
            status, document = self._get(f"/servers/{server_id}")
            if status != 404:
                return "Nova has the server" if status == 200 else f"Nova answers {status}"
            # Other services and proxies know the status 404, too.
            if server_id not in document.get("itemNotFound", {}).get("message", ""):
                return "the answer 404 is not Nova's"
            status, _ = self._get("/os-aggregates")
        except Exception as error:
            # Whatever the library raises: the server may be there.
            return f"Nova does not answer: {error}"
        if status != 200:
            return f"the user of section [nova] does not reach Nova as an administrator ({status})"
        return ""

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
        answer = self._api.get(path, raise_exc=False, headers={"Accept": "application/json"})
        return answer.status_code, answer.json() if answer.status_code == 404 else None
