# SPDX-License-Identifier: Apache-2.0
"""A client of UFM Enterprise's REST API, with the requests that partitions need.

Paths, bodies and answers follow NVIDIA's *UFM Enterprise REST API Guide* (6.15.1 to 6.24.1:
*PKey GUIDs*, *Ports*, *Virtual Ports*, *SM Configuration*, *Jobs*). **Not tested with the real
product**: ``tests/data/ufm/contract.json`` quotes the guide, with its pages.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import attrs
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc_common.outside.text import printable_text

#: The API for users with a password; ``/ufmRestV2`` and ``V3`` take certificates and tokens.
ROOT: Final = "/ufmRest"
#: HTTP statuses of faults that pass by themselves.
_PASSING: Final = frozenset({429, 500, 502, 503, 504})
#: Methods that may be sent twice. An addition may not: the first could arrive after a removal.
_REPEATABLE: Final = frozenset({"GET", "PUT", "DELETE"})
#: The only machine that gets a password in clear text is this one.
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LONGEST_REASON: Final = 300
#: Entries of one page, and the most pages of one list.
_PAGE_LENGTH: Final = 1000
_MOST_PAGES: Final = 1000
#: OpenSSL's result of a verification (``X509_V_ERR_...``) -> the cure.
_NEW_CERTIFICATE: Final = "renew UFM's certificate, or set the clocks right"
_OTHER_NAME: Final = "[hpc_fabric_agent]ufm_url must have a name that the certificate has"
_CERTIFICATE_CURES: Final[Mapping[int, str]] = {
    9: _NEW_CERTIFICATE,
    10: _NEW_CERTIFICATE,
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
_NAME_SIGNER: Final = (
    "[hpc_fabric_agent]ufm_ca_file must name a file with the certificate that has signed UFM's"
)


class UfmRefusedError(SubnetManagerError):
    """UFM refuses one request; the next may succeed."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        #: HTTP status of the answer; 0 if the reason is another one.
        self.status = status


class UfmTroubleError(SubnetManagerError):
    """UFM answers one request with an error of its own; the change may have been made."""


class UfmSilentError(SubnetManagerError):
    """UFM gives no answer; the change may have been made, or may be made later."""


class UfmUntrackedError(SubnetManagerError):
    """UFM carries out a change in a job and does not name the job."""


@attrs.frozen
class UfmAccess:
    """Address, user and timeouts for UFM's REST API."""

    url: str
    user: str
    password: str = attrs.field(repr=False)
    #: File with the authorities for UFM's certificate; None for the system's.
    ca_file: str | None = None
    #: Seconds to connect, and to wait for each piece of an answer.
    timeouts: tuple[float, float] = (5.0, 30.0)
    #: How often a request is repeated if no server listens, or the server is in trouble.
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
        if self.ca_file is not None:
            _check_ca_file(self.ca_file)


