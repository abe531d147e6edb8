# SPDX-License-Identifier: Apache-2.0
"""A small control plane on a simulated fabric, from the lab's own modules.

Real: MariaDB, RabbitMQ, Keystone, Neutron (two API processes, the RPC server), the mechanism
driver, the agent, opensm. Nova's end of the events is stood in for.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import attrs
import requests

from nova_hpc_lab import bootstrap, config, database
from nova_hpc_lab.cloud import end_strays
from nova_hpc_lab.fabric import partition_services
from nova_hpc_lab.process import MARKER, Process, Tools
from nova_hpc_lab.progress import PlainDisplay, Step, run_steps
from nova_hpc_lab.services import Service, control_plane, probe_http, probe_listening
from nova_hpc_lab.state import write
from tests.fabric.bare_fabric import BareFabric, wait_until

PHYSICAL_NETWORKS = ("ibrail0", "ibrail1")
KEEP = "NOVA_HPC_FABRIC_KEEP"
PROJECTS = ("red", "blue")
_TOP = Path(__file__).resolve().parents[2]
_CONTROL = ("mariadb", "epmd", "rabbitmq", "keystone", "neutron")
#: Offset from the base port of what the lab itself does not have.
_SECOND_API = 12
#: In the environment of Neutron's processes: a file that names the step at which one of them dies.
FATAL_STEP = "NOVA_HPC_FATAL_STEP"
#: And the one that gets a line for each step: its name and seconds.
STEP_TIMES = "NOVA_HPC_STEP_TIMES"


class Silent:
    """Shows nothing of the steps."""

    def begin(self, step):
        pass

    def note(self, step, text, fraction):
        pass

    def done(self, step, error):
        pass


@attrs.define
class Caller:
    """Somebody with a role in a project, who talks to Neutron."""

    plane: "Plane"
    user: str
    password: str = attrs.field(repr=False)
    project: str
    _token: str = ""
    _until: float = 0.0

    def call(self, method, path, body=None, *, api=0, timeout=90.0):
        """Status and document; *api* says which of the two API processes is asked.

        :raises requests.RequestException: the connection broke, or the answer is late.
        """
        url = f"http://{config.LOOPBACK}:{self.plane.api_ports[api]}/v2.0{path}"
        with requests.Session() as session:
            session.trust_env = False
            answer = session.request(
                method, url, json=body, headers={"X-Auth-Token": self.token()}, timeout=timeout
            )
        return answer.status_code, answer.json() if answer.content else {}

    def token(self):
        if time.monotonic() > self._until:
            domain = {"id": "default"}
            user = {"name": self.user, "password": self.password, "domain": domain}
            auth = {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"name": self.project, "domain": domain}},
            }
            url = config.endpoint(self.plane.settings, "identity") + "/auth/tokens"
            with requests.Session() as session:
                session.trust_env = False
                answer = session.post(url, json={"auth": auth}, timeout=60)
            answer.raise_for_status()
            self._token = answer.headers["X-Subject-Token"]
            self._until = time.monotonic() + 3600
        return self._token


@attrs.define
class Plane(BareFabric):
    """The control plane and the fabric of one session of tests."""

    #: Sections of neutron.conf beside the usual ones.
    more: dict = attrs.field(factory=dict)
    callers: dict[str, Caller] = attrs.field(factory=dict)
    project_ids: dict[str, str] = attrs.field(factory=dict)

    # What there is.

    @property
    def api_ports(self):
        base = self.settings.base_port
        return (self.settings.ports["network"], base + _SECOND_API)

    @property
    def events_file(self):
        return self.paths.run / "events.jsonl"

    @property
    def fatal_step(self):
        return self.paths.run / "fatal-step"

    @property
    def step_times(self):
        return self.paths.run / "step-times"

    @property
    def admin(self):
        """The administrator, with the role of a service, as Nova has it."""
        return self.callers["nova"]

    def services(self):
        """All processes by name."""
        known = control_plane(self.paths, self.settings)
        found = super().services() | {name: known[name] for name in _CONTROL}
        found |= partition_services.partition_services(self.paths, self.settings)
        fatal = {
            FATAL_STEP: str(self.fatal_step),
            STEP_TIMES: str(self.step_times),
            "PYTHONPATH": _python_path(),
        }
        second, port = found["neutron"], self.api_ports[1]
        found["neutron-2"] = attrs.evolve(
            second,
            name="neutron-2",
            process=Process("neutron-2", self.paths),
            argv=(*second.argv[:-1], str(port)),
            probe=lambda: probe_http(port),
            port=port,
        )
        for name in ("neutron", "neutron-2", "neutron-rpc-server"):
            one = found[name]
            argv = (sys.executable, "-m", "tests.fabric.fatal_steps", *_as_script(one.argv))
            found[name] = attrs.evolve(one, argv=argv, environ={**one.environ, **fatal})
        found["fabric-agent"] = self._agent(found["fabric-agent"])
        found["mariadb"] = _durable(found["mariadb"])
        # Where the catalog has Nova's API.
        events = self.settings.ports["compute"]
        found["nova-events"] = Service(
            name="nova-events",
            title="Nova's end of the events",
            process=Process("nova-events", self.paths),
            argv=(
                *(sys.executable, "-m", "tests.fabric.nova_events", str(events)),
                str(self.events_file),
            ),
            environ={"PYTHONPATH": _python_path()},
            probe=lambda: probe_listening(events),
            port=events,
        )
        return found

    def _agent(self, agent):
        """The agent, which can be told to stand still."""
        words = agent.argv[agent.argv.index("--config-file") :]
        pause = {"NOVA_HPC_AGENT_PAUSE": str(self.agent_pause), "PYTHONPATH": _python_path()}
        return attrs.evolve(
            agent,
            argv=(sys.executable, "-m", "tests.fabric.paused_agent", *words),
            environ={**agent.environ, **pause},
        )

    @property
    def agent_pause(self):
        return self.paths.run / "agent-pause"

    def second_agent(self):
        """One more agent of the same fabric, that no pause stops."""
        agent = self.services()["fabric-agent"]
        text = (self.paths.config / "neutron" / "fabric-agent.conf").read_text()
        file = self.paths.config / "neutron" / "second-agent.conf"
        file.write_text(text.replace("host = opensm-manager", "host = opensm-second"))
        never = {"NOVA_HPC_AGENT_PAUSE": str(self.paths.run / "never")}
        return attrs.evolve(
            agent,
            name="second-agent",
            process=Process("second-agent", self.paths),
            argv=(*agent.argv[:-1], str(file)),
            environ={**agent.environ, **never},
        )

    def restart(self, name):
        """Have a process end, and start it again."""
        self.stop(name)
        self.start(name)

    def events(self, since=0.0):
        """What Nova was told after *since* (time.time())."""
        if not self.events_file.exists():
            return []
        lines = self.events_file.read_text().splitlines()
        return [one for one in map(json.loads, lines) if one["time"] >= since]

    # Up and down.

    def neutron_options(self):
        sections = config.neutron(self.paths, self.settings)
        partitions = partition_services.partition_options(self.paths, PHYSICAL_NETWORKS)
        for part in (partitions, self.more):
            sections = partition_services.merge_sections(sections, part)
        return sections

    def prepare(self):
        """Write all files of configuration."""
        super().prepare()
        self.settings.save(self.paths)
        config.write_all(self.paths, self.settings)
        partition_services.prepare_partitions(self.paths, self.settings, self.neutron_options())
        write(partition_services.inventory_file(self.paths), self.net.inventory())

    def up(self, shown=None):
        """Start everything; what runs is left alone."""
        os.environ[MARKER] = str(self.paths.state)
        bootstrap.bypass_proxies()
        self.prepare()
        tools = Tools(self.paths)
        steps = self._steps(tools)
        begun = time.monotonic()

        def abort():
            self.stopping.set()
            tools.abort()

        run_steps(steps, shown or Silent(), abort)
        return time.monotonic() - begun

    def _steps(self, tools):
        paths, settings, services = self.paths, self.settings, self.services()

        def start(name):
            return lambda report: services[name].start(self.stopping)

        def mariadb(report):
            database.prepare_server(paths, settings, tools)
            start("mariadb")(report)

        def rabbitmq(report):
            if self.pid("rabbitmq") is None:
                database.prepare_broker(paths, settings)
            start("epmd")(report)
            start("rabbitmq")(report)

        def schema(name):
            return lambda report: database.make_schema(name, paths, settings, tools)

        neutron = ("schema-neutron", "rabbitmq")
        return [
            Step("mariadb", "MariaDB", mariadb),
            Step("rabbitmq", "RabbitMQ", rabbitmq),
            Step("keys", "Keys", lambda report: database.make_keys(paths, tools)),
            Step(
                "schema-keystone", "Database of Keystone", schema("keystone"), ("mariadb", "keys")
            ),
            Step("schema-neutron", "Database of Neutron", schema("neutron"), ("mariadb",)),
            Step("keystone", "Keystone", start("keystone"), ("schema-keystone",)),
            Step("users", "Users", lambda report: self._make_users(), ("keystone",)),
            Step("nova-events", "Events", start("nova-events")),
            Step("ibsim", "Fabric", start("ibsim")),
            Step("opensm", "Subnet manager", start("opensm"), ("ibsim",)),
            Step("neutron", "Neutron", start("neutron"), (*neutron, "nova-events")),
            Step("neutron-2", "Neutron again", start("neutron-2"), (*neutron, "nova-events")),
            Step("rpc", "Neutron's RPC server", start("neutron-rpc-server"), neutron),
            Step("agent", "The agent", start("fabric-agent"), ("rpc", "opensm")),
            Step(
                "settled",
                "Neutron knows the agent",
                lambda report: self.wait_for_agent(),
                ("users", "agent", "neutron", "neutron-2"),
            ),
        ]

    def _make_users(self):
        bootstrap.make_catalog(self.settings)
        identity = bootstrap.connect(self.settings).identity
        roles = [identity.find_role(name) for name in ("member", "reader")]
        passwords = self.settings.passwords
        self.callers["nova"] = Caller(self, "lab-service", passwords["service"], "service")
        self.callers["admin"] = Caller(self, "admin", passwords["admin"], "admin")
        for name in PROJECTS:
            password = f"{name}-{passwords['service']}"
            project = identity.find_project(name) or identity.create_project(
                name=name, domain_id="default"
            )
            self.project_ids[name] = project.id
            user = identity.find_user(name) or identity.create_user(
                name=name, password=password, domain_id="default"
            )
            for role in roles:
                identity.assign_project_role_to_user(project, user, role)
            self.callers[name] = Caller(self, name, password, name)

    def wait_for_agent(self, seconds=60.0):
        """Until Neutron lists the agent as alive; both API processes have answered by then."""

        def alive():
            return [
                one
                for api in (0, 1)
                for one in self.admin.call("GET", "/agents", api=api)[1]["agents"]
                if one["binary"] == "nova-hpc-fabric-agent" and one["alive"]
            ]

        wait_until(lambda: len(alive()) >= 2, "Neutron knows the agent", seconds)

    def down(self):
        """End everything."""
        self.stopping.set()
        services = self.services()
        last = ("mariadb", "rabbitmq", "ibsim", "epmd")
        threads = [
            threading.Thread(target=one.process.stop, args=(10.0,))
            for name, one in services.items()
            if name not in last
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for name in last:
            services[name].process.stop(10.0)
        end_strays(self.paths)


def _durable(mariadb):
    """A database that is killed keeps what it has committed, as in production."""
    lazy = "--innodb-flush-log-at-trx-commit=0"
    words = [word.replace(lazy, lazy[:-1] + "2") for word in mariadb.argv]
    assert words != list(mariadb.argv)
    return attrs.evolve(mariadb, argv=tuple(words))


def _python_path():
    return os.pathsep.join([str(_TOP), str(_TOP / "lab"), os.environ.get("PYTHONPATH", "")])


def _as_script(argv):
    """The words behind the interpreter."""
    return argv[1:]


@contextlib.contextmanager
def running(shown=None, **options):
    """A plane that is up; at the end nothing of it is left.

    Where KEEP names a folder, the plane there is used and stays, for the next run.
    """
    if kept := os.environ.get(KEEP):
        plane = Plane.make(Path(kept), **options)
        plane.up(shown)
        yield plane
        return
    with tempfile.TemporaryDirectory(prefix="nhf") as folder:
        plane = Plane.make(Path(folder), **options)
        try:
            plane.up(shown)
            yield plane
        finally:
            plane.down()


if __name__ == "__main__":
    with running(PlainDisplay(sys.stderr)) as shown_plane:
        print(shown_plane.api_ports, shown_plane.paths.state, flush=True)
        sys.stdin.read()
