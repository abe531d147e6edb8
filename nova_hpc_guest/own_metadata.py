# SPDX-License-Identifier: Apache-2.0
"""Nova's metadata service: this server's own id and metadata.

A config drive never changes, so it is not read. Nova keeps an answer for 15 seconds.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from typing import Final, NamedTuple

URL: Final = "http://169.254.169.254/openstack/latest/meta_data.json"
_TIMEOUT: Final = 5.0
_LONGEST: Final = 1 << 20
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


class ServiceError(Exception):
    """The service does not answer, or answers something else: the metadata are unknown."""


class OwnMetadata(NamedTuple):
    """The metadata service's data of this server: id, metadata items, and public keys."""

    id: str
    items: dict[str, str]
    #: Of the key pair that Nova gave the server, as OpenSSH writes them.
    public_keys: tuple[str, ...] = ()


def read_own_metadata(url: str = URL) -> OwnMetadata:
    """Read the service's answer.

    :raises ServiceError: unknown; the metadata read before stay valid.
    """
    # No proxy of the environment may see or answer this.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT) as answer:
            data = answer.read(_LONGEST + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ServiceError(f"the metadata service does not answer: {error}") from error
    if len(data) > _LONGEST:
        raise ServiceError("the metadata service answers without an end")
    return parse_own_metadata(data)


def parse_own_metadata(data: bytes) -> OwnMetadata:
    """Read the service's answer.

    :raises ServiceError: it is not an answer of Nova's.
    """
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ServiceError("the metadata service answers what is not JSON") from error
    own = document.get("uuid") if isinstance(document, dict) else None
    items = document.get("meta", {}) if isinstance(document, dict) else None
    if not isinstance(own, str) or not _UUID.fullmatch(own) or not isinstance(items, dict):
        raise ServiceError("the metadata service answers what is no server's metadata")
    keys = document.get("public_keys")
    return OwnMetadata(
        own,
        {key: text for key, text in items.items() if isinstance(text, str)},
        tuple(key for key in keys.values() if isinstance(key, str))
        if isinstance(keys, dict)
        else (),
    )
