# SPDX-License-Identifier: Apache-2.0
"""One lab for all tests here: the real cloud with one virtual node, whose shape tests choose.

It has ports and a state of its own, and shares the cache of images with the
user's lab. The first start builds the image, which takes some minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
import psutil
import pytest

from nova_hpc_lab import bootstrap, node
from nova_hpc_lab.process import MARKER
from nova_hpc_lab.state import Paths, Settings

BASE_PORT = int(os.environ.get("NOVA_HPC_LAB_BASE_PORT", "28700"))
#: Seconds: emulation is slow, but nothing here may wait for ever.
COMMAND = 1200
STATE = 600
#: To the report of a guest. One that stays silent, as an emulated processor now and
#: then loses a wake-up, is started again, as in the demonstration.
REPORT = 300
KEEP = "NOVA_HPC_LAB_KEEP"
STARTS = 3


@attrs.frozen
class Lab:
    """The commands of a lab, as a user types them."""

    state_home: str

    @property
    def environ(self):
        return {**os.environ, "XDG_STATE_HOME": self.state_home}

    @property
    def state(self):
        return Path(self.state_home, "nova-hpc", "lab")

    @property
    def settings(self):
        """Ports, passwords and shape of the lab."""
        return Settings.load(Paths.from_environment(self.environ))

    @property
    def connection(self):
        """Of openstacksdk, as the lab's administrator."""
        return bootstrap.connect(self.settings)

    @property
    def client_environ(self):
        """What the ``openstack`` command needs to reach the lab."""
        return self.environ | {
            "OS_CLIENT_CONFIG_FILE": str(self.state / "etc" / "clouds.yaml"),
            "OS_CLOUD": "nova-hpc-lab",
            "OS_COMPUTE_API_VERSION": "2.96",
            "no_proxy": "127.0.0.1",
        }

    def run(self, *words):
        """Any ``nova-hpc`` command, as its operator gives it."""
        argv = [sys.executable, "-m", "nova_hpc_tools.main", *words]
        return self._run(argv, self.client_environ)

    def client(self, *words):
        """The ``openstack`` command, however it ends."""
        return self._run([Path(sys.prefix, "bin", "openstack"), *words], self.client_environ)

    def nova_hpc(self, *words):
        argv = [sys.executable, "-m", "nova_hpc_tools.main", "lab", *words]
        return self._run(argv, self.environ)

    def _run(self, argv, environ):
        return subprocess.run(
            argv, env=environ, capture_output=True, text=True, timeout=COMMAND, check=False
        )

    def up(self, *words):
        done = self.nova_hpc("up", "--base-port", str(BASE_PORT), *(words or ("--nodes", "1")))
        assert done.returncode == 0, done.stderr

    def has_shape(self, shape, nodes=1, fabric=False):
        """Have so many nodes of that shape; the control plane goes on as it is.

        :param fabric: with a simulated InfiniBand fabric; to change that, the lab goes down.
        """
        if KEEP in os.environ and self._has(str(shape), nodes, fabric):
            return
        if (self.state / "settings.json").exists():
            # One that another test is deleting may be gone before it is asked for.
            for one in self.servers():
                self.openstack("server", "delete", "--wait", one["ID"], check=False)
            self.until(lambda: not self.servers(), "all servers are deleted")
            self.up("--nodes", "0")
            if self.settings.fabric != fabric:
                assert self.nova_hpc("down").returncode == 0
        option = "--fabric" if fabric else "--no-fabric"
        self.up("--nodes", str(nodes), "--shape", str(shape), option)

    def _has(self, shape, nodes, fabric):
        """Whether a lab that was kept is so already, and in order."""
        if not (self.state / "settings.json").exists():
            return False
        known = self.settings
        same = (Path(known.shape).stem, known.nodes) == (Path(shape).stem, nodes)
        return same and known.fabric == fabric and self.status()["healthy"]

    def restarted(self):
        """The one node's supervisor ends, and with it the node; then the lab is brought up again.

        What is on the node's disk stays, and its configuration is made anew.
        """
        (before,) = self.status()["nodes"]
        supervisor = psutil.Process(before["supervisor_pid"])
        supervisor.terminate()
        supervisor.wait(timeout=120)
        self.up("--nodes", "1", "--shape", str(self.settings.shape))
        (after,) = self.status()["nodes"]
        assert after["qemu_pid"] != before["qemu_pid"]
        return after

    def status(self):
        return json.loads(self.nova_hpc("status", "--format", "json").stdout)

    def inside(self, script, node="hpc1"):
        """Run a shell script in a node."""
        done = self.nova_hpc("ssh", node, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def openstack(self, *words, check=True):
        done = self.client(*words)
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    def servers(self):
        """What the user's list of servers has."""
        return json.loads(self.openstack("server", "list", "-f", "json"))

    def show(self, server):
        """A server as its user sees it."""
        return json.loads(self.openstack("server", "show", server, "-f", "json"))

    def report(self, server, seconds=REPORT):
        """The guest's own account, after at most STARTS starts of so many seconds each."""
        for _ in range(STARTS):
            started = time.monotonic()
            while time.monotonic() - started < seconds:
                said = self.openstack("console", "log", "show", server, check=False)
                if (found := node.parse_report(said)) is not None:
                    return found
                # The client itself takes two seconds of a CPU that the guest needs.
                time.sleep(10)
            self.openstack("server", "reboot", "--hard", "--wait", server)
        raise AssertionError(f"the guest said nothing in {STARTS} starts\n{self.tail()}")

    def until(self, condition, what, seconds=STATE):
        """Wait until it is true, and return what it then is; else fail with what is missing."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds} s: {what}\n{self.tail()}")
            time.sleep(3)
        return found

    def tail(self, lines=40):
        """What the lab's node says of itself, for a failure that is read elsewhere."""
        log = self.state / "nodes" / "hpc1" / "nova-compute.log"
        text = log.read_text(errors="replace") if log.exists() else "no log"
        return "\n".join([json.dumps(self.status()), *text.splitlines()[-lines:]])

    def processes(self):
        """Everything that runs on behalf of this lab."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARKER) == str(self.state):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def pytest_collection_modifyitems(items):
    """One lab after the other: those of a shape of their own at the end."""
    items.sort(key=lambda item: "lab" in getattr(getattr(item, "callspec", None), "params", {}))


@pytest.fixture(scope="session")
def cloud():
    """A lab that is not started yet; at the end nothing of it is left.

    Where KEEP names a folder, the lab there is used and stays, for the next run.
    """
    if kept := os.environ.get(KEEP):
        yield Lab(kept)
        return
    # Short, as unix sockets need it.
    with tempfile.TemporaryDirectory(prefix="nhl") as home:
        found = Lab(home)
        try:
            yield found
        finally:
            done = found.nova_hpc("down", "--purge")
        left = [process.cmdline() for process in found.processes()]
        assert not left
        assert done.returncode == 0, done.stderr
        assert not found.state.exists()


@pytest.fixture(scope="session")
def lab(request, cloud):
    """The lab with one node; a test that names a shape gets a node of that shape.

    Or so many nodes of it, where it names their number, too, and with a fabric, if it wants one.
    """
    wanted = getattr(request, "param", "two-socket")
    cloud.has_shape(*(wanted if isinstance(wanted, tuple) else (wanted,)))
    return cloud
