# SPDX-License-Identifier: Apache-2.0
"""A simulated fabric and its subnet manager, and what can happen to processes beside them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import attrs
import psutil

from nova_hpc_lab.fabric import net as nets
from nova_hpc_lab.fabric import simulator, subnet_manager
from nova_hpc_lab.process import MARKER
from nova_hpc_lab.state import Paths, Settings

HOSTS, PORTS_OF_A_HOST = 8, 8


def wait_until(condition, what, seconds=60.0, pause=0.05):
    """What *condition* then is; fails with what is missing."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(pause)
    return found


def _free_base():
    """A block of ports that nobody uses, below those that the kernel gives out."""
    for _ in range(100):
        base = random.SystemRandom().randrange(12000, 32000, 20)
        with contextlib.ExitStack() as stack:
            try:
                for offset in range(20):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", base + offset))
            except OSError:
                continue
        return base
    raise AssertionError("no free block of ports")


@attrs.define
class BareFabric:
    """ibsim and opensm, below a folder of their own."""

    paths: Paths
    settings: Settings
    net: nets.FabricNet
    stopping: threading.Event = attrs.field(factory=threading.Event)

    @classmethod
    def make(cls, folder, hosts=HOSTS, ports=PORTS_OF_A_HOST, **options):
        """A fabric with so many hosts that is not started yet."""
        paths = Paths(Path(folder) / "lab", Path(folder) / "cache", Path(sys.prefix))
        kept = Settings.load(paths)
        settings = kept or Settings.fresh(_free_base(), 0, "two-socket")
        net = nets.net_of_hosts(nets.numbered_hosts(hosts, ports))
        return cls(paths, settings, net, **options)

    @property
    def files(self):
        """The subnet manager's files."""
        return subnet_manager.manager_files(self.paths)

    def services(self):
        """All processes by name."""
        return {
            "ibsim": simulator.ibsim_service(self.paths, self.net),
            "opensm": subnet_manager.opensm_service(self.paths),
        }

    def prepare(self):
        """Write all files of configuration."""
        self.paths.make()
        os.environ[MARKER] = str(self.paths.state)
        simulator.prepare_simulator(self.paths, self.net)
        subnet_manager.prepare_manager(self.paths)

    def up(self):
        """Start everything; what runs is left alone."""
        self.prepare()
        for name in ("ibsim", "opensm"):
            self.start(name)

    def down(self):
        """End everything."""
        self.stopping.set()
        for name in ("opensm", "ibsim"):
            self.stop(name)

    # What can happen.

    def start(self, name):
        """Start one process, and wait until it works."""
        self.services()[name].start(self.stopping)

    def stop(self, name):
        """Have one process end in its own time."""
        self.services()[name].process.stop(10.0)

    def pid(self, name):
        """The number of a running process; None where it does not run."""
        return self.services()[name].process.pid()

    def kill(self, name):
        """SIGKILL for the process and, but for readers of tables, what it has started.

        A reader leaves when its input ends; a killed one would keep its place at the simulator.
        """
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        family = psutil.Process(pid).children(recursive=True)
        for one in (psutil.Process(pid), *family):
            if one.pid == pid or "LD_PRELOAD" not in _environ_of(one):
                with contextlib.suppress(psutil.Error):
                    one.send_signal(signal.SIGKILL)
        wait_until(lambda: self.pid(name) is None, f"{name} is gone")
        if name == "opensm":
            self.free_places()

    def free_places(self):
        """Have the simulator forget clients that were killed."""
        simulator.free_client_places(self.paths)
        simulator.clear_folder(self.paths)

    def hang_up(self):
        """What an administrator does by hand: have opensm read its files again."""
        os.kill(int(self.files.pid_file.read_text()), signal.SIGHUP)

    @contextlib.contextmanager
    def frozen(self, name):
        """A process that stands still for a while."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def tell_simulator(self, *commands):
        """Commands of the simulator's console."""
        simulator.tell_simulator(self.paths, *commands)

    def client(self, node, *argv, **options):
        """A running program on a simulated node."""
        return subprocess.Popen(
            [str(word) for word in argv],
            env={**os.environ, **simulator.client_environ(self.paths, node)},
            cwd=simulator.client_folder(self.paths),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def ask(self, node, *argv, seconds=20.0):
        """Run a program on a simulated node to its end; what it said."""
        with self.client(node, *argv, stderr=subprocess.STDOUT) as running:
            try:
                return running.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                running.terminate()
                running.communicate(timeout=seconds)
                return ""


def _environ_of(process):
    try:
        return process.environ()
    except psutil.Error:
        return {}
