# SPDX-License-Identifier: Apache-2.0
"""The simulated fabric of devstack's plug-in, as a service that runs and ends."""

import configparser
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.fabric.bare_fabric import wait_until

FABRIC = Path(__file__).parents[2] / "devstack/described/fabric.py"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, as sockets need it."""
    with tempfile.TemporaryDirectory(prefix="nhd") as folder:
        yield Path(folder)


def test_the_service_runs_until_a_part_ends(place: Path) -> None:
    command = [sys.executable, str(FABRIC), str(place)]
    for _ in range(2):
        subprocess.run([*command, "write", "gpu1"], check=True)
    ports = yaml.safe_load((place / "ports.yaml").read_text())["ports"]
    assert [(port["host"], port["address"]) for port in ports] == [
        ("gpu1", "0000:81:00.0"),
        ("gpu1", "0000:82:00.0"),
    ]
    options = configparser.ConfigParser()
    options.read(place / "agent.conf")
    agent = options["hpc_fabric_agent"]
    service = subprocess.Popen([*command, "run"])
    try:
        log = Path(agent["opensm_log"])
        wait_until(lambda: log.exists() and "SUBNET UP" in log.read_text(), "a sweep", 60)
        children = psutil.Process(service.pid).children(recursive=True)
        assert {"ibsim", "opensm"} <= {child.name() for child in children}
        # One that ends ends the service, which systemd tells of.
        os.kill(int(Path(agent["opensm_pid_file"]).read_text()), signal.SIGKILL)
        assert service.wait(30) == 1
        assert not any(child.is_running() for child in children)
    finally:
        service.terminate()
        service.wait(30)
