# SPDX-License-Identifier: Apache-2.0
"""Speaks the REST API of UFM Enterprise, as far as partitions need it.

Paths, bodies and answers are those of NVIDIA's *UFM Enterprise REST API Guide* (6.15.1 to 6.24.1:
*PKey GUIDs*, *Ports*, *Virtual Ports*, *SM Configuration*, *Jobs*). **Not tried on the real
product**: ``tests/data/ufm/contract.json`` has what the guide says, with its pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.outside.text import printable_text

#: Where a user with a password finds the API; ``/ufmRestV2`` and ``V3`` take certificates, tokens.
ROOT: Final = "/ufmRest"
#: Answers that pass by themselves.
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
#: A password goes in clear text to this machine alone.
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LONGEST_REASON: Final = 300


class UfmRefusedError(SubnetManagerError):
    """UFM does not do what one request asks for; the next may be all right."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        #: HTTP status of the answer; 0: another reason.
        self.status = status


@attrs.frozen
class UfmAccess:
    """Where UFM is, and who asks."""

    url: str
    user: str
    password: str = attrs.field(repr=False)
    #: Certificates of those who may have signed UFM's; None: the system's.
    ca_file: str | None = None
    #: Seconds to connect, and to wait for each piece of an answer.
    timeouts: tuple[float, float] = (5.0, 30.0)
    #: How often a request is repeated that found nobody, or a server in trouble. All requests
    #: here may be repeated: a GUID that is there already is not added twice.
    retries: int = 3
    #: Seconds before the second repetition, doubled each time.
    retry_wait: float = 0.5

    def __attrs_post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SubnetManagerError(
                f"[hpc_fabric_agent]ufm_url is {printable_text(self.url)!r}; it must be like "
                "https://ufm.example.org"
            )
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise SubnetManagerError(
                f"[hpc_fabric_agent]ufm_url is {printable_text(self.url)!r}: the password would "
                "pass in clear text; use https"
            )


class UfmClient:
    """A session with UFM; not for several threads."""

    def __init__(self, access: UfmAccess) -> None:
        self._access = access
        self._root = access.url.rstrip("/") + ROOT
        self._session = requests.Session()
        self._session.auth = (access.user, access.password)
        self._session.headers["Accept"] = "application/json"
        # Proxies and .netrc of the environment are nobody's business here.
        self._session.trust_env = False
        self._session.verify = access.ca_file or True
        retry = Retry(
            total=access.retries,
            backoff_factor=access.retry_wait,
            status_forcelist=_PASSING,
            allowed_methods=None,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def get(self, path: str, **query: str) -> Any:
        """The JSON that UFM answers.

        :raises UfmRefusedError: UFM refuses this request.
        :raises SubnetManagerError: UFM does not answer, or not as the guide says.
        """
        answer = self._request("GET", path, query=query)
        try:
            return answer.json()
        except requests.exceptions.JSONDecodeError as error:
            raise SubnetManagerError(
                f"UFM answers GET {path} with no JSON ({answer.headers.get('Content-Type')}); is "
                f"[hpc_fabric_agent]ufm_url ({self._access.url}) UFM's?"
            ) from error

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str | None:
        """Ask for a change.

        :returns: the number of the job in which UFM makes it (status 202); None: it is made.
        :raises UfmRefusedError: UFM refuses this change.
        :raises SubnetManagerError: UFM does not answer; the change may have been made.
        """
        answer = self._request(method, path, body=body)
        if answer.status_code != requests.codes.accepted:
            return None
        job = str(answer.headers.get("Location", "")).rstrip("/").rpartition("/")[2]
        if not job.isalnum():
            raise UfmRefusedError(f"UFM accepts {method} {path} as a job and does not say which")
        return job

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._session.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> requests.Response:
        try:
            answer = self._session.request(
                method,
                self._root + path,
                params=query,
                json=body,
                timeout=self._access.timeouts,
                # A password does not follow to another place.
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            raise SubnetManagerError(
                f"the certificate of UFM at {self._access.url} is not trusted: "
                f"{_shorten(error)}; [hpc_fabric_agent]ufm_ca_file names who has signed it"
            ) from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise SubnetManagerError(
                f"UFM at {self._access.url} does not answer {method} {path}: {_shorten(error)}"
            ) from error
        status = answer.status_code
        if status in (requests.codes.ok, 201, 202, 204):
            return answer
        if status in (401, 403):
            raise SubnetManagerError(
                f"UFM at {self._access.url} refuses the user {self._access.user} ({status} on "
                f"{method} {path}); see ufm_user and ufm_password in [hpc_fabric_agent]"
            )
        if 400 <= status < 500 and status not in _PASSING:
            raise UfmRefusedError(
                f"UFM refuses {method} {path}: {status} {_shorten(answer.text)}", status
            )
        raise SubnetManagerError(
            f"UFM at {self._access.url} answers {method} {path} with {status}: "
            f"{_shorten(answer.text)}"
        )


def _shorten(text: object) -> str:
    return printable_text(" ".join(str(text).split()))[:_LONGEST_REASON]
