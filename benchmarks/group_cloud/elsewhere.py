# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for Glance, Neutron and Keystone in the processes of Nova."""

from __future__ import annotations

from typing import Any

IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


def install() -> None:
    """Replace Glance and Neutron in this process; servers here have no networks."""
    from nova.image import glance
    from nova.network import neutron

    def image(self: Any, context: Any, id_or_uri: str, *arguments: Any, **keywords: Any) -> Any:
        return {
            "id": IMAGE, "name": "nothing", "status": "active", "size": 1, "min_disk": 0,
            "min_ram": 0, "disk_format": "raw", "container_format": "raw", "visibility": "public",
            "properties": {}, "owner": None, "checksum": None, "created_at": None,
            "updated_at": None, "deleted_at": None, "deleted": False, "is_public": True,
        }  # fmt: skip

    def nothing(self: Any, *arguments: Any, **keywords: Any) -> None:
        return None

    def no_network(self: Any, *arguments: Any, **keywords: Any) -> Any:
        from nova.network import model

        return model.NetworkInfo()

    glance.API.get = image
    neutron.API.deallocate_for_instance = nothing
    neutron.API.setup_instance_network_on_host = nothing
    neutron.API.cleanup_instance_network_on_host = nothing
    neutron.API.get_instance_nw_info = no_network


def auth(global_conf: Any, **local_conf: Any) -> Any:
    """Filter of paste: the token is ``USER:PROJECT``, and every user is an administrator."""
    import webob.dec
    from nova import context
    from oslo_middleware import request_id

    def wrap(app: Any) -> Any:
        @webob.dec.wsgify
        def call(request: Any) -> Any:
            user, _, project = request.headers.get("X-Auth-Token", "race:race").partition(":")
            request.environ["nova.context"] = context.RequestContext(
                user,
                project or user,
                is_admin=True,
                roles=["admin", "member", "reader", "service"],
                request_id=request.environ.get(request_id.ENV_REQUEST_ID),
                remote_address=request.remote_addr,
                service_catalog=[],
            )
            return app

        return call

    return wrap
