# SPDX-License-Identifier: Apache-2.0
"""What agents of Neutron do for guests' ports, in a lab whose Neutron has none.

A program in each node joins the taps that Nova made in a bridge, lets in what security groups let
in (as Neutron's own iptables driver, after each :meth:`GuestNetwork.sync`; all groups here let
everything out), and signs guests' questions to Nova's real metadata service. The lab's commands to
guests go through it, too. Several nodes are joined by wires: frames go from node to node through
the lab's ssh.
"""

import contextlib
import json
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time

import attrs

from nova_hpc_lab import cloud, config
from nova_hpc_lab.node import HOST_ADDRESS
from nova_hpc_lab.process import Process
from nova_hpc_lab.services import probe_http
from nova_hpc_lab.state import Paths, write
from tests.lab.nested_guest import AGENT_PORT

#: The gateway of the lab's subnet, which no port has.
NODE_ADDRESS = "192.0.2.1"
_LIMIT = 120
_NODE_SIDE = f"""\
import hashlib, hmac, http.client, json, os, socket, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
host, port, secret = json.loads(sys.stdin.readline())
#: Address -> its server and project.
guests = {{}}


def call(*words, given=None, check=True):
    done = subprocess.run(
        words, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if check and done.returncode:
        raise OSError(f"{{words}}: {{done.stdout}}")


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self):
        address = self.client_address[0]
        if address not in guests:
            self.send_error(404)
            return
        server, project = guests[address]
        signature = hmac.new(secret.encode(), server.encode(), hashlib.sha256).hexdigest()
        headers = {{
            "X-Instance-ID": server,
            "X-Tenant-ID": project,
            "X-Instance-ID-Signature": signature,
            "X-Forwarded-For": address,
        }}
        service = http.client.HTTPConnection(host, port, timeout=60)
        try:
            service.request("GET", self.path, headers=headers)
            answer = service.getresponse()
            status, data = answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            status, data = 503, b""
        finally:
            service.close()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass


def join(wish):
    missing = []
    for tap in wish["taps"]:
        if os.path.exists(f"/sys/class/net/{{tap}}"):
            call("ip", "link", "set", tap, "master", "lab", "up")
        else:
            missing.append(tap)
    call("iptables-restore", given=wish["filter"])
    guests.clear()
    guests.update(wish["guests"])
    return missing


def ask(wish):
    with socket.create_connection((wish["address"], {AGENT_PORT}), 10) as line:
        line.settimeout(wish["limit"])
        line.sendall(json.dumps(wish["wish"]).encode() + b"\\n")
        data = b""
        while piece := line.recv(65536):
            data += piece
    return json.loads(data)


call("ip", "link", "delete", "lab", check=False)
call("ip", "link", "add", "lab", "type", "bridge", "stp_state", "0", "forward_delay", "0")
for address in ("169.254.169.254/16", "{NODE_ADDRESS}/24"):
    call("ip", "address", "add", address, "dev", "lab")
call("ip", "link", "set", "lab", "up")
call("modprobe", "br_netfilter")
with open("/proc/sys/net/bridge/bridge-nf-call-iptables", "w") as stream:
    stream.write("1")
service = ThreadingHTTPServer(("169.254.169.254", 80), Proxy)
threading.Thread(target=service.serve_forever, daemon=True).start()
print(json.dumps([None, ""]), flush=True)
for line in sys.stdin:
    wish = json.loads(line)
    try:
        told = [{{"join": join, "ask": ask}}[wish["verb"]](wish), ""]
    except (OSError, ValueError) as error:
        told = [None, repr(error)]
    print(json.dumps(told), flush=True)
"""

#: The name of a wire's end in a node.
WIRE = "labwire"
#: Frames of a tap of the bridge, each behind its length: to standard output, from standard input.
_WIRE_SIDE = f"""\
import fcntl, os, struct, subprocess, sys, threading

tap = os.open("/dev/net/tun", os.O_RDWR)
# IFF_TAP | IFF_NO_PI
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH", b"{WIRE}", 0x1002))
subprocess.run(["/usr/sbin/ip", "link", "set", "{WIRE}", "master", "lab", "up"], check=True)


def receive():
    source = sys.stdin.buffer
    while head := source.read(2):
        os.write(tap, source.read(struct.unpack("!H", head)[0]))
    os._exit(0)


threading.Thread(target=receive, daemon=True).start()
while frame := os.read(tap, 65535):
    sys.stdout.buffer.write(struct.pack("!H", len(frame)) + frame)
    sys.stdout.buffer.flush()
"""
_ARP = b"\x08\x06"


