# SPDX-License-Identifier: Apache-2.0
"""Any history of servers, crashes and restarts: no GPU is ever linked to another server's."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.tenancy.nvlink.backend import NvlinkBackend, NvlinkSettings, WaitsError
from nova_hpc.tenancy.nvlink.partitions import NoPartitionError, NvlinkFabricError, NvlinkPartition
from nova_hpc.tenancy.nvlink.step import NvlinkStep

GPUS = [f"0000:4{number}:00.0" for number in range(4)]
SETS = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 2), (0,), (1,), (2,), (3,)]


class Killed(BaseException):
    """The service ends here."""


class Memory(NvlinkBackend):
    """A manager that refuses what overlaps, fails or is killed when it is told to."""

    def __init__(self):
        super().__init__(NvlinkSettings("", 1.0, ""), lambda argv, limit: (0, ""))
        self.table = {key: frozenset(GPUS[n] for n in one) for key, one in enumerate(SETS)}
        self.active = set()
        self.waits = False
        #: Calls that still work, and what comes then.
        self.left, self.error = 0, None

    def _call(self, waits=True):
        if self.error is not None:
            if not self.left:
                error, self.error = self.error, None
                raise error
            self.left -= 1
        if self.waits and waits:
            raise WaitsError("it waits for the list")

    def partitions(self):
        self._call()
        return tuple(NvlinkPartition(k, one, k in self.active) for k, one in self.table.items())

    def activate(self, partition):
        self._call()
        if any(self.table[each] & self.table[partition] for each in self.active):
            raise NvlinkFabricError("in use")
        self.active.add(partition)

    def deactivate(self, partition):
        self._call()
        self.active.discard(partition)

    def set_active(self, partitions):
        self._call(waits=False)
        members = [gpu for each in partitions for gpu in self.table[each]]
        assert len(members) == len(set(members))
        self.active, self.waits = set(partitions), False


class World:
    """Nova's records, the guests that run, and one node's partitions."""

    def __init__(self, folder):
        self.backend = Memory()
        self.links = NvlinkStep(self.backend, LedgerFile(Path(folder, "state")))
        self.claims = {}  # server -> GPUs, by Nova's records
        self.running = {}  # server -> the partitions that it was started with

    def taken(self):
        return frozenset().union(*self.claims.values())

    def others(self, server):
        return frozenset().union(*(gpus for each, gpus in self.claims.items() if each != server))

    def start(self, server, gpus, linked):
        gpus -= self.taken()
        if gpus and server not in self.claims:
            self.claims[server] = gpus
            try:
                self.links.give(server, gpus, self.others(server), linked)
            except (NvlinkFabricError, Killed) as error:
                if not isinstance(error, Killed):
                    del self.claims[server]  # Nova goes on to another host
                return
            self.running[server] = self.mine(gpus)

    def mine(self, gpus):
        found = {key for key in self.backend.active if self.backend.table[key] & gpus}
        members = sorted(gpu for key in found for gpu in self.backend.table[key])
        assert members == sorted(gpus), "the partitions are not exactly the server's"
        return found

    def again(self, server, linked):
        if server in self.claims:
            try:
                self.links.keep(server, self.claims[server], self.others(server), linked)
            except NoPartitionError:
                return
            except (NvlinkFabricError, Killed):
                return
            self.running[server] = self.mine(self.claims[server])

    def end(self, server, told):
        if server in self.claims:
            self.running.pop(server, None)
            try:
                if told:
                    self.links.take_back(server)
            except (NvlinkFabricError, Killed):
                pass
            del self.claims[server]

    def look(self):
        with contextlib.suppress(Killed):
            self.links.sweep(self.taken)

    def restart(self):
        self.backend.waits = True
        self.backend.active = set()

    def fail(self, after, killed):
        self.backend.left = after
        self.backend.error = Killed() if killed else NvlinkFabricError("it fails")

    def check(self):
        """Whatever happened: nobody is linked with somebody else's GPU."""
        for key in self.backend.active:
            members = self.backend.table[key]
            owners = {
                each
                for each, gpus in self.claims.items()
                if each in self.running and gpus & members
            }
            assert len(owners) <= 1
            for owner in owners:
                assert members <= self.claims[owner] or not members & self.others(owner)
        if not self.backend.waits:
            for server, partitions in self.running.items():
                assert partitions <= self.backend.active, server


servers = st.sampled_from("abc")
gpus = st.frozensets(st.sampled_from(GPUS), min_size=1)
steps = st.one_of(
    st.tuples(st.just("start"), servers, gpus, st.booleans()),
    st.tuples(st.just("start"), servers, gpus, st.booleans()),
    st.tuples(st.just("again"), servers, st.booleans()),
    st.tuples(st.just("end"), servers, st.booleans()),
    st.tuples(st.just("look")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("fail"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("fail"), st.integers(1, 2), st.just(True)),
)


@given(st.lists(steps, max_size=14))
def test_any_history(history):
    with tempfile.TemporaryDirectory() as folder:
        world = World(folder)
        for name, *arguments in history:
            getattr(world, name)(*arguments)
            world.check()
        # Nothing is left behind: when all have gone, one look makes all inactive.
        world.backend.error = None
        world.claims.clear()
        world.running.clear()
        world.look()
        assert world.backend.active == set()
        assert world.links.state().tenancies == {}
