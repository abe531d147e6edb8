# SPDX-License-Identifier: Apache-2.0
"""The fault agent: names every durable step of the process, and dies at one of them.

A *step* is whatever outlives the process: a commit that wrote, a request that
changes Placement, a change of a domain, a state file, a reset, the files of an
instance. Between two steps nothing but memory changes, so a process that dies
right before each step in turn, and once after the last, has died in every
state that a kill can leave. The functions of :data:`TRACED` give the steps
their names, and those of :data:`ROOTS` say which threads count: the heartbeats
of services do not.

The environment switches it: ``NOVA_HPC_KILL_TRACE`` names a file to which each
step is appended, ``NOVA_HPC_KILL_AT`` the step to die at: how many of its name there
are up to it, and the name. ``NOVA_HPC_KILL_WITH`` names another fault that
happens there instead (:mod:`tests.functional.kills.faults`).
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

TRACE: Final = "NOVA_HPC_KILL_TRACE"
AT: Final = "NOVA_HPC_KILL_AT"
WITH: Final = "NOVA_HPC_KILL_WITH"

_MANAGER: Final = "nova.compute.manager:ComputeManager"
_TRACKER: Final = "nova.compute.resource_tracker:ResourceTracker"
_LIBVIRT: Final = "nova.virt.libvirt.driver:LibvirtDriver"
_DRIVER: Final = "virt_driver_patches.driver.hpc_libvirt:HpcLibvirtDriver"
_HYGIENE: Final = "nova_hpc.tenancy.hygiene.step:HygieneStep"
_STAGE: Final = "nova_hpc.tenancy.stage.step:StageStep"

#: Where the threads that are killed begin.
ROOTS: Final = (
    f"{_MANAGER}.build_and_run_instance",
    f"{_MANAGER}._do_build_and_run_instance",
    f"{_MANAGER}._build_succeeded",
    f"{_MANAGER}.terminate_instance",
    f"{_STAGE}.attend",
    f"{_STAGE}._safely",
)

#: Functions that name the steps below them.
TRACED: Final = (
    *ROOTS,
    f"{_MANAGER}._build_and_run_instance",
    f"{_MANAGER}._delete_instance",
    f"{_MANAGER}._shutdown_instance",
    f"{_MANAGER}._complete_deletion",
    f"{_TRACKER}.instance_claim",
    f"{_TRACKER}._update",
    f"{_TRACKER}.update_usage",
    "nova.pci.manager:PciDevTracker.claim_instance",
    "nova.pci.manager:PciDevTracker.allocate_instance",
    "nova.pci.manager:PciDevTracker.free_instance",
    "nova.pci.manager:PciDevTracker.save",
    "nova.scheduler.client.report:SchedulerReportClient.update_from_provider_tree",
    "nova.scheduler.client.report:SchedulerReportClient.delete_allocation_for_instance",
    "nova.objects.instance:Instance.save",
    "nova.objects.instance:Instance.destroy",
    f"{_DRIVER}.spawn",
    "virt_driver_patches.driver.admission:Admission.start",
    f"{_DRIVER}.destroy",
    "virt_driver_patches.driver.tenancy:TenancySteps.give",
    "virt_driver_patches.driver.tenancy:TenancySteps.take_back",
    f"{_HYGIENE}.give",
    f"{_HYGIENE}.take_back",
    f"{_STAGE}.before_start",
    f"{_STAGE}._settle",
    "nova_hpc.tenancy.hygiene.cleaning:clean_devices",
    "virt_driver_patches.driver.provider_reserver:ProviderReserver.complete",
    f"{_LIBVIRT}._create_guest_with_network",
    f"{_LIBVIRT}._destroy",
    f"{_LIBVIRT}.cleanup",
)

#: Functions that are steps themselves, and their names; ``{n}`` is argument n.
DURABLE: Final = {
    "nova.tests.fixtures.libvirt:Connection.defineXML": "libvirt: define the domain",
    "nova.tests.fixtures.libvirt:Domain.createWithFlags": "libvirt: start the domain",
    "nova.tests.fixtures.libvirt:Domain.destroy": "libvirt: destroy the domain",
    "nova.tests.fixtures.libvirt:Connection._undefine": "libvirt: undefine the domain",
    "nova_hpc.tenancy.ledger:_replace_file": "file {0}",
    # The write itself is another process's: it may outlive this one.
    "nova_hpc.tenancy.hygiene.reset:reset_device": "reset a device",
    "nova_hpc.tenancy.hygiene.reset:ends_in_time": "a device is being reset",
    f"{_LIBVIRT}.delete_instance_files": "files of the instance",
    "nova.scheduler.client.report:SchedulerReportClient.put": "Placement: PUT {1}",
    "nova.scheduler.client.report:SchedulerReportClient.post": "Placement: POST {1}",
    "nova.scheduler.client.report:SchedulerReportClient.delete": "Placement: DELETE {1}",
}

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WRITES: Final = re.compile(r"\s*(INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")


class Agent:
    """Counts the steps of one process while it is armed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local = threading.local()
        self._armed = False
        self._counts: Counter[str] = Counter()
        self._running = 0
        #: Lets a fault of this name happen.
        self.strike: Callable[[str], None] | None = None
        #: What libvirt fails with as long as it is away.
        self.away: Callable[[], Exception] | None = None
        #: Whether the step of the fault was reached.
        self.struck = False

    @property
    def busy(self) -> bool:
        """Whether any of :data:`ROOTS` runs, so that there is something to wait for."""
        return self._running > 0

    def arm(self) -> None:
        """Count from here on."""
        self._counts.clear()
        self._armed = True
        self.struck = False

    def disarm(self) -> None:
        """The user has the answer: what is not done now is no step of it."""
        self._armed = False

    def step(self, name: str, anywhere: bool = False) -> None:
        """Something durable is about to happen."""
        stack = self._stack()
        if not self._armed or not (stack or anywhere):
            return
        with self._lock:
            label = f"{' > '.join(_short(stack))}: {name}" if stack else name
            self._counts[label] += 1
            path = os.environ.get(TRACE)
            if path:
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.write(handle, f"{label}\n".encode())
                os.close(handle)
            if os.environ.get(AT) != f"{self._counts[label]} {label}":
                return
            fault = os.environ.get(WITH)
            if not fault or self.strike is None:
                os.kill(os.getpid(), signal.SIGKILL)
            # What comes after it is not counted: it may be anything.
            self._armed, self.struck = False, True
        if fault and self.strike is not None:
            self.strike(fault)

    def _stack(self) -> list[str]:
        try:
            stack: list[str] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        return stack

    @contextmanager
    def inside(self, name: str, root: bool) -> Iterator[None]:
        """Name the steps that happen in this function."""
        stack = self._stack()
        if not (stack or root):
            yield
            return
        stack.append(name)
        with self._lock:
            self._running += root
        try:
            yield
        finally:
            stack.pop()
            with self._lock:
                self._running -= root