class GuestAwayError(Exception):
    """The guest does not answer (yet)."""


@attrs.define
class GuestNetwork:
    """The nodes' ends of it, as the lab sees them.

    :ivar processes: name of a node -> the program in it.
    :ivar places: address of a guest -> its node.
    """

    lab: object
    processes: dict[str, subprocess.Popen]
    places: dict[str, str] = attrs.field(factory=dict)

    def sync(self):
        """Bring the nodes to what Neutron has; the taps that none of them has (yet)."""
        neutron = self.lab.connection.network
        ports = [one for one in neutron.ports() if one.device_owner.startswith("compute:")]
        self.places = {address_of(port): port.binding_host_id for port in ports}
        guests = {}
        for port in ports:
            own = (port.device_id, port.project_id)
            fifth, last = (int(part, 16) for part in port.mac_address.split(":")[4:])
            guests |= dict.fromkeys((address_of(port), f"169.254.{fifth}.{last}"), own)
        rules = [one.to_dict() for one in neutron.security_group_rules()]
        missing = [
            self._tell(
                node,
                verb="join",
                taps=list(map(tap_of, ports)),
                filter=filter_of(ports, rules),
                guests=guests,
            )
            for node in self.processes
        ]
        return [tap for tap in missing[0] if all(tap in taps for taps in missing)]

    def run(self, address, *words, seconds=300):
        """A command in a guest: its status, and what it said on either output.

        :raises GuestAwayError: the guest does not answer.
        """
        wish = {"verb": "run", "words": words, "seconds": seconds}
        return self._ask(address, wish, seconds + 60)

    def probe(self, address, other, ports, seconds=4):
        """How ports of another address answer a guest: ``open``, ``silent``, or an error's text."""
        wish = {"verb": "probe", "address": other, "ports": list(ports), "seconds": seconds}
        return [answer for _, answer in self._ask(address, wish, _LIMIT)]

    def _ask(self, address, wish, limit):
        node = self.places.get(address)
        if node not in self.processes:
            node = next(iter(self.processes))
        return self._tell(node, verb="ask", address=address, wish=wish, limit=limit)

    def _tell(self, node, **wish):
        stdin = self.processes[node].stdin
        stdin.write(json.dumps(wish) + "\n")
        stdin.flush()
        return self.hear(node)

    def hear(self, node):
        """The answer of the program in a node."""
        process = self.processes[node]
        line = process.stdout.readline()
        assert line, f"the program in {node} ended: {process.stderr.read()}"
        answer, wrong = json.loads(line)
        if wrong:
            raise GuestAwayError(wrong)
        return answer


def tap_of(port):
    """As Nova calls the interface of a port (NIC_NAME_LEN of nova/network/model.py)."""
    return f"tap{port.id}"[:14]


def address_of(port):
    """The one fixed address of a port."""
    (fixed,) = port.fixed_ips
    return fixed["ip_address"]


