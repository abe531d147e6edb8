# SPDX-License-Identifier: Apache-2.0
"""What really happens below nova-compute in a history: deaths, domains, resets.

Two fixtures. :class:`Mortal` lets the nova-compute of one host die at one of its
steps: from then on whatever it still does has no effect. :class:`Truth` stands at
libvirt and at the kernel's resets, and notes what must never be.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import fixtures
import oslo_messaging
from nova import utils as nova_utils
from nova.compute import manager as compute_manager
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_messaging._drivers import impl_fake
from oslo_messaging.rpc import dispatcher as rpc_dispatcher
from oslo_messaging.rpc import server as rpc_server
from sqlalchemy import event
from sqlalchemy.engine import Engine

from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from tests.functional.kills import agent
from tests.functional.kills.hypervisor import devices_of

#: Methods of the compute manager that nobody calls by a message.
_ROOTS: Final = (
    "init_host",
    "pre_start_hook",
    "update_available_resource",
    "_do_build_and_run_instance",
    "_build_succeeded",
    "_do_live_migration",
)
try:  # release 34 brought threads of their own
    from nova import thread_pool_factory as _spawner
except ImportError:
    _spawner = nova_utils
#: Messages of live migrations for whose answer no service waits.
_CASTS: Final = frozenset({"live_migration", "rollback_live_migration_at_destination"})
#: Besides those of the kills: what stops, saves and changes guests.
_MORE: Final = {
    "nova.tests.fixtures.libvirt:Domain.migrateToURI3": "libvirt: move the domain",
    "nova.tests.fixtures.libvirt:Domain.shutdown": "libvirt: shut the domain down",
    "nova.tests.fixtures.libvirt:Domain.managedSave": "libvirt: save the domain",
    "nova.tests.fixtures.libvirt:Domain.attachDeviceFlags": "libvirt: attach a device",
    "nova.tests.fixtures.libvirt:Domain.detachDeviceFlags": "libvirt: detach a device",
}


class KilledError(BaseException):
    """Whoever catches ordinary errors must not outlive this one."""


class Mortal(fixtures.Fixture):
    """A nova-compute of this process that can die right before any of its steps.

    A step is what :mod:`tests.functional.kills.agent` says. Locks end with the threads
    that have them, as those of a process end with it; the services around go on.
    """

    def __init__(self, manager_of: Callable[[Path], Any]) -> None:
        """*manager_of*: the compute manager of the host whose sysfs is there, or None."""
        super().__init__()
        self._manager_of = manager_of
        self._local = threading.local()
        self._lock = threading.Lock()
        self._flying = 0
        self._polled: set[tuple[int, str, str | None]] = set()
        self._dead: list[Any] = []
        self._at = 0
        self._host: str | None = None
        self._dies: Any = None
        self._name: str | None = None
        self._counts: dict[str, int] = {}
        #: Messages to a dead service for which no sender waits; each delivers one.
        self.held: list[Callable[[Any], Any]] = []
        #: Who died at which step, as (host, step); None: all live.
        self.died: tuple[str, str] | None = None

    # -- death --------------------------------------------------------------------

    def arm(
        self, at: int, host: str | None = None, dies: Any = None, name: str | None = None
    ) -> None:
        """Let the first nova-compute die that comes to its step of this number from now on.

        :param host: the only one whose steps count.
        :param dies: the manager of another one that dies at that step in its stead.
        :param name: the only steps that count.
        """
        self._at, self._counts, self.died = at, {}, None
        self._host, self._dies, self._name = host, dies, name

    def disarm(self) -> tuple[str, str] | None:
        """Let all live on; who died at which step."""
        self._at = 0
        return self.died

    def kill(self, manager: Any, step: str = "the end") -> None:
        """Die now."""
        self._dead.append(manager)
        self._at, self.died = 0, (manager.host, step)
        # It will not wait for what will never end.
        getattr(manager, "_in_progress_tasks", {}).clear()

    def is_dead(self, manager: Any) -> bool:
        return any(each is manager for each in self._dead)

    def step(self, name: str, manager: Any = None) -> None:
        """Something durable is about to happen.

        :raises KilledError: it does not.
        """
        stack = self._stack()
        manager = manager or (stack[-1] if stack else None)
        if manager is None:
            return
        with self._lock:
            if self.is_dead(manager):
                raise KilledError
            if self._host not in (None, manager.host) or self._name not in (None, name):
                return
            count = self._counts[manager.host] = self._counts.get(manager.host, 0) + 1
            if count != self._at:
                return
            self.kill(self._dies or manager, name)
            if self._dies is not None:
                return
        raise KilledError

    def _stack(self) -> list[Any]:
        try:
            stack: list[Any] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        return stack

    @contextlib.contextmanager
    def inside(self, manager: Any) -> Iterator[None]:
        """The steps of this thread are those of a nova-compute, or of none."""
        stack = self._stack()
        stack.append(manager)
        try:
            yield
        finally:
            stack.pop()

    # -- what is under way ----------------------------------------------------------

    def idle(self, down: set[str]) -> bool:
        """Whether no service has anything to do, but for those of hosts that are down."""
        exchanges = impl_fake.FakeExchangeManager._exchanges.values()
        with self._lock:
            for exchange in exchanges:
                queues = [*exchange._server_queues.items(), *exchange._topic_queues.items()]
                for (topic, server), queue in queues:
                    asked = (id(exchange), topic, server) in self._polled
                    if queue and asked and server not in down:
                        return False
            return self._flying == 0

    def _flies(self, change: int) -> None:
        with self._lock:
            self._flying += change

    # -- wraps ----------------------------------------------------------------------

    def _setUp(self) -> None:
        for target, name in {**agent.DURABLE, **_MORE}.items():
            if "reset:" not in target:
                self._wrap(target, self._stepping(name))
        self._wrap("nova_hpc.tenancy.hygiene.reset:reset_device", self._resetting)
        for name in _ROOTS:
            self._wrap(f"nova.compute.manager:ComputeManager.{name}", self._rooted)
        driver = "nova.virt.libvirt.driver:LibvirtDriver"
        self._wrap(f"{driver}._live_migration_operation", self._moving)
        self._patch(rpc_dispatcher.RPCDispatcher, "_do_dispatch", self._dispatching)
        self._patch(rpc_server.RPCServer, "_process_incoming", self._processing)
        self._patch(impl_fake.FakeExchange, "poll", self._polling)
        self._patch(_spawner, "spawn_on", self._spawning)
        for name, listener in (
            ("before_cursor_execute", self._executed),
            ("commit", self._commit),
            ("rollback", self._rollback),
        ):
            event.listen(Engine, name, listener)
            self.addCleanup(event.remove, Engine, name, listener)

    def _wrap(self, target: str, make: Callable[[Any], Any]) -> None:
        path = target.replace(":", ".")
        owner, _, name = path.rpartition(".")
        self.useFixture(_Patch(owner, name, make))

    def _patch(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        plain = getattr(owner, name)
        setattr(owner, name, make(plain))
        self.addCleanup(setattr, owner, name, plain)

    def _stepping(self, name: str) -> Callable[[Any], Any]:
        def make(plain: Any) -> Any:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                words = [getattr(each, "name", str(each)) for each in args]
                self.step(name.format(*words) if "{" in name else name)
                return plain(*args, **kwargs)

            return wrapper

        return make

    def _resetting(self, plain: Any) -> Any:
        """Resets run in threads of their own; one that has begun outlives a kill."""

        def wrapper(root: Path, address: str, *args: Any) -> None:
            manager = self._manager_of(root)
            self.step(f"reset {address}", manager)
            plain(root, address, *args)
            self.step(f"{address} was reset", manager)

        return wrapper

    def _rooted(self, plain: Any) -> Any:
        def wrapper(manager: Any, *args: Any, **kwargs: Any) -> Any:
            with self.inside(manager):
                return plain(manager, *args, **kwargs)

        return wrapper

    def _moving(self, plain: Any) -> Any:
        """The thread that waits for libvirt while a guest moves."""

        def wrapper(driver: Any, *args: Any, **kwargs: Any) -> Any:
            with self.inside(driver.virtapi._compute):
                return plain(driver, *args, **kwargs)

        return wrapper

    def _dispatching(self, plain: Any) -> Any:
        def wrapper(this: Any, endpoint: Any, method: str, *args: Any) -> Any:
            manager = getattr(endpoint, "_endpoint", endpoint)
            manager = vars(manager).get("manager", manager)
            if not isinstance(manager, compute_manager.ComputeManager):
                return plain(this, endpoint, method, *args)
            if self.is_dead(manager):
                self.held += [lambda new: plain(this, new, method, *args)] * (method in _CASTS)
                raise oslo_messaging.MessagingTimeout("killed")
            try:
                with self.inside(manager):
                    return plain(this, endpoint, method, *args)
            except KilledError:
                # So much does somebody learn who waits for the answer of a dead service.
                raise oslo_messaging.MessagingTimeout("killed") from None

        return wrapper

    def _processing(self, plain: Any) -> Any:
        def wrapper(*args: Any) -> Any:
            try:
                return plain(*args)
            finally:
                self._flies(-1)

        return wrapper

    def _polling(self, plain: Any) -> Any:
        def wrapper(exchange: Any, target: Any, pool: Any) -> Any:
            with self._lock:
                self._polled.add((id(exchange), target.topic, target.server))
                found = plain(exchange, target, pool)
                self._flying += found[1] is not None
            return found

        return wrapper

    def _spawning(self, plain: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._flies(1)
            future = plain(*args, **kwargs)
            future.add_done_callback(lambda _: self._flies(-1))
            return future

        return wrapper

    # -- the database ---------------------------------------------------------------

    @staticmethod
    def _executed(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        match = agent._WRITES.match(statement)
        if match:
            connection.info.setdefault("nova_hpc_history", []).append(match[2])

    def _commit(self, connection: Any) -> None:
        tables = connection.info.pop("nova_hpc_history", [])
        if not tables:
            return
        try:
            self.step(f"database: {', '.join(dict.fromkeys(tables))}")
        except KilledError:
            # All threads share one connection: the next commit would write this, too.
            connection.connection.rollback()
            raise

    @staticmethod
    def _rollback(connection: Any) -> None:
        connection.info.pop("nova_hpc_history", None)


class _Patch(fixtures.Fixture):
    """Replace a name by what is made of its value, until the test ends."""

    def __init__(self, owner: str, name: str, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self._owner, self._name, self._make = owner, name, make

    def _setUp(self) -> None:
        patch = fixtures.MonkeyPatch(f"{self._owner}.{self._name}", None)
        plain = _resolve(f"{self._owner}.{self._name}")
        patch.new_value = self._make(plain)
        self.useFixture(patch)


def _resolve(path: str) -> Any:
    import pkgutil

    return pkgutil.resolve_name(path)


class Truth(fixtures.Fixture):
    """Whose devices are whose by the hypervisor, and what should not have been."""

    def __init__(self, host_of: Callable[[Any], str | None]) -> None:
        """*host_of*: the name of the host of a connection to libvirt, or of a sysfs."""
        super().__init__()
        self._host_of = host_of
        self._lock = threading.Lock()
        #: (host, address) -> the server that last had it, unless it was reset since.
        self.traces: dict[tuple[str, str], str] = {}
        #: (host, address) -> the running domain.
        self.running: dict[tuple[str, str], str] = {}
        #: Of each device.
        self.resets: dict[tuple[str, str], int] = {}
        self.violations: list[str] = []

    def _setUp(self) -> None:
        truth, connection = self, fakelibvirt.Connection
        start, stop = connection._mark_running, connection._mark_not_running

        def started(this: Any, domain: Any) -> None:
            truth.started(truth._host_of(this) or "", domain)
            start(this, domain)

        def stopped(this: Any, domain: Any) -> None:
            truth.stopped(truth._host_of(this) or "", domain)
            stop(this, domain)

        def reset(root: Path, address: str, *args: Any) -> None:
            place = truth._host_of(root) or "", address
            truth.before_reset(place)
            plain(root, address, *args)
            with truth._lock:
                truth.traces.pop(place, None)

        plain = hygiene_reset.reset_device
        for name, new in (("_mark_running", started), ("_mark_not_running", stopped)):
            path = f"nova.tests.fixtures.libvirt.Connection.{name}"
            self.useFixture(fixtures.MonkeyPatch(path, new))
        self.useFixture(fixtures.MonkeyPatch(f"{hygiene_reset.__name__}.reset_device", reset))

    def started(self, host: str, domain: Any) -> None:
        """A guest begins to use its devices."""
        server = domain.UUIDString()
        with self._lock:
            for address in devices_of(domain.XMLDesc(0)):
                place = host, address
                other = self.running.get(place, server)
                if other != server:
                    self.violations.append(f"{place} is in two domains: {other} and {server}")
                if self.traces.get(place, server) != server:
                    self.violations.append(f"{place} was given to {server} with another's traces")
                self.traces[place] = self.running[place] = server

    def stopped(self, host: str, domain: Any) -> None:
        """A guest has ended."""
        server = domain.UUIDString()
        with self._lock:
            for place in [each for each, who in self.running.items() if who == server]:
                if place[0] == host:
                    del self.running[place]

    def before_reset(self, place: tuple[str, str]) -> None:
        """The kernel is asked to reset a device."""
        with self._lock:
            self.resets[place] = self.resets.get(place, 0) + 1
            if place in self.running:
                self.violations.append(f"{place} is reset while {self.running[place]} has it")