class UfmClient:
    """A session with UFM's REST API, for a single thread."""

    def __init__(self, access: UfmAccess) -> None:
        self._access = access
        self._root = access.url.rstrip("/") + ROOT
        self._session = requests.Session()
        self._session.auth = (access.user, access.password)
        self._session.headers["Accept"] = "application/json"
        # Proxies and .netrc of the environment do not apply to UFM.
        self._session.trust_env = False
        self._session.verify = access.ca_file or True
        retry = Retry(
            total=access.retries,
            # An answer that does not come in time once may come the second time, not the fourth.
            read=min(1, access.retries),
            # A certificate is not better the second time.
            other=0,
            backoff_factor=access.retry_wait,
            status_forcelist=_PASSING,
            allowed_methods=_REPEATABLE,
            raise_on_status=False,
            respect_retry_after_header=False,
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=retry))

    def get(self, path: str, **query: str) -> Any:
        """Read UFM's JSON answer; if it has several pages, all pages.

        A record that an object contains twice is None: neither of the two is right.

        :raises UfmRefusedError: UFM refuses this request.
        :raises SubnetManagerError: UFM does not answer, or not as in the guide.
        """
        answer = self._get_json(path, query)
        if not _is_page(answer):
            return answer
        return _join_pages(path, self._read_pages(path, query, answer))

    def _read_pages(self, path: str, query: Mapping[str, str], first: Any) -> Iterator[Any]:
        yield first
        pages = first.get("num_of_pages", 1)
        if not isinstance(pages, int) or not 0 <= pages <= _MOST_PAGES:
            raise SubnetManagerError(
                f"UFM answers GET {path} with {_shorten(pages)} pages; up to {_MOST_PAGES} are read"
            )
        length = first.get("last_index", 0) if pages > 1 else 0
        for number in range(2, pages + 1):
            page = {"page_number": str(number), "rpp": str(length or _PAGE_LENGTH)}
            yield self._get_json(path, {**query, **page})

    def _get_json(self, path: str, query: Mapping[str, str]) -> Any:
        answer = self._request("GET", path, query=query)
        kind = answer.headers.get("Content-Type")
        try:
            return answer.json(object_pairs_hook=_read_pairs)
        except (requests.exceptions.JSONDecodeError, RecursionError) as error:
            cause = "; the answer is cut off or damaged" if "json" in str(kind) else ""
            raise SubnetManagerError(
                f"UFM answers GET {path} with {len(answer.content)} bytes that are no JSON "
                f"({_shorten(kind)}){cause}; is [hpc_fabric_agent]ufm_url ({self._access.url}) "
                "UFM's?"
            ) from error

    def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str | None:
        """Send a request that changes UFM.

        :returns: the number of the job in which UFM makes it (status 202); None if it is made.
        :raises UfmRefusedError: UFM refuses this change.
        :raises UfmUntrackedError: UFM makes it in a job without a number.
        :raises UfmTroubleError: UFM has trouble with this change, which may have been made.
        :raises UfmSilentError: UFM does not answer; the change may be made later.
        :raises SubnetManagerError: UFM takes no requests of this user.
        """
        answer = self._request(method, path, body=body)
        if answer.status_code != requests.codes.accepted:
            return None
        job = str(answer.headers.get("Location", "")).rstrip("/").rpartition("/")[2]
        if not (job.isascii() and job.isalnum()):
            raise UfmUntrackedError(f"UFM accepts {method} {path} as a job without a number")
        return job

    def close(self) -> None:
        """Close the connections to UFM; idempotent."""
        self._session.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> requests.Response:
        """Send a request, and turn a bad HTTP status into the error that fits its cause.

        401 and 403 are faults of the account, and 3xx of the URL: no other request would succeed.
        Other 4xx are faults of this request. 429 and most 5xx pass by themselves.
        """
        answer = self._send(method, path, query, body)
        if answer.status_code == requests.codes.unauthorized and self._session.cookies:
            # The session that UFM keeps behind its cookie has ended; the password opens another.
            self._session.cookies.clear()
            answer = self._send(method, path, query, body)
        status = answer.status_code
        if status in (requests.codes.ok, 201, 202, 204):
            return answer
        said = f"answers {method} {path} with {status}: {_shorten(answer.text)}"
        if status in (401, 403):
            raise SubnetManagerError(
                f"UFM at {self._access.url} refuses the user {self._access.user} ({status} on "
                f"{method} {path}); see ufm_user and ufm_password in [hpc_fabric_agent]"
            )
        if 300 <= status < 400:
            raise SubnetManagerError(
                f"UFM at {self._access.url} sends {method} {path} on to "
                f"{_shorten(answer.headers.get('Location'))} ({status}); the password does not "
                "follow: set [hpc_fabric_agent]ufm_url to the address of UFM itself"
            )
        if 400 <= status < 500 and status not in _PASSING:
            raise UfmRefusedError(
                f"UFM refuses {method} {path}: {status} {_shorten(answer.text)}", status
            )
        if status in _PASSING:
            raise UfmTroubleError(f"UFM at {self._access.url} {said}")
        raise SubnetManagerError(f"UFM at {self._access.url} {said}")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
    ) -> requests.Response:
        try:
            return self._session.request(
                method,
                self._root + path,
                params=query,
                json=body,
                timeout=self._access.timeouts,
                # A password does not follow to another place.
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as error:
            raise SubnetManagerError(_explain_tls_error(self._access.url, error)) from error
        except (requests.exceptions.RequestException, OSError) as error:
            raise UfmSilentError(
                f"UFM at {self._access.url} does not answer {method} {path}: {_shorten(error)}"
            ) from error


def _check_ca_file(path: str) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise SubnetManagerError(
            f"[hpc_fabric_agent]ufm_ca_file is {printable_text(path)!r}, which has no "
            f"certificates that can be read ({_shorten(error)})"
        ) from error


def _explain_tls_error(url: str, error: BaseException) -> str:
    """Return a text with the cause of a TLS error and its cure."""
    failed = _find_verification_error(error)
    if failed is not None:
        cure = _CERTIFICATE_CURES.get(failed.verify_code, _NAME_SIGNER)
        return f"the certificate of UFM at {url} is not trusted: {failed.verify_message}; {cure}"
    return (
        f"UFM at {url} and this host find no common TLS: {_shorten(error)}; does "
        "[hpc_fabric_agent]ufm_url name the port where UFM speaks https?"
    )


def _find_verification_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Look for OpenSSL's error behind the errors of requests and urllib3."""
    seen: list[BaseException] = [error]
    for cause in seen:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause
        behind = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
        seen.extend(each for each in behind if isinstance(each, BaseException) and each not in seen)
    return None


def _read_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        keys = [key for key, _ in pairs]
        read.update({key: None for key in read if keys.count(key) > 1})
    return read


def _is_page(answer: object) -> bool:
    """Whether an answer is one page of a list (guide, *Ports REST API*, ``page_number``)."""
    return isinstance(answer, dict) and "data" in answer and "num_of_pages" in answer


def _join_pages(path: str, pages: Iterator[Any]) -> Any:
    """Join the pages of one list, or of one object.

    :raises SubnetManagerError: they are not of one kind, or fewer entries than UFM has counted.
    """
    entries: list[Any] = []
    counted: set[int] = set()
    kinds: set[type] = set()
    for page in pages:
        data = page.get("data") if _is_page(page) else None
        if not isinstance(data, list | dict):
            raise SubnetManagerError(f"UFM answers GET {path} with a page that has no data")
        kinds.add(type(data))
        counted.add(page.get("filtered_resources", page.get("total_resources", len(data))))
        entries += data.items() if isinstance(data, dict) else data
    if len(kinds) != 1 or counted != {len(entries)}:
        raise SubnetManagerError(
            f"UFM answers GET {path} with {len(entries)} entries on its pages, and has counted "
            f"{', '.join(map(_shorten, sorted(map(str, counted))))}: the list has changed, or is "
            "not whole"
        )
    return _read_pairs(entries) if kinds == {dict} else entries


def _shorten(text: object) -> str:
    return printable_text(" ".join(str(text).split()))[:_LONGEST_REASON]
