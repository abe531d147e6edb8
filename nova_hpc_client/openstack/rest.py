# SPDX-License-Identifier: Apache-2.0
"""Requests to Nova, Neutron and Glance over the connection of the OpenStack client.

The SDK's own classes negotiate a microversion for each call, and drop fields that they do not
model. So this module sends plain requests with one microversion. It repeats no request: a ``POST``
whose answer was lost may have taken effect, and must not be sent twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from keystoneauth1 import exceptions as keystone
from openstack import exceptions as sdk

from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, LostError
from nova_hpc_client.cluster.wish import MICROVERSION
from nova_hpc_common.outside.text import printable_text

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_OUTDATED: Final = 412
_TOO_MANY: Final = 429
_BAD: Final = 400
_OWN_FAULT: Final = 500


class GoneError(ClusterCloudError):
    """The object does not exist (any more)."""


class ConflictError(ClusterCloudError):
    """The object exists already, is in use, or is in a state that allows no change."""


class OutdatedError(ClusterCloudError):
    """The object has changed since it was read (``If-Match``)."""


class RestClient:
    """Plain requests with the user's token.

    :param connection: an ``openstack.connection.Connection``.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @property
    def project(self) -> str:
        """UUID of the user's current project, as text."""
        return str(self._connection.current_project_id)

    def nova(
        self,
        method: str,
        path: str,
        body: Any = None,
        microversion: str = MICROVERSION,
        **query: Any,
    ) -> Any:
        """Send a request to Nova.

        :returns: the JSON of the answer; None if the answer is empty.
        :raises GoneError: status 404.
        :raises ConflictError: status 409.
        :raises LostError: no answer, a fault of the service, or too many requests.
        :raises ClusterCloudError: Nova refuses the request.
        """
        send = lambda **keywords: self._connection.compute.request(  # noqa: E731
            path, method, params=query, microversion=microversion, **keywords
        )
        return _send_request(send, body)

    def neutron(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **query: Any,
    ) -> Any:
        """Send a request to Neutron, as :meth:`nova` does.

        :raises OutdatedError: status 412, for a request with ``If-Match``.
        """
        send = lambda **keywords: self._connection.network.request(  # noqa: E731
            path, method, params=query, headers=dict(headers or {}), **keywords
        )
        return _send_request(send, body)

    def glance(self, method: str, path: str, **query: Any) -> Any:
        """Send Glance a request, and return the decoded answer, as :meth:`nova` does for Nova."""
        send = lambda **keywords: self._connection.image.request(  # noqa: E731
            path, method, params=query, **keywords
        )
        return _send_request(send, None)

    @property
    def has_neutron(self) -> bool:
        """Whether the catalogue of services contains Neutron."""
        try:
            return self._connection.network.get_endpoint() is not None
        except (keystone.CatalogException, sdk.SDKException):
            return False

    def servers(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield Nova's details of each server of the project, reading page by page.

        :param query: further query parameters of Nova's ``GET /servers/detail``.
        """
        marker: dict[str, str] = {}
        while True:
            page = self.nova("GET", "/servers/detail", **query, **marker)
            yield from page["servers"]
            if not page["servers"] or not page.get("servers_links"):
                return
            marker = {"marker": page["servers"][-1]["id"]}

    def groups(self) -> list[dict[str, Any]]:
        """Return Nova's records of all server groups of the project, read page by page."""
        groups: list[dict[str, Any]] = []
        while True:
            page = self.nova("GET", "/os-server-groups", offset=len(groups))["server_groups"]
            # The operator chooses the length of a page, so only an empty page is surely the last.
            if not page:
                return groups
            groups += page

    def ports(self, **query: Any) -> list[dict[str, Any]]:
        """Return Neutron's records of the project's ports, read page by page; [] without Neutron.

        :param query: further query parameters of Neutron's ``GET /ports``.
        """
        if not self.has_neutron:
            return []
        ports: list[dict[str, Any]] = []
        marker: dict[str, Any] = {}
        while True:
            page = self.neutron("GET", "/ports", project_id=self.project, **query, **marker)
            ports += page["ports"]
            links = {link.get("rel") for link in page.get("ports_links", ())}
            if not page["ports"] or "next" not in links:
                return ports
            marker = {"marker": page["ports"][-1]["id"]}

    def images(self, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield Glance's records of the images that the project owns, reading page by page.

        :param query: further query parameters of Glance's ``GET /images``.
        """
        marker: dict[str, str] = {}
        while True:
            page = self.glance("GET", "/images", owner=self.project, **query, **marker)
            yield from page["images"]
            if not page["images"] or not page.get("next"):
                return
            marker = {"marker": page["images"][-1]["id"]}


def _send_request(send: Callable[..., Any], body: Any) -> Any:
    """Send a request once, and turn each failure into an error of this module.

    Errors of the service (5xx), too many requests (429) and unreadable answers count as lost: the
    request may have taken effect, or may succeed later.
    """
    sent: Mapping[str, Any] = {} if body is None else {"json": body}
    try:
        answer = send(raise_exc=False, connect_retries=0, **sent)
    except (keystone.ConnectionError, keystone.ConnectTimeout) as error:
        raise LostError(str(error)) from error
    except (keystone.ClientException, sdk.SDKException) as error:
        raise ClusterCloudError(str(error)) from error
    if answer.status_code >= _BAD:
        reason = f"{_reason_of_answer(answer)} (HTTP {answer.status_code})"
        if answer.status_code == _NOT_FOUND:
            raise GoneError(reason)
        if answer.status_code == _CONFLICT:
            raise ConflictError(reason)
        if answer.status_code == _OUTDATED:
            raise OutdatedError(reason)
        if answer.status_code >= _OWN_FAULT or answer.status_code == _TOO_MANY:
            raise LostError(reason)
        raise ClusterCloudError(reason)
    if not answer.content:
        return None
    try:
        return answer.json()
    except ValueError as error:
        raise LostError(f"an answer that is not JSON: {error}") from error


def _reason_of_answer(answer: Any) -> str:
    """Return the reason in a service's error answer, on one line of at most 500 characters."""
    try:
        data = json.loads(answer.text)
        inner = next(iter(data.values()))
        text = inner["message"] if isinstance(inner, dict) else inner
    except (ValueError, AttributeError, StopIteration, KeyError, TypeError):
        # Glance answers errors with an HTML page.
        text = re.sub("<[^<>]*>", " ", answer.text) or answer.reason
    return printable_text(" ".join(str(text).split()))[:500]
