# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.selection.same``: the options that make a scheduler fast change no answer.

One scheduler on real Placement gets each random request twice: once with these options off, as in
Nova (``OFF``), and once with their defaults. Both answers must have the same hosts and the same
devices, or refuse with the same words. Half of the servers stay, and hosts report changes in
between. The requests have the usual wishes of users: server groups, hosts that they
name or leave out, several servers at once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.concurrency import nova_process
from benchmarks.concurrency.model import Variant
from benchmarks.selection import side

#: Values that switch the compared options off; the other side has their defaults.
OFF: Final[Mapping[tuple[str, str], object]] = {
    ("hpc", "placement_question"): "devices",
    ("hpc", "kept_hosts"): 0,
}
#: Devices of one host of this cloud.
_GPUS: Final = 8
_FUNCTIONS: Final = 32
#: Servers that stay for each host of the cloud, at most.
_FULL: Final = 1.2


@attrs.frozen
class Wish:
    """One random request."""

    gpus: int
    functions: int
    servers: int
    specs: Mapping[str, str]
    #: Policy of its server group; None without a group.
    policy: str | None = None
    ignored: tuple[str, ...] = ()
    forced: str | None = None

    def __str__(self) -> str:
        more = [f"{name}={value}" for name, value in self.specs.items()]
        more += [f"{self.servers} servers"] if self.servers > 1 else []
        more += [word for word in (self.policy, self.forced) if word]
        return ", ".join([*more, f"without {len(self.ignored)} hosts"])


@attrs.frozen
class Answer:
    """The answer of a scheduler."""

    #: For each server: the host, and the provider of each of its devices.
    places: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refusal: str = ""


def random_wish(rng: random.Random, hosts: Sequence[str]) -> Wish:
    """A random request of a user."""
    gpus, functions = rng.choice((1, 1, 1, 2, 2, 4, 4, 6, 8, 9)), rng.choice((0, 0, 1, 2, 4))
    alias = f"gpu:{gpus}" + (f",vf:{functions}" if functions else "")
    specs = {"pci_passthrough:alias": alias}
    specs["hpc:affinity"] = rng.choice(("switch", "root", "numa", "socket", "host"))
    if rng.random() < 0.5:
        specs["hpc:affinity_policy"] = "preferred"
    if functions == gpus and rng.random() < 0.5:
        specs["hpc:group"] = "gpu:1,vf:1"
    if rng.random() < 0.15:
        specs["group_policy"] = "isolate"
    policies = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")
    return Wish(
        gpus,
        functions,
        rng.choice((1, 1, 1, 1, 2, 3, 5)),
        specs,
        rng.choice(policies) if rng.random() < 0.3 else None,
        tuple(rng.sample(hosts, rng.randrange(len(hosts)))) if rng.random() < 0.2 else (),
        rng.choice(hosts) if rng.random() < 0.05 else None,
    )


