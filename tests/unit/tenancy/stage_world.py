# SPDX-License-Identifier: Apache-2.0
"""A node whose devices keep what servers leave in their memory, and whose service can be killed."""

import collections
import contextlib

import attrs

from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
)
from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.owners import NovaDeviceRow, NovaDeviceRows
from nova_hpc.tenancy.stage import domain
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.runner import StageOutcome, StageRunner
from nova_hpc.tenancy.stage.step import StageStep
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError
from nova_hpc.topology import sysfs
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make

DEVICES = (GPU, OTHER)


class Killed(BaseException):
    """The service ends here, as by SIGKILL: nothing catches it."""


@attrs.define
class World(StageRunner):
    """What outlives the service; it is also what runs its service VMs."""

    node: object
    #: Address -> whose data are in its memory; a reset leaves them.
    traces: dict[str, str] = attrs.field(factory=dict)
    #: Address -> server, by Nova's records.
    claimed: dict[str, str] = attrs.field(factory=dict)
    #: Running service VMs and their devices.
    vms: dict[str, tuple[str, ...]] = attrs.field(factory=dict)
    #: How many steps until the service is killed; None: it is not.
    left: int | None = None
    #: What the next stages come to; afterwards they pass.
    outcomes: list[StageOutcome] = attrs.field(factory=list)
    #: Every service VM that ever was.
    seen: list[str] = attrs.field(factory=list)
    stuck: bool = False
    #: Address -> how often Nova has changed its record.
    changes: collections.Counter[str] = attrs.field(factory=collections.Counter)

    def tick(self):
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1

    # -- the runner -----------------------------------------------------------------

    def holder(self):
        return domain.new_uuid()

    def run(self, holder, devices):
        known = self.node.ledger
        claimed = {each for each in devices if each in self.claimed}
        given = [each for each in claimed if not known.device(each).replaced]
        assert not given, "a service VM got the device of a server"
        for each in devices:
            assert known.device(each).stage["holder"] == holder, "libvirt knew it before the ledger"
            assert known.device(each).server == holder
        self.tick()
        self.vms[holder] = tuple(devices)
        self.seen.append(holder)
        self.tick()
        outcome = (
            self.outcomes.pop(0) if self.outcomes else StageOutcome(dict.fromkeys(devices, ""))
        )
        for each, why in outcome.verdicts.items():
            if why == "":
                self.traces.pop(each, None)
        self.tick()
        if not self.stuck:
            del self.vms[holder]
        self.tick()
        return outcome

    def end(self, holder, devices):
        self.tick()
        if self.stuck:
            return "libvirt does not answer"
        self.vms.pop(holder, None)
        self.tick()
        return None

    # -- who is asked -------------------------------------------------------------------

    def domains(self):
        return NodeGuestDomains(
            tuple(
                NodeGuestDomain(
                    uuid,
                    domain.service_vm_name_of(uuid),
                    DomainCondition.RUNNING,
                    PassedFunctions(frozenset(devices)),
                )
                for uuid, devices in self.vms.items()
            )
        )

    def owners(self):
        found = self.node.owners()
        return attrs.evolve(
            found,
            records=lambda: frozenset(self.claimed),
            domains=self.domains,
            rows=self.rows,
        )

    def rows(self):
        """Nova's records."""
        return NovaDeviceRows(
            "node",
            {
                each: NovaDeviceRow(
                    self.claimed.get(each),
                    "" if each in self.claimed else f"{self.changes[each]}",
                )
                for each in DEVICES
            },
        )


@attrs.frozen
class DeadlyFile(LedgerFile):
    """A ledger whose service may be killed before and after each change."""

    world: World = attrs.field(kw_only=True)

    def change(self, edit):
        self.world.tick()
        found = super().change(edit)
        self.world.tick()
        return found


class Service:
    """One life of nova-compute on a node, as far as devices go."""

    def __init__(self, world, modes=None):
        self.world = world
        node = world.node
        self.hygiene = node.step(
            rules=HealthRules(suspect_retry=60.0),
            ledger=DeadlyFile(node.state, of_compute=True, world=world),
        )
        self.stage = StageStep(
            records=self.hygiene.records,
            cleaners=self.hygiene.cleaners,
            modes={"gpu": StageMode.SERVICE_VM} if modes is None else modes,
            runners={StageMode.SERVICE_VM: world, StageMode.HOST: world},
            spawn=lambda attend: None,
        )

    def view(self):
        return NodeView(sysfs.read_sysfs_node(self.world.node.root), dict.fromkeys(DEVICES, "gpu"))

    def start(self, server, *addresses):
        """What Nova does: it claims, the driver checks, the guest runs. Whether it does."""
        world = self.world
        if set(addresses) & world.claimed.keys():
            return False
        world.claimed |= dict.fromkeys(addresses, server)
        world.changes.update(addresses)
        tenant = DeviceTenant(server, tuple(addresses), owners=world.owners())
        try:
            self.stage.before_start(tenant, self.view())
            self.hygiene.before_start(tenant, self.view())
        except RefusedError:
            self.free(server)
            return False
        for each in addresses:
            assert world.traces.get(each, server) == server, "given with another server's data"
            assert not any(each in devices for devices in world.vms.values())
            world.traces[each] = server
        return True

    def end(self, server):
        """The guest is gone; Nova frees its devices when the driver has returned."""
        world = self.world
        self.hygiene.after_end(server, self.view, world.owners())
        self.stage.after_end(server, self.view, world.owners())
        known = world.node.ledger
        for each, who in world.claimed.items():
            # A ledger that was lost is compared before anything is given.
            withheld = each in known.staged or not known.compared
            assert who != server or withheld or world.traces.get(each) != server
        self.free(server)

    def free(self, server):
        claimed = self.world.claimed
        for each in [each for each, who in claimed.items() if who == server]:
            del claimed[each]
            self.world.changes[each] += 1

    def update(self):
        """The periodic update; address -> why a device is not offered."""
        view, owners = self.view(), self.world.owners()
        found = dict(self.hygiene.withhold(view, owners).findings)
        found |= self.stage.withhold(view, owners).findings
        return {each: one.reason for each, one in found.items()}

    def attend(self):
        return self.stage.attend()

    def settle(self, rounds=4):
        """Updates, until everything is in order that can be."""
        found = {}
        for _ in range(rounds):
            found = self.update()
            self.attend()
            self.world.node.later(1000.0)
        return found | {} if self.world.node.ledger.staged else self.update()


def world(root):
    """A node whose devices have had what is due at the first start."""
    root.mkdir(exist_ok=True)
    found = World(make(root))
    assert Service(found).settle() == {}
    found.seen.clear()
    return found


@contextlib.contextmanager
def killed_after(found, steps):
    """Kill the service after so many steps; afterwards nobody is killed any more."""
    found.left = steps
    try:
        yield
    finally:
        found.left = None
