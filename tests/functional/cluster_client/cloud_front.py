# SPDX-License-Identifier: Apache-2.0
"""A cloud's public endpoints on a loopback port: Nova's real API, and what stands beside it.

Requests below ``/v2.1`` go to Nova's own application. Neutron is Nova's fixture for its
tests, so that Nova sees the ports that a client makes, and Glance is, too; Keystone is a token and
a catalogue. Each request of a client counts, and the process that sends one can be killed
just before or just after it takes effect.
"""

from __future__ import annotations

import copy
import json
import re
import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs
from wsgiref import simple_server

#: Images in an answer.
_PAGE = 2
_Start = Callable[..., Any]
_Answer = tuple[int, dict[str, Any] | None, dict[str, str]]


class _Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 64


class _Quiet(simple_server.WSGIRequestHandler):
    def log_message(self, *words: object) -> None:
        """Nothing: pytest shows what matters."""


class CloudFront:
    """Serves until it is stopped.

    :param nova: Nova's WSGI application.
    :param neutron: Nova's ``NeutronFixture``.
    :ivar glance: Nova's ``GlanceFixture``; None: the catalogue has images, and they do not answer.
    :ivar expire: numbers of requests to which the service answers that the token has expired.
    :ivar kill_at: number of the request at which the client dies; 0: none.
    :ivar kill_before: whether it dies before the request takes effect.
    :ivar kill: ends the client's process.
    :ivar watch: called with method and path of each request to Nova, before Nova has it.
    :ivar requests: method and path of each request but Keystone's and questions for versions.
    :ivar lose: requests (by number) of which the answer is lost.
    """

    def __init__(self, nova: Any, neutron: Any, quota_ports: int = 500) -> None:
        self._nova, self._neutron = nova, neutron
        self.quota_ports = quota_ports
        self.kill_at, self.kill_before, self._kill_write = 0, False, False
        self.kill: Callable[[], None] = lambda: None
        self.watch: Callable[[str, str], None] = lambda method, path: None
        self.lose: set[int] = set()
        self.expire: set[int] = set()
        self.glance: Any = None
        self.requests: list[str] = []
        self._lock = threading.Lock()
        self._server = simple_server.make_server(
            "127.0.0.1", 0, self._app, server_class=_Server, handler_class=_Quiet
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.daemon = True
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()

    def arm(self, at: int = 0, before: bool = False, writes: bool = False) -> None:
        """Count from the beginning, and kill the client at a request.

        :param writes: *at* counts only requests that change something.
        """
        self.requests.clear()
        self.kill_at, self.kill_before, self.lose, self.expire = at, before, set(), set()
        self._kill_write = writes

    # -- all requests ----------------------------------------------------------

    def _app(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/identity"):
            return self._json(start, self._keystone(environ))
        counts = bool(re.match(r"/v2\.1/.|/network/v2\.0/.|/image/v2/.", path))
        number, kills = 0, False
        if counts:
            with self._lock:
                self.requests.append(f"{method} {path}")
                number = len(self.requests)
                writes = sum(not each.startswith("GET") for each in self.requests)
            place = (writes if method != "GET" else 0) if self._kill_write else number
            kills = place == self.kill_at != 0
        if kills and self.kill_before:
            self.kill()
            raise ConnectionAbortedError("the client is gone")
        if number in self.expire:
            return self._json(start, (401, {"error": {"message": "token"}}, {}))
        services = {"/network": self._network, "/image": self._image}
        service = next((serve for at, serve in services.items() if path.startswith(at)), None)
        found = self._json(start, service(environ)) if service else self._compute(environ, start)
        if kills:
            self.kill()
        if number in self.lose:
            raise ConnectionAbortedError("the answer is lost")
        return found

    @staticmethod
    def _json(start: _Start, answer: _Answer) -> Iterable[bytes]:
        status, body, headers = answer
        start(f"{status} .", [("Content-Type", "application/json"), *headers.items()])
        return [] if body is None else [json.dumps(body).encode()]

    # -- Nova --------------------------------------------------------------------

    def _compute(self, environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        self.watch(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        user, project, roles = _who(environ)
        environ |= {
            "HTTP_X_AUTH_USER": user,
            "HTTP_X_AUTH_PROJECT_ID": project,
            "HTTP_X_ROLES": roles,
        }
        return list(self._nova(environ, start))

    # -- Keystone ----------------------------------------------------------------

    def _keystone(self, environ: dict[str, Any]) -> _Answer:
        if environ["REQUEST_METHOD"] == "GET":
            version = {
                "id": "v3.14",
                "status": "stable",
                "links": [{"rel": "self", "href": f"{self.url}/identity/v3/"}],
                "media-types": [],
            }
            return 200, {"version": version}, {}
        asked = _body(environ)["auth"]
        name = asked["identity"]["password"]["user"]["name"]
        scope = asked["scope"]["project"]
        project = scope.get("id") or scope["name"]
        roles = "reader,member" + (",admin" if name == "admin" else "")
        catalogue = [
            self._service("compute", f"{self.url}/v2.1"),
            self._service("network", f"{self.url}/network"),
            self._service("image", f"{self.url}/image"),
            self._service("identity", f"{self.url}/identity"),
        ]
        token = {
            "methods": ["password"],
            "user": {"id": name, "name": name, "domain": {"id": "default", "name": "Default"}},
            "project": {
                "id": project,
                "name": project,
                "domain": {"id": "default", "name": "Default"},
            },
            "roles": [{"id": role, "name": role} for role in roles.split(",")],
            "catalog": catalogue,
            "issued_at": "2020-01-01T00:00:00.000000Z",
            "expires_at": "2199-01-01T00:00:00.000000Z",
        }
        return 201, {"token": token}, {"X-Subject-Token": f"{name}:{project}:{roles}"}

    @staticmethod
    def _service(kind: str, url: str) -> dict[str, Any]:
        endpoint = {"id": kind, "interface": "public", "region": "r", "region_id": "r", "url": url}
        return {"id": kind, "type": kind, "name": kind, "endpoints": [endpoint]}

    # -- Neutron -------------------------------------------------------------------

    def _network(self, environ: dict[str, Any]) -> _Answer:
        path, method = environ["PATH_INFO"].removeprefix("/network"), environ["REQUEST_METHOD"]
        if not path.strip("/"):
            link = {"rel": "self", "href": f"{self.url}/network/v2.0/"}
            return 200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": [link]}]}, {}
        path = path.removeprefix("/v2.0")
        query = parse_qs(environ["QUERY_STRING"])
        project = _who(environ)[1]
        if method == "POST" and path == "/ports":
            return 201, {"port": self._make_port(_body(environ)["port"], project)}, {}
        match = re.fullmatch(r"/ports/([0-9a-f-]{36})(?:/tags/([^/]+))?", path)
        if match:
            if method == "DELETE" and not match[2]:
                return self._delete_port(match[1])
            return self._change_port(method, match[1], match[2], environ)
        if path == f"/quotas/{project}/details":
            ours = [port for port in self._ports() if port["project_id"] == project]
            port = {"limit": self.quota_ports, "used": len(ours), "reserved": 0}
            return 200, {"quota": {"port": port}}, {}
        kinds = {
            "/ports": ("ports", self._ports),
            "/networks": ("networks", lambda: self._neutron._networks.values()),
            "/subnets": ("subnets", lambda: self._neutron._subnets.values()),
            "/security-groups": (
                "security_groups",
                lambda: self._neutron._security_groups.values(),
            ),
        }
        if method == "GET" and path in kinds:
            key, every = kinds[path]
            return 200, {key: [each for each in every() if _matches(each, query)]}, {}
        return 404, {"NeutronError": {"message": f"{method} {path} is unknown"}}, {}

    def _ports(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(each) for each in list(self._neutron._ports.values())]

    def _make_port(self, body: dict[str, Any], project: str) -> dict[str, Any]:
        port = self._neutron.create_port({"port": body})["port"]
        # The fixture gives each port what its own first one has.
        kept = self._neutron._ports[port["id"]]
        kept |= {**body, "project_id": project, "tenant_id": project}
        return dict(kept)

    def _change_port(self, method: str, id: str, tag: str | None, environ: Any) -> _Answer:
        """Show a port or give it a description; and what ``standard-attr-tag`` does with tags."""
        port = self._neutron._ports.get(id)
        if port is None:
            return 404, {"NeutronError": {"message": f"Port {id} could not be found."}}, {}
        tags = port.setdefault("tags", [])
        if tag is None:
            if method == "PUT":
                port |= _body(environ)["port"]
            return 200, {"port": copy.deepcopy(port)}, {}
        if method == "PUT":
            port["tags"] = sorted({*tags, tag})
            return 201, None, {}
        if tag not in tags:
            return 404, {"NeutronError": {"message": f"Tag {tag} could not be found."}}, {}
        tags.remove(tag)
        return 204, None, {}

    def _delete_port(self, id: str) -> _Answer:
        if id not in self._neutron._ports:
            return 404, {"NeutronError": {"message": f"Port {id} could not be found."}}, {}
        self._neutron.delete_port(id)
        return 204, None, {}

    # -- Glance ------------------------------------------------------------------

    def _image(self, environ: dict[str, Any]) -> _Answer:
        path, method = environ["PATH_INFO"].removeprefix("/image"), environ["REQUEST_METHOD"]
        if not path.strip("/"):
            link = {"rel": "self", "href": f"{self.url}/image/v2/"}
            return 300, {"versions": [{"id": "v2.16", "status": "CURRENT", "links": [link]}]}, {}
        query = parse_qs(environ["QUERY_STRING"])
        project = _who(environ)[1]
        words = path.removeprefix("/v2/images").strip("/").split("/")
        owned = [_glance_record(image) for image in list(self.glance.images.values())]
        owned = [image for image in owned if image["owner"] == project]
        if method == "GET" and words == [""]:
            marker = query.pop("marker", [""])[0]
            found = [image for image in owned if _matches(image, query)]
            at = [image["id"] for image in found].index(marker) + 1 if marker else 0
            page = found[at : at + _PAGE]
            more = {"next": f"/v2/images?marker={page[-1]['id']}"} if found[at + _PAGE :] else {}
            return 200, {"images": page, **more}, {}
        if words[0] not in [image["id"] for image in owned]:
            return 404, {"message": f"Failed to find image {words[0]}"}, {}
        if method == "DELETE" and len(words) == 1:
            self.glance.delete(None, words[0])
            return 204, None, {}
        if method == "PUT" and words[1] == "tags":
            self.glance.images[words[0]].setdefault("tags", []).append(words[2])
            return 204, None, {}
        return 405, {"message": f"{method} {path} is unknown"}, {}


def _glance_record(image: dict[str, Any]) -> dict[str, Any]:
    """An image of the fixture as Glance shows it: properties beside the other fields."""
    properties = dict(image.get("properties") or {})
    return {
        **properties,
        "id": image["id"],
        "name": image.get("name"),
        "status": image["status"],
        "size": image.get("size"),
        "created_at": f"{image['created_at']:%Y-%m-%dT%H:%M:%SZ}",
        "tags": list(image.get("tags") or ()),
        "owner": properties.get("owner"),
    }


def _who(environ: dict[str, Any]) -> list[str]:
    token = environ.get("HTTP_X_AUTH_TOKEN", "nobody:none:")
    return str(token).split(":")


def _body(environ: dict[str, Any]) -> dict[str, Any]:
    length = int(environ.get("CONTENT_LENGTH") or 0)
    return dict(json.loads(environ["wsgi.input"].read(length)))


def _matches(each: dict[str, Any], query: dict[str, list[str]]) -> bool:
    asked = {key: values for key, values in query.items() if key not in ("fields", "tags")}
    alike = all(str(each.get(key, "")) in values for key, values in asked.items())
    return alike and set(query.get("tags", ())) <= set(each.get("tags", ()))
