# SPDX-License-Identifier: Apache-2.0
"""The agent as a process: its start, its signals, its heartbeat, and what ``check`` says of it.

What faults do to ports and tables is in test_faults.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from nova_hpc_lab import config
from nova_hpc_lab.fabric import partition_services, simulator
from tests.fabric.bare_fabric import wait_until

ARGV = (sys.executable, "-m", "neutron_drivers.fabric_agent")
#: Nobody listens there.
NO_BROKER = "rabbit://nobody:nothing@127.0.0.1:1/"


class AgentRun:
    """An agent without a broker at a bare fabric."""

    def __init__(self, site, **options):
        self.site = site
        sections = partition_services.agent_options(site.paths, site.settings)
        sections["DEFAULT"]["transport_url"] = NO_BROKER
        sections["hpc_fabric_agent"] |= options
        sections["oslo_messaging_notifications"] = {"driver": "log", "transport_url": NO_BROKER}
        name = uuid.uuid4().hex
        self.conf = site.paths.run / f"{name}.conf"
        self.conf.write_text(config.render(sections))
        self.log = site.paths.run / f"{name}.log"
        self.process = None

    def begin(self):
        environ = {**os.environ, "IBSIM_SOCKNAME": simulator.simulator_name(self.site.paths)}
        with self.log.open("w") as log:
            argv = (*ARGV, "--config-file", str(self.conf))
            self.process = subprocess.Popen(argv, env=environ, stdout=log, stderr=log)

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()

    def text(self):
        return self.log.read_text()

    def wait_for(self, text):
        """Wait for a text of the log while the agent runs."""
        wait_until(lambda: text in self.text() or self.process.poll() is not None, text, 90)
        assert text in self.text(), self.text()


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    from tests.fabric.bare_fabric import BareFabric

    fabric = BareFabric.make(tmp_path_factory.mktemp("agent"), hosts=2, ports=2)
    try:
        fabric.up()
        yield fabric
    finally:
        fabric.down()


@pytest.fixture
def run(bare):
    runs = []

    def begin(**options):
        runs.append(AgentRun(bare, **options))
        runs[-1].begin()
        return runs[-1]

    before = bare.files.config.read_text(), bare.files.partitions.read_text()
    yield begin
    for one in runs:
        one.end()
    bare.files.config.write_text(before[0])
    bare.files.partitions.write_text(before[1])


def check(conf, fabric, *words):
    """Exit status and rows of ``nova-hpc fabric check``."""
    code = "import sys; from nova_hpc_tools.main import main; sys.exit(main())"
    argv = (sys.executable, "-c", code, "fabric", "check", "--config-file", str(conf), "-f", "json")
    environ = {**os.environ, "IBSIM_SOCKNAME": simulator.simulator_name(fabric.paths)}
    done = subprocess.run(
        (*argv, *words), env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, {row["Name"]: row for row in json.loads(done.stdout)}


@pytest.mark.parametrize(
    ("line", "name"), [("sa_key 0x1", "sa_key"), ("m_key_protection_level 0", "m_key_protection")]
)
def test_an_open_fabric_is_refused_with_the_lines_to_change(bare, run, line, name):
    partitions = bare.files.partitions.read_text()
    bare.files.config.write_text(f"{bare.files.config.read_text()}{line}\n")
    agent = run()
    assert agent.process.wait(90) == os.EX_CONFIG
    assert re.search(
        rf"ERROR .*The agent does not begin: {name}\S* .*is not met: .*; {name}", agent.text()
    )
    assert "is not begun: change these lines" in agent.text()
    assert bare.files.partitions.read_text() == partitions


def test_everybody_a_full_member_is_refused(bare, run):
    bare.files.partitions.write_text("Default=0x7fff : ALL=full ;\n")
    agent = run()
    assert agent.process.wait(90) == os.EX_CONFIG
    assert "default_partition (SDN04-04) is not met" in agent.text()
    assert bare.files.partitions.read_text() == "Default=0x7fff : ALL=full ;\n"


def test_the_first_write_waits_for_the_operators_word(bare, run):
    guid = f"0x{bare.net.ports[0].guid:016x}"
    site = f"Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n0x8002 : {guid}=full ;\n"
    before = bare.files.partitions.read_text()
    bare.files.partitions.write_text(site)
    os.kill(int(bare.files.pid_file.read_text()), signal.SIGHUP)
    conf = AgentRun(bare).conf
    loss = f"port {guid}: 0x8002"
    wait_until(lambda: loss in check(conf, bare)[1]["first_write"]["Found"], "it is in force", 30)
    agent = run()
    assert agent.process.wait(90) == os.EX_CONFIG
    assert re.search(rf"ERROR .*does not begin: first_write .*{loss}", agent.text())
    assert bare.files.partitions.read_text() == site
    _, rows = check(conf, bare, "--accept-losses")
    assert rows["accepted_loss"]["Found"] == loss
    assert rows["first_write"]["State"] == rows["own_partitions"]["State"] == "met"
    agent = run()
    # It begins: without a broker that is an alarm, and nothing is written.
    agent.wait_for("no message broker takes read_desired")
    assert "does not begin" not in agent.text()
    agent.end()
    # The keys are gone again, so that the next agent here has nothing to lose.
    bare.files.partitions.write_text(before)
    os.kill(int(bare.files.pid_file.read_text()), signal.SIGHUP)
    wait_until(lambda: check(conf, bare)[1]["first_write"]["State"] == "met", "as before", 30)


def test_options_that_cannot_be_used_are_refused(run):
    for options in ({"subnet_manager": "none"}, {"fabric": ""}):
        agent = run(**options)
        assert agent.process.wait(90) == os.EX_CONFIG
        assert "The subnet manager cannot be used" in agent.text()


def test_without_a_broker_it_stays_says_so_and_ends_within_seconds(bare, run):
    agent = run()
    alarm = "Partition alarm on fabric main: the agent's round failed"
    agent.wait_for(alarm)
    assert "no message broker takes read_desired" in agent.text()
    # By oslo.messaging's driver "log": the notification as others get it.
    wait_until(lambda: "hpc_fabric.partition.alarm" in agent.text(), "notification", 10)
    line = next(text for text in agent.text().splitlines() if "hpc_fabric.partition.alarm" in text)
    body = json.loads(line[line.index("{") :])
    assert body["payload"]["version"] == "1.0"
    assert body["payload"]["fabric"] == "main"
    assert body["priority"] == "ERROR"
    os.kill(agent.process.pid, signal.SIGHUP)
    time.sleep(2)
    assert agent.process.poll() is None
    agent.process.terminate()
    assert agent.process.wait(30) == 0


def test_check_says_that_a_fabric_without_an_agent_is_not_the_agents(bare, run):
    agent = AgentRun(bare)
    status, rows = check(agent.conf, bare)
    assert status == 1
    assert rows["partitions_file"]["State"] == "not met"
    assert rows["tables"]["State"] == "unknown"
    assert rows["m_key"]["State"] == rows["sa_key"]["State"] == "met"


def test_a_heartbeat_fits_into_neutrons_column():
    """In a process of its own: Neutron has to be the first import."""
    code = """
