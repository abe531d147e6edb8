# SPDX-License-Identifier: Apache-2.0
"""Real Neutron with the driver on a real MariaDB, without a broker and without a fabric.

Two processes of Neutron share the database. The agent is a function of the test, so that every
order of its calls and Neutron's can be had.
"""

import contextlib
import datetime
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs
import pymysql
import requests

TOP = Path(__file__).resolve().parents[2]
FABRIC = "main"
RED, BLUE = "1" * 32, "2" * 32
#: Two projects, an administrator, and Nova.
ROLES = {
    "admin": {"X-Roles": "admin,manager,member,reader", "X-Project-Id": "adm", "X-User-Id": "a"},
    "nova": {
        "X-Roles": "admin,manager,member,reader,service",
        "X-Project-Id": "service",
        "X-User-Id": "nova",
    },
    "red": {"X-Roles": "member,reader", "X-Project-Id": RED, "X-User-Id": "r"},
    "blue": {"X-Roles": "member,reader", "X-Project-Id": BLUE, "X-User-Id": "b"},
}
_SEARCH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin"))
_START = 240.0
#: Seconds for which the first process holds a request, on a machine that does much else; the
#: second one is for requests that nobody makes good.
PATIENT, HASTY = 30.0, 5.0


class StageError(Exception):
    """What Neutron's process said of a call that failed."""


@attrs.define
class NeutronProcess:
    """One process of Neutron."""

    process: subprocess.Popen
    port: int
    guard: threading.Lock = attrs.field(factory=threading.Lock)

    def http(self, role, method, path, body=None, timeout=120.0):
        """Status and document of a request."""
        url = f"http://127.0.0.1:{self.port}/v2.0{path}"
        with requests.Session() as session:
            session.trust_env = False
            answer = session.request(method, url, json=body, headers=ROLES[role], timeout=timeout)
        return answer.status_code, answer.json() if answer.content else {}

    def call(self, name, **words):
        """What an agent would call by RPC."""
        with self.guard:
            print(json.dumps({"call": name, **words}), file=self.process.stdin, flush=True)
            answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise StageError(answer["error"])
        return answer["result"]