class Cloud:
    """A scheduler, and the servers that it has placed."""

    def __init__(self, context: Any, seed: int) -> None:
        from nova import objects

        self._context = context
        self._rng = random.Random(seed)
        self._side = side.Side(context, ours=True)
        self._scheduler = self._side.scheduler
        self.hosts = sorted(each.host for each in objects.HostMappingList.get_all(context))
        self._computes = {
            each.host: each for each in objects.ComputeNodeList.get_all(self._cell_context())
        }
        self._servers: collections.deque[str] = collections.deque()

    def _cell_context(self) -> Any:
        # The stage has one cell, whose database is that of the configuration.
        return self._context

    def compare(self) -> tuple[Wish, Answer, Answer, Answer | None]:
        """One random request, answered with all options off, and with the defaults.

        :returns: the request and both answers. If these differ and Placement may have left out
            the first server's host, also the answer with all options off for only that host.
        """
        wish = random_wish(self._rng, self.hosts)
        servers = [str(uuid.UUID(int=self._rng.getrandbits(128))) for _ in range(wish.servers)]
        spec = self._request(wish, servers)
        with _overridden(OFF):
            off = self._ask(spec.obj_clone(), servers)
        self._delete(servers)
        on = self._ask(spec.obj_clone(), servers)
        alone = None
        differ = _comparable(wish, off) != _comparable(wish, on)
        if differ and _may_be_cut_short(wish, off, on):
            self._delete(servers)
            first = on if on.places else self._ask_for_first(spec.obj_clone(), servers)
            if first.places:
                self._delete(servers)
                alone = self._ask_of_host(spec.obj_clone(), servers[0], first.places[0][0])
                if alone.places != first.places[:1]:
                    alone = None
            self._delete(servers)
        if on.places and alone is None and self._rng.random() < 0.5:
            self._servers += servers
        else:
            self._delete(servers)
        while len(self._servers) > _FULL * len(self.hosts):
            self._delete([self._servers.popleft()])
        if self._rng.random() < 0.2:
            self._report_change(self._rng.choice(self.hosts))
        return wish, off, on, alone

    def _request(self, wish: Wish, servers: Sequence[str]) -> Any:
        from nova import objects

        self._scheduler.variant = _Variant(wish)
        spec = self._scheduler.request(servers[0])
        spec.num_instances = len(servers)
        spec.ignore_hosts = list(wish.ignored) or None
        spec.force_hosts = [wish.forced] if wish.forced else None
        if wish.policy:
            among = self._rng.sample(self.hosts, self._rng.randrange(3))
            spec.instance_group = objects.InstanceGroup(
                self._context,
                uuid=str(uuid.UUID(int=self._rng.getrandbits(128))),
                policy=wish.policy,
                # The field as in the database: Nova's filter of affinity reads it.
                policies=[wish.policy],
                hosts=among,
                members=list(servers),
            )
            spec.instance_group.obj_reset_changes()
        return spec

    def _ask(self, spec: Any, servers: Sequence[str]) -> Answer:
        from nova import exception
        from oslo_messaging.rpc import ExpectedException

        self._scheduler._claims.count = 0
        try:
            listed = self._scheduler.manager.select_destinations(
                self._context,
                spec_obj=spec,
                instance_uuids=list(servers),
                return_objects=True,
                return_alternates=True,
            )
        except ExpectedException as error:
            refusal = error.exc_info[1]
        except exception.NoValidHost as error:
            refusal = error
        else:
            return Answer(tuple(_read_place(selections[0]) for selections in listed))
        # Any other exception is not an answer, and equal ones would prove nothing.
        if not isinstance(refusal, exception.NoValidHost):
            raise refusal
        return Answer(refusal=str(refusal))

    def _ask_for_first(self, spec: Any, servers: Sequence[str]) -> Answer:
        """The answer for only the first of several servers, if the others find no place."""
        spec.num_instances = 1
        return self._ask(spec, servers[:1])

    def _ask_of_host(self, spec: Any, server: str, host: str) -> Answer:
        """The answer for one server with all options off, if only *host* may have it.

        The request to Placement is for only that host's tree, so no other host can displace it.
        """
        from nova import objects

        spec.num_instances = 1
        spec.requested_destination = objects.Destination(host=host)
        with _overridden(OFF):
            return self._ask(spec, [server])

    def _report_change(self, host: str) -> None:
        """Change the record of a host, as nova-compute does after a server came or went."""
        compute = self._computes[host]
        compute.free_ram_mb = self._rng.randrange(1024, compute.memory_mb)
        compute.stats = dict(compute.stats or {}, num_instances=str(self._rng.randrange(9)))
        compute.save()

    def _delete(self, servers: Sequence[str]) -> None:
        tracked = self._scheduler.manager.host_manager._instance_info
        for server in servers:
            self._scheduler.client.delete_allocation_for_instance(self._context, server, force=True)
            # Restore the servers of nova-compute's reports. With a group, Nova records a chosen
            # host's server at once, and the next answer would avoid or prefer those hosts.
            for known in tracked.values():
                known["instances"].pop(server, None)


@attrs.frozen
class _Variant:
    """A wish in the form for the scheduler of the races."""

    wish: Wish

    @property
    def title(self) -> str:
        return str(self.wish)

    def specs(self, gpus: int) -> dict[str, str]:
        return dict(self.wish.specs)