import neutron, json, types
from neutron_drivers.fabric_agent import describe_configurations
from nova_hpc.fabric.partitions.agent_round import AgentStatus
from nova_hpc.fabric.partitions.backends.opensm import OpensmSubnetManager
options = types.SimpleNamespace(fabric="f" * 64, subnet_manager="opensm")
faults = tuple(str(number) + " " + "x" * 900 for number in range(99))
guids = tuple(range(1 << 63, (1 << 63) + 99))
status = AgentStatus(1 << 62, tuple(range(1, 400)), faults, guids, guids)
print(json.dumps(describe_configurations(options, OpensmSubnetManager, status)))
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    text = done.stdout.strip().splitlines()[-1]
    assert len(text) <= 4095
    body = json.loads(text)
    assert body["faults"][0].startswith("only 200 of 399 P_Keys")
    assert body["faults"][1].startswith("0 xxx")
    assert re.fullmatch(r"and \d+ more: see the agent's log", body["faults"][-1])
    assert body["foreign_pkeys"][:2] == ["0x0001", "0x0002"]


# -- with all of Neutron -----------------------------------------------------------------


def agent_of(plane):
    """The agent's row in Neutron."""
    _, answer = plane.admin.call("GET", "/agents")
    (agent,) = [one for one in answer["agents"] if one["binary"] == "nova-hpc-fabric-agent"]
    return agent


def agent_conf(plane):
    return plane.paths.config / "neutron" / "fabric-agent.conf"


def test_neutron_lists_the_agent_with_what_it_does(plane):
    agent = agent_of(plane)
    assert agent["alive"]
    assert agent["agent_type"] == "InfiniBand fabric agent"
    assert agent["configurations"] | {"ticket": 1} == {
        "fabric": "main",
        "subnet_manager": "opensm",
        "capabilities": {
            "separates_functions": False,
            "limited_members": True,
            "service_levels": True,
            "most_pkeys_of_a_port": 31,
        },
        "foreign_pkeys": [],
        "faults": [],
        "full_guids": [],
        "manager_guids": ["0x0002c90000100001"],
        "ticket": 1,
    }


def test_check_finds_nothing_wrong_and_then_what_was_edited(plane):
    status, rows = check(agent_conf(plane), plane)
    assert (status, rows["tables"]["State"]) == (0, "met"), rows
    assert "ports" in rows["tables"]["Found"]
    assert {row["State"] for row in rows.values()} == {"met", "not available"}
    with plane.frozen("fabric-agent"):
        before = plane.files.partitions.read_text()
        plane.files.partitions.write_text(before + "intruder=0x0666 : SELF=full ;\n")
        os.kill(int(plane.files.pid_file.read_text()), signal.SIGHUP)
        wait_until(lambda: check(agent_conf(plane), plane)[0] == 1, "the edit is named", 30)
    wait_until(
        lambda: "0x0666" not in plane.files.partitions.read_text(), "the agent heals the file", 10
    )
    wait_until(lambda: check(agent_conf(plane), plane)[0] == 0, "all is right again", 30)


def test_a_hand_edit_is_healed_within_the_bound(plane):
    before = plane.files.partitions.read_text()
    plane.files.partitions.write_text("")
    wait_until(
        lambda: plane.files.partitions.read_text().splitlines()[3:] == before.splitlines()[3:],
        "the file is written again",
        # Half a second of the watch, and a round; the rest is for a machine with other work.
        5,
        0.02,
    )


def test_hangup_and_end(plane):
    process = psutil.Process(plane.pid("fabric-agent"))
    wait_until(lambda: process.children(recursive=True), "it has a reader")
    process.send_signal(signal.SIGHUP)
    time.sleep(2)
    wait_until(lambda: process.is_running() and process.children(recursive=True), "a reader again")
    readers = process.children(recursive=True)
    process.terminate()
    process.wait(30)
    # By the end of its input: a reader that is killed keeps its place at the simulator.
    assert psutil.wait_procs(readers, 30)[1] == []
    plane.stop("fabric-agent")
    plane.start("fabric-agent")
    plane.wait_for_agent()
