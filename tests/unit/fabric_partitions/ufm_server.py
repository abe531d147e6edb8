# SPDX-License-Identifier: Apache-2.0
"""A server that speaks what NVIDIA's documentation says of UFM's API, and can be made to fail.

Each request is held against ``tests/data/ufm/contract.json``: what the guide does not have is
answered with 400. The state is a few dictionaries; answers have the fields of the recorded ones.
"""

from __future__ import annotations

import base64
import http.server
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs

CONTRACT = json.loads(Path(__file__, "../../../data/ufm/contract.json").resolve().read_text())
USER, PASSWORD = "agent", "not-a-secret"


@attrs.frozen
class RawAnswer:
    """An answer that is none of UFM's."""

    text: bytes
    status: int = 200
    headers: dict[str, str] = attrs.field(factory=dict)


class RecordedUfm:
    """UFM as far as partitions go."""

    def __init__(self) -> None:
        self.version = "6.22.1-2"
        #: P_Key as UFM writes it -> body, as in the list of partitions.
        self.partitions: dict[str, dict[str, Any]] = {
            "0x7fff": {
                "partition": "management",
                "ip_over_ib": True,
                "sharp_enabled": False,
                "membership": "limited",
                "guids": [],
            }
        }
        self.qualities: dict[str, dict[str, Any]] = {}
        self.ports: list[str] = []
        self.virtual_ports: list[str] | None = []
        self.manager: dict[str, Any] = {}
        #: Options of the manager that come only alone.
        self.told_alone: set[str] = set()
        #: GUIDs that UFM refuses to put anywhere.
        self.unknown_guids: set[str] = set()
        #: Statuses with which the next requests are answered, whatever they are.
        self.failures: list[int] = []
        #: Whole answers to the next requests, whatever they are.
        self.raw: list[RawAnswer] = []
        #: Seconds before each answer.
        self.delay = 0.0
        #: Entries of one page; None: lists come whole.
        self.page_length: int | None = None
        #: Gives each caller a session by cookie; None: it does not.
        self.session: int | None = None
        #: Called after each change of a partition.
        self.watch: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        #: Whether changes are jobs; they are made when :meth:`finish_jobs` is called.
        self.in_jobs = False
        self.jobs: dict[str, dict[str, Any]] = {}
        self.waiting: list[tuple[str, Any]] = []
        #: Adds to every answer what a later release might.
        self.later = False
        #: Method and path of each request that was served.
        self.seen: list[tuple[str, str]] = []

    def members(self, pkey: str) -> dict[str, str]:
        entries = self.partitions[pkey]["guids"]
        return {entry["guid"]: entry["membership"] for entry in entries}

    def put(self, pkey: str, name: str, **members: str) -> None:
        """Make a partition as an administrator does in UFM's own window."""
        self.partitions[pkey] = {
            "partition": name,
            "ip_over_ib": True,
            "sharp_enabled": False,
            "guids": [
                {"guid": guid.removeprefix("g"), "membership": membership, "index0": False}
                for guid, membership in members.items()
            ],
        }
        self.qualities[pkey] = {"mtu_limit": 2, "service_level": 0, "rate_limit": 2.5}

    def admit(self, pkey: str, guid: str, membership: str = "full") -> None:
        """Add a member as an administrator does in UFM's own window."""
        self.partitions[pkey]["guids"].append(
            {"guid": guid, "membership": membership, "index0": False}
        )

    def finish_jobs(self, status: str = "Completed") -> None:
        while self.waiting:
            self.finish_job(0, status)

    def finish_job(self, position: int, status: str = "Completed") -> None:
        """End one of the waiting jobs, in any order."""
        job, act = self.waiting.pop(position)
        if status == "Completed":
            try:
                act()
            except KeyError:
                status = "Completed With Errors"
        self.jobs[job]["Status"] = status
        self.watch()

    # -- one request -----------------------------------------------------------------

    def answer(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[int, Any, dict[str, str]]:
        page = {key: query.pop(key) for key in CONTRACT["pages"]["query"] if key in query}
        exchange, names = _find_exchange(method, path, query)
        if exchange is None:
            return 400, {"error": f"no {method} {path} {query} in the guide"}, {}
        problem = _check_body(exchange, body)
        if problem:
            return 400, {"error": problem}, {}
        serve = getattr(self, "_" + re.sub(r"\W", "_", exchange["name"]))
        status, value = serve(names, query, body)
        if status == 200 and method != "GET" and self.in_jobs:
            job = str(len(self.jobs) + 1)
            self.jobs[job] = {**_example("job"), "ID": job, "Status": "Running", "Progress": 0}
            self.waiting.append((job, value))
            location = CONTRACT["accepted_as_a_job"]["location"].format(job=job)
            return CONTRACT["accepted_as_a_job"]["status"], {}, {"Location": location}
        if status == 200 and method != "GET":
            value()
            self.watch()
            return 200, exchange["answer"], {}
        if status == 200 and self.page_length is not None and path.startswith("/resources/"):
            value = self._cut_page(value, int(page.get("page_number", 1)))
        return status, value, {}

    def _cut_page(self, value: Any, number: int) -> Any:
        entries = list(value.items() if isinstance(value, dict) else value)
        length = self.page_length or len(entries)
        cut = entries[(number - 1) * length : number * length]
        return {
            **CONTRACT["pages"]["answer"],
            "total_resources": len(entries),
            "filtered_resources": len(entries),
            "num_of_pages": -(-len(entries) // length),
            "first_index": (number - 1) * length + 1,
            "last_index": (number - 1) * length + len(cut),
            "data": dict(cut) if isinstance(value, dict) else cut,
        }

    def _version(self, *_: Any) -> tuple[int, Any]:
        return 200, {"ufm_release_version": self.version}

    def _list_partitions(self, *_: Any) -> tuple[int, Any]:
        bodies = json.loads(json.dumps(self.partitions))
        if self.later:
            for body in bodies.values():
                body["multicast_policy"] = {"new": True}
                for entry in body["guids"]:
                    entry["port_info"] = {"lid": 7}
        return 200, bodies

    def _list_qualities(self, *_: Any) -> tuple[int, Any]:
        return 200, {
            pkey: {"partition": body["partition"], "ip_over_ib": True}
            | ({"qos_conf": self.qualities[pkey]} if pkey in self.qualities else {})
            for pkey, body in self.partitions.items()
        }

    def _make_a_partition(self, _: Any, __: Any, body: Any) -> tuple[int, Any]:
        pkey = body["pkey"]
        if pkey in self.partitions:
            return 400, {"error": f"{pkey} is there"}
        if "partition_name" in body and not self.version.startswith(("6.22", "6.24")):
            return 400, {"error": "unknown field partition_name"}
        name = body.get("partition_name", f"api_pkey_{pkey}")
        return 200, lambda: self.put(pkey, name)

    def _add_GUIDs(self, _: Any, __: Any, body: Any) -> tuple[int, Any]:
        bad = [guid for guid in body["guids"] if guid in self.unknown_guids]
        if bad:
            return CONTRACT["refusals"]["unknown_guid"], {"error": f"no port {bad[0]}"}
        pkey = body["pkey"]
        if pkey not in self.partitions:
            return CONTRACT["refusals"]["unknown_partition"], {"error": f"no {pkey}"}

        def add() -> None:
            entries = self.partitions[pkey]["guids"]
            there = {entry["guid"] for entry in entries}
            entries += [
                {"guid": guid, "membership": body["membership"], "index0": body["index0"]}
                for guid in body["guids"]
                if guid not in there
            ]

        return 200, add

    def _remove_GUIDs(self, names: dict[str, str], *_: Any) -> tuple[int, Any]:
        pkey, gone = names["pkey"], set(names["guids"].split(","))
        if pkey not in self.partitions:
            return CONTRACT["refusals"]["unknown_partition"], {"error": f"no {pkey}"}

        def remove() -> None:
            entries = self.partitions[pkey]["guids"]
            entries[:] = [entry for entry in entries if entry["guid"] not in gone]

        return 200, remove

    def _remove_a_partition(self, names: dict[str, str], *_: Any) -> tuple[int, Any]:
        if names["pkey"] not in self.partitions:
            return CONTRACT["refusals"]["unknown_partition"], {"error": "no such partition"}
        return 200, lambda: self.partitions.pop(names["pkey"])

    def _set_quality(self, _: Any, __: Any, body: Any) -> tuple[int, Any]:
        fields = {key: value for key, value in body.items() if key != "pkey"}
        return 200, lambda: self.qualities.update({body["pkey"]: fields})

    def _ports(self, *_: Any) -> tuple[int, Any]:
        return 200, [{**_example("ports")[0], "guid": guid} for guid in self.ports]

    def _virtual_ports(self, *_: Any) -> tuple[int, Any]:
        if self.virtual_ports is None:
            return 404, {"error": "not found"}
        example = _example("virtual ports")[0]
        return 200, [{**example, "virtual_port_guid": guid} for guid in self.virtual_ports]

    def _manager_s_options(self, *_: Any) -> tuple[int, Any]:
        return 200, {
            key: value for key, value in self.manager.items() if key not in self.told_alone
        }

    def _manager_s_option(self, _: Any, query: dict[str, str], __: Any) -> tuple[int, Any]:
        option = query["param_name"]
        if option not in self.manager:
            return 400, {"error": f"no {option}"}
        return 200, {option: self.manager[option]}

    def _job(self, names: dict[str, str], *_: Any) -> tuple[int, Any]:
        numbers = names["job"].split(",")
        if not self.jobs.keys() >= set(numbers):
            return 404, {"error": "no such job"}
        found = [self.jobs[number] for number in numbers]
        return 200, found if len(found) > 1 else found[0]


def _example(name: str) -> Any:
    return next(one["answer"] for one in CONTRACT["exchanges"] if one["name"] == name)


def _find_exchange(
    method: str, path: str, query: dict[str, str]
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    for exchange in CONTRACT["exchanges"]:
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", exchange["path"])
        match = re.fullmatch(pattern, path)
        stated = exchange.get("query", {})
        fits = query.keys() == stated.keys() and all(
            stated[key] in ("*", query[key]) for key in query
        )
        if exchange["method"] == method and match and fits:
            return exchange, match.groupdict()
    return None, {}


def _check_body(exchange: dict[str, Any], body: Any) -> str:
    stated = exchange.get("body")
    if stated is None:
        return "" if body is None else "a body that the guide does not have"
    needed = stated.keys() - set(exchange["optional"])
    if not isinstance(body, dict) or not needed <= body.keys() <= stated.keys():
        return f"a body with other fields than {sorted(stated)}"
    for key, value in body.items():
        like = stated[key]
        numbers = isinstance(like, int | float) and not isinstance(like, bool)
        if not isinstance(value, int | float if numbers else type(like)):
            return f"{key} is {value!r}, not like {like!r}"
    for guid in body.get("guids", []):
        if not re.fullmatch(r"[0-9a-fx]{16,20}", guid):
            return f"{guid} is no GUID"
    if "memberships" in body and "membership" in body:
        return "membership and memberships conflict"
    return ""


@contextmanager
def serve_ufm(
    ufm: RecordedUfm, certificate: Path | None = None, key: Path | None = None
) -> Iterator[str]:
    """Serve on a free port of loopback, with TLS where there is a certificate; the URL."""
    expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            text = self.rfile.read(length)
            parts = urlsplit(self.path)
            path = parts.path.removeprefix(CONTRACT["root"])
            ufm.seen.append((self.command, path))
            time.sleep(ufm.delay)
            with ufm.lock:
                self._answer(path, parts.query, text)

        def _answer(self, path: str, query: str, text: bytes) -> None:
            cookie = self.headers.get("Cookie")
            if ufm.raw:
                self._send_raw(ufm.raw.pop(0))
            elif ufm.failures:
                self._send(ufm.failures.pop(0), {"error": "trouble"}, {})
            elif self.headers.get("Authorization") != expected or (
                cookie is not None and cookie != f"session={ufm.session}"
            ):
                self._send(CONTRACT["refusals"]["wrong_password"], {}, {})
            else:
                body = json.loads(text) if text else None
                status, value, headers = ufm.answer(
                    self.command, path, dict(parse_qsl(query)), body
                )
                if ufm.session is not None:
                    headers = {**headers, "Set-Cookie": f"session={ufm.session}; Path=/"}
                self._send(status, value, headers)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        def _send(self, status: int, value: Any, headers: dict[str, str]) -> None:
            text = value.encode() if isinstance(value, str) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            for name, header in headers.items():
                self.send_header(name, header)
            self.end_headers()
            self.wfile.write(text)

        def _send_raw(self, raw: RawAnswer) -> None:
            self.send_response(raw.status)
            headers = {
                "Content-Type": "application/json",
                "Content-Length": str(len(raw.text)),
                "Connection": "close",
            }
            for name, header in (headers | raw.headers).items():
                self.send_header(name, header)
            self.end_headers()
            self.wfile.write(raw.text)
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