@attrs.define
class NeutronStage:
    """A database and processes of Neutron on it."""

    folder: Path
    processes: list[NeutronProcess] = attrs.field(factory=list)
    #: Where Nova's end of the events listens.
    nova_port: int = 0

    @property
    def socket(self):
        return self.folder / "mariadb.sock"

    @property
    def inventory(self):
        return self.folder / "ports.yaml"

    def connect(self, database="neutron"):
        return pymysql.connect(
            unix_socket=str(self.socket), user="root", database=database, autocommit=True
        )

    def rows(self, query, *values):
        """Rows of the database."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(query, values)
            return cursor.fetchall()

    def events(self, port):
        """What Nova was told of a port: names and states, the first one first."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        found = [one for one in map(json.loads, lines) if one["tag"] == port]
        return [(one["name"], one.get("status")) for one in found]

    def set_nova(self, **statuses):
        """How Nova answers, by the last part of a request's path; servers without one are gone."""
        (self.folder / "nova.json.new").write_text(json.dumps(statuses))
        (self.folder / "nova.json.new").replace(self.folder / "nova.json")

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    # -- Neutron -----------------------------------------------------------------------

    def write_conf(self, name="neutron", **partitions):
        """neutron.conf, with options of the driver's group."""
        options = {
            "physical_networks": "ibrail0:main,ibrail1:main,ibother:other",
            "port_inventory": str(self.inventory),
            "reserved_pkeys": "0x0001,0x0063",
            "bind_wait": PATIENT,
            "member_timeout": "6",
            "service_levels": "0x0101:1",
            **partitions,
        }
        lines = "\n".join(f"{key} = {value}" for key, value in options.items())
        path = self.folder / f"{name}.conf"
        path.write_text(
            f"""\
[DEFAULT]
transport_url = fake://
core_plugin = ml2
service_plugins = segments
api_paste_config = {self.folder}/api-paste.ini
state_path = {self.folder}/state
auth_strategy = keystone
notify_nova_on_port_status_changes = true
notify_nova_on_port_data_changes = false
send_events_interval = 1
agent_down_time = 75
[ml2]
type_drivers = local,flat,vlan
tenant_network_types = vlan
mechanism_drivers = hpc_partitions
extension_drivers = port_security
[ml2_type_flat]
flat_networks = *
[ml2_type_vlan]
network_vlan_ranges = ibrail0:200:4094,ibrail1:200:4094,ibother:200:4094
[database]
connection = mysql+pymysql://neutron@localhost/neutron?unix_socket={self.socket}&charset=utf8mb4
[oslo_concurrency]
lock_path = {self.folder}/state/lock
[nova]
auth_type = none
endpoint = http://127.0.0.1:{self.nova_port}/v2.1
[placement]
auth_type = none
endpoint = http://127.0.0.1:1
[hpc_partitions]
{lines}
"""
        )
        return path

    def start(self, conf, name):
        """One more process of Neutron."""
        with (self.folder / f"{name}.log").open("ab") as stream:
            process = subprocess.Popen(
                (sys.executable, "-m", "tests.fabric.neutron_worker", str(conf)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                cwd=self.folder,
                env=self.environ(),
            )
        line = process.stdout.readline()
        if not line:
            raise StageError(f"Neutron did not start:\n{self.log(name)[-3000:]}")
        found = NeutronProcess(process, int(line))
        self._warm_up(found)
        self.processes.append(found)
        return found

    def end(self, process):
        """End a process of Neutron."""
        self.processes.remove(process)
        process.process.stdin.close()
        process.process.wait(120)

    def environ(self):
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(TOP), str(TOP / "lab"))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def _warm_up(self, process):
        """Have it read its policy: it refuses requests that come at once before that."""
        network = process.http("nova", "POST", "/networks", {"network": {}})[1]["network"]["id"]
        body = {"network_id": network, "binding:vnic_type": "direct"}
        made = process.http("nova", "POST", "/ports", {"port": body})[1]["port"]["id"]
        body = {"binding:profile": {}, "binding:host_id": "", "device_owner": "", "device_id": ""}
        process.http("nova", "PUT", f"/ports/{made}", {"port": body})
        process.http("nova", "DELETE", f"/ports/{made}")
        process.http("nova", "DELETE", f"/networks/{network}")

    def run_python(self, script, *words):
        """What a script says that runs as Neutron's processes do."""
        done = subprocess.run(
            (sys.executable, "-c", script, *words),
            check=True,
            capture_output=True,
            text=True,
            env=self.environ(),
            cwd=self.folder,
        )
        return done.stdout

    # -- what there is -----------------------------------------------------------------

    def network(self, pkey, physical="ibrail0", role="admin", api=0, **more):
        """Status and document of a new network."""
        body = {
            "provider:network_type": "vlan",
            "provider:physical_network": physical,
            "provider:segmentation_id": pkey,
            **more,
        }
        body = {name: value for name, value in body.items() if value is not None}
        return self.processes[api].http(role, "POST", "/networks", {"network": body})

    def port(self, network, role="admin", api=0, **more):
        """Status and document of a new port, of type direct."""
        body = {"network_id": network, "binding:vnic_type": "direct", **more}
        return self.processes[api].http(role, "POST", "/ports", {"port": body})

    def bind(self, port, host="cn0", slot="0000:81:00.2", api=0, **more):
        """As Nova does it."""
        body = {
            "binding:host_id": host,
            "binding:profile": {"pci_slot": slot},
            "device_id": "7f9c2ba4-e88f-4271-9d3d-1d5e7f0a6f11",
            "device_owner": "compute:nova",
            **more,
        }
        return self.processes[api].http("nova", "PUT", f"/ports/{port}", {"port": body})

    def unbind(self, port, api=0):
        """As Nova does it."""
        body = {"binding:host_id": "", "binding:profile": {}, "device_id": "", "device_owner": ""}
        return self.processes[api].http("nova", "PUT", f"/ports/{port}", {"port": body})

    def get_port(self, port, api=0):
        status, document = self.processes[api].http("nova", "GET", f"/ports/{port}")
        return document["port"] if status == 200 else None

    # -- the agent ---------------------------------------------------------------------

    def heartbeat(self, fabric=FABRIC, host="sm0", age=0.0, **more):
        """What an agent of a fabric says of itself, *age* seconds ago."""
        state = {
            "agent_type": "InfiniBand fabric agent",
            "binary": "nova-hpc-fabric-agent",
            "host": host,
            "topic": "N/A",
            "start_flag": True,
            "configurations": {"fabric": fabric, "foreign_pkeys": [], "faults": [], **more},
        }
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        when = now.strftime("%Y-%m-%dT%H:%M:%S.%f")
        self.processes[0].call("heartbeat", time=when, state=state)
        if age:
            self.rows(
                "UPDATE agents SET heartbeat_timestamp = %s WHERE host = %s",
                now - datetime.timedelta(seconds=age),
                host,
            )

    def desired(self, fabric=FABRIC, api=1):
        return self.processes[api].call("read_desired", fabric=fabric, agent="sm0")

    def report(self, fabric=FABRIC, api=1, **rows):
        self.processes[api].call("report_members", fabric=fabric, agent="sm0", ticket=1, **rows)

    def agent_round(self, fabric=FABRIC, api=1):
        """A subnet manager that does at once what it is told to."""
        members = self.desired(fabric, api)["members"]
        present = [
            one["row"]
            for one in members
            if one["wanted"] and one["port_status"] not in (None, "ACTIVE")
        ]
        gone = [one["row"] for one in members if not one["wanted"]]
        if present or gone:
            self.report(fabric, api, present=present, gone=gone)

    @contextlib.contextmanager
    def agent(self, fabric=FABRIC):
        """An agent that works all the time."""
        ended = threading.Event()

        def work():
            while not ended.wait(0.05):
                self.agent_round(fabric)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            yield
        finally:
            ended.set()
            worker.join()

    def clear(self):
        """Delete all ports, networks and rows."""
        for kind in ("ports", "networks"):
            _, found = self.processes[0].http("nova", "GET", f"/{kind}")
            for one in found[kind]:
                self.processes[0].http("nova", "DELETE", f"/{kind}/{one['id']}")
        for fabric in (FABRIC, "other"):
            self.agent_round(fabric)
        # Ports that were bound till now.
        self.rows(
            "DELETE formers, owners FROM hpc_partition_former_holders AS formers "
            "JOIN hpc_partition_guids AS owners USING (fabric, guid)"
        )
        self.set_nova()
        self.rows("DELETE FROM agents")
        (self.folder / "events.jsonl").write_text("")