def _read_place(selection: Any) -> tuple[str, tuple[str, ...]]:
    mappings = json.loads(selection.allocation_request)["mappings"]
    devices = [provider for group, (provider, *_) in sorted(mappings.items()) if group]
    return selection.service_host, tuple(devices)


@contextlib.contextmanager
def _overridden(options: Mapping[tuple[str, str], object]) -> Iterator[None]:
    from nova.conf import CONF

    for (group, name), value in options.items():
        CONF.set_override(name, value, group=group)
    try:
        yield
    finally:
        for group, name in options:
            CONF.clear_override(name, group=group)


def _serve(nova_conf: str, log: str, hosts: int, requests: int, seed: int, pipe: Any) -> None:
    """Main function of the process: sends each comparison, and None at the end."""
    try:
        from benchmarks.concurrency import scheduler

        wanted: dict[tuple[str, str], object] = {
            **scheduler.options(Variant("", True)),
            ("pci", "alias"): list(side.ALIASES),
            ("pci", "device_spec"): [],
            ("filter_scheduler", "track_instance_changes"): True,
            **side.limits(hosts),
        }
        cloud = Cloud(nova_process.begin(nova_conf, log, wanted), seed)
        for _ in range(requests):
            pipe.send(cloud.compare())
        pipe.send(None)
    except Exception:
        pipe.send(traceback.format_exc())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is the number of differences, 100 at most."""
    from benchmarks.selection.__main__ import cloud

    parser = argparse.ArgumentParser(prog="python -m benchmarks.selection.same")
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    # SIGTERM becomes an exit, so that the started processes end with the command.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ |= nova_process.ENVIRONMENT
    counts: collections.Counter[str] = collections.Counter()
    with cloud(options.hosts) as made:
        spawn = multiprocessing.get_context("spawn")
        here, there = spawn.Pipe()
        arguments = (str(made.nova_conf), str(made.logs / "same.log"), options.hosts)
        process = spawn.Process(
            target=_serve, args=(*arguments, options.requests, options.seed, there), daemon=True
        )
        process.start()
        there.close()
        while (told := here.recv()) is not None:
            if isinstance(told, str):
                raise RuntimeError(told)
            _count(counts, *told)
        process.join(10)
    counts["different"] += 0
    print(", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    return min(counts["different"], 100)


def _comparable(wish: Wish, answer: Answer) -> Answer:
    """The parts of an answer that must be equal.

    On a forced host no filter chooses, so any devices are right. An answer by devices is nearly
    always cut off, and its reason mentions that; an answer by hosts is complete.
    """
    return Answer(
        tuple((host, () if wish.forced else devices) for host, devices in answer.places),
        answer.refusal.replace("None of the hosts looked at", "No host"),
    )


def _may_be_cut_short(wish: Wish, off: Answer, on: Answer) -> bool:
    """Whether Placement may have left out a host in its answer with all options off.

    It takes as many candidates as it may return, and drops candidates that put two groups of
    ``group_policy=isolate`` on one provider. So a host is missing if all of its taken candidates
    were such ones. An answer by hosts has all of them.
    """
    # This does not explain a refusal by the defaults if all options off have found a place.
    fewer = bool(off.places) and not on.places
    return wish.specs.get("group_policy") == "isolate" and not fewer


def _count(
    counts: collections.Counter[str], wish: Wish, off: Answer, on: Answer, alone: Answer | None
) -> None:
    counts["requests"] += 1
    counts["placed" if off.places else "refused"] += 1
    counts["with a server group"] += bool(wish.policy)
    counts["of several servers"] += wish.servers > 1
    if alone is not None:
        counts["on a host that Placement had left out"] += 1
    elif _comparable(wish, off) != _comparable(wish, on):
        counts["different"] += 1
        print(f"{wish}\n  off: {off}\n  on:  {on}", file=sys.stderr, flush=True)
    if counts["requests"] % 100 == 0:
        print(dict(counts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
