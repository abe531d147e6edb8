"""Reads the properties of an image with Nova's own service credentials.

Nova's services read images with the token of the user who asks; an operator's
command has none, so it takes the first credentials of nova.conf that work.
"""

from __future__ import annotations

from typing import Any, Final
from urllib import parse

import nova.conf
from keystoneauth1 import exceptions
from keystoneauth1 import loading as keystone
from nova import objects, utils
from oslo_config import cfg
from oslo_utils import uuidutils

from nova_hpc.cloud.snapshot import SnapshotError

CONF = nova.conf.CONF

#: Groups of nova.conf that may hold credentials, in the order of preference.
_GROUPS: Final = ("glance", "service_user", "placement")


def find(image: str) -> objects.ImageMeta:
    """The image with this name or ID.

    :raises SnapshotError: there is none, or several, or Glance does not answer.
    """
    adapter = _adapter()
    if uuidutils.is_uuid_like(image):
        found = _get(adapter, f"/v2/images/{image}", image)
        records = [found] if found else []
    else:
        query = parse.urlencode({"name": image, "status": "active"})
        records = (_get(adapter, f"/v2/images?{query}", image) or {}).get("images", [])
    if not records:
        raise SnapshotError(f"there is no active image {image!r} that Nova's user can see")
    if len(records) > 1:
        which = ", ".join(str(record.get("id")) for record in records[:5])
        raise SnapshotError(f"{len(records)} images are called {image!r}; give an ID: {which}")
    # Nova picks the properties that it knows from what Glance shows flatly.
    record = dict(records[0])
    return objects.ImageMeta.from_dict(
        {"id": record.get("id"), "name": record.get("name"), "properties": record}
    )


def _adapter() -> Any:
    for group in _GROUPS:
        try:
            # Nova itself has none for Glance.
            keystone.register_auth_conf_options(CONF, group)
            auth = keystone.load_auth_from_conf_options(CONF, group)
        except (exceptions.ClientException, cfg.Error):
            continue
        if auth is not None:
            session = keystone.load_session_from_conf_options(CONF, group, auth=auth)
            return utils.get_ksa_adapter("image", ksa_auth=auth, ksa_session=session)
    raise SnapshotError(
        "nova.conf holds no credentials to read images with; set auth_type and the options that "
        f"belong to it in [{'], ['.join(_GROUPS)}]"
    )


def _get(adapter: Any, url: str, image: str) -> dict[str, Any] | None:
    try:
        answer = adapter.get(url, microversion=None)
    except exceptions.ClientException as error:
        raise SnapshotError(f"Glance could not be asked for image {image!r}: {error}") from error
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        raise SnapshotError(
            f"Glance answered {answer.status_code} to the question for image {image!r}"
        )
    found: dict[str, Any] = answer.json()
    return found