def _program(name):
    path = shutil.which(name, path=_SEARCH)
    if path is None:
        raise StageError(f"{name} is not installed: apt-get install mariadb-server")
    return path


@contextlib.contextmanager
def mariadb(folder):
    """A MariaDB with an empty database for Neutron, on a socket alone."""
    user, data = f"--user={getpass.getuser()}", f"--datadir={folder / 'data'}"
    log = (folder / "mariadb.log").open("ab")
    if not (folder / "data" / "mysql").exists():
        subprocess.run(
            (
                *(_program("mariadb-install-db"), "--no-defaults", user, data),
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ),
            check=True,
            stdout=log,
            stderr=log,
        )
    server = subprocess.Popen(
        (
            *(_program("mariadbd"), "--no-defaults", user, data, "--skip-networking"),
            f"--socket={folder / 'mariadb.sock'}",
            f"--pid-file={folder / 'mariadb.pid'}",
            "--innodb-flush-log-at-trx-commit=0",
        ),
        stdout=log,
        stderr=log,
    )
    try:
        deadline = time.monotonic() + _START
        while True:
            try:
                connection = pymysql.connect(unix_socket=str(folder / "mariadb.sock"), user="root")
                break
            except pymysql.Error:
                if time.monotonic() > deadline or server.poll() is not None:
                    raise
                time.sleep(0.2)
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS neutron CHARACTER SET utf8mb4")
            # Without the right to write to a database that is read-only.
            cursor.execute("CREATE USER IF NOT EXISTS neutron@localhost")
            cursor.execute("GRANT ALL ON neutron.* TO neutron@localhost")
        yield
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def migrate(stage, *words):
    """Run ``neutron-db-manage``; what it says."""
    program = Path(sys.executable).with_name("neutron-db-manage")
    done = subprocess.run(
        (sys.executable, str(program), "--config-file", str(stage.folder / "neutron.conf"), *words),
        capture_output=True,
        text=True,
        env=stage.environ(),
        cwd=stage.folder,
    )
    if done.returncode:
        raise StageError(done.stdout + done.stderr)
    return done.stdout + done.stderr


def write_inventory(path, hosts=4):
    """Two adapters a host, each with two functions."""
    rows = ["version: 1", "ports:"]
    for host in range(hosts):
        for adapter, bus in enumerate(("81", "c1")):
            rows += [
                f"- host: cn{host}",
                f'  address: "0000:{bus}:00.0"',
                f'  guid: "0x0002c9000020{host:02x}{adapter:01x}1"',
                f'  functions: ["0000:{bus}:00.2", "0000:{bus}:00.3"]',
            ]
    path.write_text("\n".join(rows) + "\n")


@contextlib.contextmanager
def _nova_end(stage):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        stage.nova_port = taken.getsockname()[1]
    events = stage.folder / "events.jsonl"
    events.write_text("")
    server = subprocess.Popen(
        (sys.executable, "-m", "tests.fabric.nova_events", str(stage.nova_port), str(events)),
        env=stage.environ(),
        cwd=stage.folder,
    )
    try:
        yield
    finally:
        server.terminate()
        server.wait(30)


@contextlib.contextmanager
def neutron_stage():
    """A stage with two processes; ``NOVA_HPC_NEUTRON_STAGE`` keeps its folder for the next one."""
    kept = os.environ.get("NOVA_HPC_NEUTRON_STAGE")
    folder = Path(kept) if kept else Path(tempfile.mkdtemp(prefix="nhn"))
    folder.mkdir(exist_ok=True)
    stage = NeutronStage(folder)
    (folder / "state").mkdir(exist_ok=True)
    paste = Path(sys.prefix, "etc/neutron/api-paste.ini").read_text()
    # Roles come from headers.
    (folder / "api-paste.ini").write_text(paste.replace("osprofiler authtoken ", "osprofiler "))
    write_inventory(stage.inventory)
    try:
        with mariadb(folder), _nova_end(stage):
            stage.write_conf()
            migrate(stage, "upgrade", "heads")
            for name, wait in (("first", PATIENT), ("second", HASTY)):
                stage.start(stage.write_conf(name, bind_wait=wait), name)
            yield stage
            for one in stage.processes:
                one.process.stdin.close()
            for one in stage.processes:
                one.process.wait(120)
    finally:
        for one in stage.processes:
            if one.process.poll() is None:
                one.process.kill()
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
