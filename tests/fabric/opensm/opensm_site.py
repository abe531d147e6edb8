# SPDX-License-Identifier: Apache-2.0
"""One opensm on a simulated fabric, and the backend over it, without Neutron.

What opensm really does is read by the oracle of :mod:`tests.fabric.matrix`, which shares no code
with the backend.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP, register_agent_options
from nova_hpc.fabric.partitions.backends.base import (
    MemberState,
    SubnetManagerError,
)
from nova_hpc.fabric.partitions.backends.choice import make_subnet_manager
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc_lab.fabric import simulator
from nova_hpc_lab.fabric.net import FabricNet
from tests.fabric.bare_fabric import BareFabric, wait_until
from tests.fabric.matrix import guid_text

A, B = 0x101, 0x102
RIGHT, DIFFERENT, ABSENT = MemberState.AS_DESIRED, MemberState.DIFFERENT, MemberState.NOT_ON_FABRIC


class OtherNet(FabricNet):
    """A fabric of another shape."""

    def text(self):
        """The fabric in ibsim's own words."""
        return self.shape


class OneSwitch(OtherNet):
    """Adapters with two ports each at one switch; ibsim counts their GUIDs from the node's."""

    shape = """\
switchguid=0x2c90000020000
Switch 8 "leaf0"
[1] "manager"[1]
[2] "manager"[2]
[3] "two"[2]
[4] "two"[1]

caguid=0x2c90000100000
Hca 2 "manager"
[1] "leaf0"[1]
[2] "leaf0"[2]

caguid=0x2c90000200000
Hca 2 "two"
[1] "leaf0"[4]
[2] "leaf0"[3]
"""


class NoSwitch(OtherNet):
    """Two adapters with one cable."""

    shape = """\
caguid=0x2c90000100000
Hca 1 "manager"
[1] "one"[1]

caguid=0x2c90000200000
Hca 1 "one"
[1] "manager"[1]
"""


class Site:
    """A fabric, and agents' backends at its subnet manager."""

    def __init__(self, folder, net=None):
        self.folder = Path(folder)
        self.fabric = BareFabric.make(folder)
        if net is not None:
            self.fabric.net = net
        self.files = self.fabric.files
        self.guids = [port.guid for port in self.fabric.net.ports]
        self.tickets = 0
        self.opened = []

    def backend(self, **options):
        """A backend of its own, as an agent makes it."""
        conf = cfg.ConfigOpts()
        register_agent_options(conf)
        conf([], default_config_files=[])
        values = {
            "fabric": "main",
            "opensm_config": str(self.files.config),
            "opensm_pid_file": str(self.files.pid_file),
            "opensm_log": str(self.files.log),
            "partitions_file": str(self.files.partitions),
            "own_partitions_file": str(self.files.own_partitions),
            "state_path": str(self.folder / "state"),
            "simulated_host": "manager",
            "poll_interval": 0.5,
        } | options
        for name, value in values.items():
            conf.set_override(name, value, group=AGENT_GROUP)
        made = make_subnet_manager("opensm", conf.hpc_fabric_agent)
        self.opened.append(made)
        return made

    def desire(self, *members, **more):
        """A reading of the desired state; each has the next ticket."""
        self.tickets += 1
        return DesiredPartitions(self.tickets, members, **more)

    def hang_up(self):
        """What an administrator does by hand."""
        self.fabric.hang_up()

    def rest(self):
        """Everything back to nothing."""
        while self.opened:
            self.opened.pop().close()
        if self.fabric.pid("opensm") is None:
            self.fabric.start("opensm")
        self.files.own_partitions.write_text("# none\n")
        manager = self.backend()
        settle(manager, self.desire())
        self.opened.pop().close()


def member(row, guid, pkey=A, membership=Membership.FULL, wanted=True):
    """A row of Neutron's."""
    return PartitionMember(row, f"port{row}", guid, pkey, membership, wanted)


def states(reading):
    """Row -> state."""
    return {row: entry.state for row, entry in reading.members.items()}


def settle(manager, desired, seconds=10.0):
    """Enforce, look until no row is different; the last look, and all faults on the way."""
    manager.enforce(desired)
    return look(manager, desired, seconds)


def has_told(manager, desired):
    """Whether opensm is there and was told; one that has only begun cannot be."""
    try:
        manager.enforce(desired)
    except SubnetManagerError:
        return False
    return True


def look(manager, desired, seconds=10.0):
    """Look until no row is different or unread, and no fault is left."""
    end = time.monotonic() + seconds
    while True:
        reading = manager.read_back(desired)
        left = {DIFFERENT, MemberState.UNKNOWN} & set(states(reading).values())
        if not left and not reading.faults:
            return reading
        assert time.monotonic() < end, reading
        time.sleep(0.02)


@contextlib.contextmanager
def running_site(net=None):
    with (
        tempfile.TemporaryDirectory(prefix="nhf") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        made = Site(folder, net)
        try:
            made.fabric.up()
            patch.setenv("IBSIM_SOCKNAME", simulator.simulator_name(made.fabric.paths))
            yield made
        finally:
            for manager in made.opened:
                manager.close()
            made.fabric.down()


def keys(view, *guids):
    """Entries of each port beside the default partition; None: the switch port has others."""
    read = view.tables([guid_text(guid) for guid in guids])
    sides = [read[guid_text(guid)] for guid in guids]
    return [
        set(port) - {0x7FFF} if port == facing and 0x7FFF in port else None
        for port, facing in sides
    ]


def wait_for_keys(view, guids, expected):
    """The same of ports of which no row says when they are right."""
    wait_until(lambda: keys(view, *guids) == expected, f"{expected} at {guids}")