def filter_of(ports, rules):
    """For ``iptables-restore``: what reaches which port.

    :param rules: of all security groups, as Neutron has them.
    """
    lines = ["*filter", ":INPUT ACCEPT", ":FORWARD DROP", ":OUTPUT ACCEPT"]
    lines.append("-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
    # The guest's own node lets it in, or not.
    lines.append(f"-A FORWARD -m physdev --physdev-is-bridged --physdev-out {WIRE} -j ACCEPT")
    for port in ports:
        to_port = f"-A FORWARD -m physdev --physdev-is-bridged --physdev-out {tap_of(port)}"
        for rule in rules:
            given = rule["security_group_id"] in port.security_group_ids
            if not given or (rule["direction"], rule["ether_type"]) != ("ingress", "IPv4"):
                continue
            words = [to_port]
            if rule["protocol"]:
                words.append(f"-p {rule['protocol']}")
            if rule["port_range_min"]:
                words.append(f"--dport {rule['port_range_min']}:{rule['port_range_max']}")
            group, prefix = rule["remote_group_id"], rule["remote_ip_prefix"]
            sources = [f"-s {prefix}"] if prefix else [""]
            if group:
                members = (one for one in ports if group in one.security_group_ids)
                sources = [f"-s {address_of(member)}" for member in members]
            lines += [" ".join((*words, source, "-j ACCEPT")) for source in sources]
    return "\n".join([*lines, "COMMIT", ""])


@contextlib.contextmanager
def open_network(lab):
    """A network for guests; at the end, its metadata service and its programs are gone."""
    paths, secret = Paths.from_environment(lab.environ), secrets.token_hex(20)
    with _start_metadata(paths, secret) as port, contextlib.ExitStack() as stack:
        nodes = cloud.existing(paths).nodes()
        processes = {node.name: _start_program(stack, node, _NODE_SIDE, True) for node in nodes}
        network = GuestNetwork(lab, processes)
        for node, process in processes.items():
            process.stdin.write(json.dumps([HOST_ADDRESS, port, secret]) + "\n")
            process.stdin.flush()
            network.hear(node)
        if len(nodes) > 1:
            wires = [_start_program(stack, node, _WIRE_SIDE, False) for node in nodes]
            locks = {id(wire): threading.Lock() for wire in wires}
            for wire in wires:
                others = [(other, locks[id(other)]) for other in wires if other is not wire]
                threading.Thread(target=_relay, args=(wire, others), daemon=True).start()
        yield network


def _start_program(stack, node, program, text):
    process = subprocess.Popen(
        node.ssh_argv(["python3", "-c", program]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if text else None,
        text=text,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _relay(wire, others):
    """Frames of a node to the others, as long as it runs."""
    while head := wire.stdout.read(2):
        frame = wire.stdout.read(struct.unpack("!H", head)[0])
        if _is_of_node(frame):
            continue
        for other, lock in others:
            with lock, contextlib.suppress(OSError):
                other.stdin.write(head + frame)
                other.stdin.flush()


def _is_of_node(frame):
    """Whether a frame asks for an address, or from one, that each node's bridge has.

    >>> arp = b"\\xff" * 12 + _ARP + bytes(14) + bytes([192, 0, 2, 9]) + bytes(6)
    >>> _is_of_node(arp + bytes([169, 254, 169, 254])), _is_of_node(arp + bytes([192, 0, 2, 10]))
    (True, False)
    """
    if frame[12:14] != _ARP:
        return False
    own = tuple(map(int, NODE_ADDRESS.split(".")))
    pair = (tuple(frame[28:32]), tuple(frame[38:42]))
    return any(address == own or address[:2] == (169, 254) for address in pair)


@contextlib.contextmanager
def _start_metadata(paths, secret):
    """Nova's metadata service behind a proxy, as behind Neutron's agent; its port."""
    options = {"service_metadata_proxy": True, "metadata_proxy_shared_secret": secret}
    write(paths.config / "nova" / "metadata.conf", config.render({"neutron": options}), mode=0o600)
    with socket.socket() as free:
        free.bind((config.LOOPBACK, 0))
        port = free.getsockname()[1]
    files = f"{paths.venv / 'etc/nova/api-paste.ini'};nova.conf;metadata.conf"
    environ = {
        "OS_NOVA_CONFIG_DIR": str(paths.config / "nova"),
        "OS_NOVA_CONFIG_FILES": files,
    }
    process = Process("nova-metadata", paths)
    process.stop()
    process.spawn(
        [sys.executable, "-m", "nova_hpc_lab.serve", "nova.wsgi.metadata", str(port)], environ
    )
    try:
        end = time.monotonic() + _LIMIT
        while True:
            try:
                probe_http(port)
                break
            except OSError:
                assert process.pid() is not None, process.tail()
                assert time.monotonic() < end, process.tail()
                time.sleep(0.5)
        yield port
    finally:
        process.stop()