AGENT: Final = Agent()


def _short(stack: list[str]) -> list[str]:
    """The outermost and the two innermost functions."""
    return [stack[0], *stack[1:][-2:]]


def install() -> None:
    """Wrap the functions, and listen to the database.

    :raises AttributeError: one of them is not there: its steps would be lost.
    """
    for target in TRACED:
        _wrap(target, _naming(re.split("[.:]", target)[-1], target in ROOTS))
    for target, name in DURABLE.items():
        _wrap(target, _stepping(name))
    _listen()


def _wrap(target: str, make: Callable[[Any], Any]) -> None:
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *parents, name = path.split(".")
    for each in parents:
        owner = getattr(owner, each)
    setattr(owner, name, make(getattr(owner, name)))


def _naming(name: str, root: bool) -> Callable[[Any], Any]:
    def make(plain: Any) -> Any:
        @functools.wraps(plain)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with AGENT.inside(name, root):
                return plain(*args, **kwargs)

        return wrapper

    return make


def _stepping(name: str) -> Callable[[Any], Any]:
    def make(plain: Any) -> Any:
        @functools.wraps(plain)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            words = [getattr(each, "name", str(each)) for each in args]
            # Resets run in threads of their own, side by side.
            AGENT.step(_UUID.sub("*", name.format(*words)), anywhere="reset" in name)
            if AGENT.away is not None and name.startswith("libvirt"):
                raise AGENT.away()
            return plain(*args, **kwargs)

        return wrapper

    return make


def _listen() -> None:
    """A commit after a statement that wrote is a step; Placement's are its own."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def executed(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        match = _WRITES.match(statement)
        if match:
            tables = connection.info.setdefault("nova_hpc_tables", [])
            tables.append(f"{match[1].split()[0].lower()} {match[2]}")

    def commit(connection: Any) -> None:
        tables = connection.info.pop("nova_hpc_tables", [])
        if tables and "placement" not in str(connection.engine.url):
            AGENT.step(f"database: {', '.join(dict.fromkeys(tables))}")

    def rollback(connection: Any) -> None:
        connection.info.pop("nova_hpc_tables", None)

    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", commit)
    event.listen(Engine, "rollback", rollback)
