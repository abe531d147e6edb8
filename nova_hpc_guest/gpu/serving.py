# SPDX-License-Identifier: Apache-2.0
"""``gpu serve``: on the GPU server, a unit for each slot in its metadata, and none for others."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ..files import Root
from . import mps, port_rule, records, tunnel, units
from .engines import Engine, fill_environment, find_release, load_engine
from .packet_filter import PacketFilter
from .records import GpuShare, GpuSlot, RecordError
from .system import ProgramError, Programs
from .units import SlotUnit

#: MIG slices, one a line; each slot gets one. Without the file all slots use the whole GPU.
SLICES: Final = "/etc/nova-hpc/gpu-slices"
#: The user of engines has no home, and PoCL has no device without a folder for its cache: it uses
#: the unit's own temporary folder.
_ENVIRONMENT: Final = {"HOME": "/tmp"}  # nosec B108
_SLICE: Final = re.compile(r"MIG-[A-Za-z0-9/-]{1,80}", re.ASCII)


class ServedSlot(NamedTuple):
    """A slot that the share serves: its client, its record, and its memory in MiB."""

    client: str
    slot: GpuSlot
    #: MiB; 0 for no limit.
    memory: int

    @property
    def peer(self) -> str:
        """The address from which its client comes."""
        return port_rule.inside_address_of(self.slot.port) if self.slot.key else self.slot.address


class SlotPlan(NamedTuple):
    """The slots of a share that are served, and those that are refused, with reasons."""

    served: tuple[ServedSlot, ...] = ()
    #: Why a slot is not served, one sentence each.
    refused: tuple[str, ...] = ()
    #: Clients whose slots stay as they are: their records cannot be read.
    unknown: frozenset[str] = frozenset()


def plan_slots(
    share: GpuShare,
    items: Mapping[str, str],
    memory: int = 0,
    held: Mapping[str, int] | None = None,
) -> SlotPlan:
    """Decide which slots are served, the oldest first.

    A slot is refused if its port or key is another slot's, or if slots or memory run out.

    :param items: the GPU server's metadata.
    :param memory: MiB of the GPU; 0 if unknown.
    :param held: client -> MiB of each present unit. It counts if the client's record cannot be
        read, or if the slot was taken away and could not be ended.
    """
    found: list[tuple[int, str, GpuSlot]] = []
    refused: list[str] = []
    unknown = set()
    for key, text in items.items():
        client = records.client_of_key(key)
        if client is None:
            continue
        try:
            slot = records.read_slot(text)
        except RecordError as error:
            refused.append(f"slot of server {client}: {error}")
            unknown.add(client)
            continue
        found.append((slot.since, client, slot))
    served: list[ServedSlot] = []
    ports: dict[int, str] = {}
    keys: dict[str, str] = {}
    readable = {client for _, client, _ in found}
    kept = [limit for client, limit in (held or {}).items() if client not in readable]
    given = sum(kept)
    for _, client, slot in sorted(found):
        limit = slot.memory or share.memory
        if slot.port != port_rule.port_of_address(slot.address):
            why = f"port {slot.port} is not the one of address {slot.address}"
        elif slot.port in ports:
            why = f"port {slot.port} is already that of server {ports[slot.port]}"
        elif share.encrypted and not slot.key:
            why = "the share is encrypted, and the slot has no key"
        elif slot.key and slot.key in keys:
            why = f"its key is already that of server {keys[slot.key]}"
        elif len(served) + len(kept) >= share.slots:
            why = f"the share has {share.slots} slots, and all are taken"
        elif memory and limit and given + limit > memory:
            why = f"{limit} MiB are more than what is left of the GPU's {memory}"
        else:
            served.append(ServedSlot(client, slot, limit))
            ports[slot.port] = client
            given += limit
            if slot.key:
                keys[slot.key] = client
            continue
        refused.append(f"slot of server {client}: {why}")
    return SlotPlan(tuple(served), tuple(refused), frozenset(unknown))


def read_slices(root: Root) -> tuple[list[str], list[str]]:
    """Read the MIG slices of this GPU server, as its operator lists them, and the list's faults."""
    lines = (root.read_own(SLICES) or b"").decode("ascii", "replace").splitlines()
    listed = [line.strip() for line in lines if _SLICE.fullmatch(line.strip())]
    twice = ", ".join(sorted({mig for mig in listed if listed.count(mig) > 1}))
    problems = [f"{SLICES} lists {twice} more than once: remove the other lines"] if twice else []
    return list(dict.fromkeys(listed)), problems


def choose_slices(
    slices: Sequence[str], clients: Sequence[str], held: Mapping[str, str]
) -> dict[str, str]:
    """Choose a MIG slice for each client, the one that it has before all others.

    :param held: client -> the slice in its unit. The slice of a client that is not in *clients*
        is not free.
    :returns: client -> slice; clients without a free one are left out.
    """
    used = {mig for client, mig in held.items() if client not in clients}
    chosen: dict[str, str] = {}
    for client in clients:
        mig = held.get(client, "")
        if mig in slices and mig not in used:
            chosen[client] = mig
            used.add(mig)
    free = [mig for mig in slices if mig not in used]
    for client in clients:
        if client not in chosen and free:
            chosen[client] = free.pop(0)
    return chosen


def build_unit(
    served: ServedSlot, engine: Engine, release: str, bind: str, program: Sequence[str], mig: str
) -> SlotUnit:
    """Build the systemd unit of a slot.

    :param bind: the share's address towards this client.
    :param program: how this command is called.
    :param mig: its MIG slice; empty: none.
    """
    port = served.slot.port
    fields: dict[str, object] = {"bind": bind, "port": port}
    environment = {**_ENVIRONMENT, **fill_environment(engine.server_environment, **fields)}
    is_limited = bool(served.memory) and not mig
    needs_mps = is_limited and mps.needs_mps(engine)
    if is_limited:
        environment.update(fill_environment(engine.memory_environment, mib=served.memory))
    if needs_mps:
        environment.update(mps.ENVIRONMENT)
    if mig:
        environment["CUDA_VISIBLE_DEVICES"] = mig
    command = (
        *(*program, "gpu", "slot", "--client", served.client, "--peer", served.peer),
        *("--bind", bind, "--port", str(port), "--ports", str(engine.ports)),
        *("--engine", engine.name, "--release", release, "--"),
        *(word.format(**fields) for word in engine.server),
    )
    return SlotUnit(
        *(served.client, served.peer, engine.user, command, environment, engine.devices),
        *((mps.UNIT, (mps.PIPES,)) if needs_mps else ()),
    )


def find_own_address(peer: str) -> str:
    """Return this machine's address on the way to another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((peer, 9))
        return str(way.getsockname()[0])


def serve_once(
    root: Root,
    programs: Programs,
    items: Mapping[str, str],
    memory: int,
    private_key: str,
    closed: PacketFilter,
) -> list[str]:
    """Adjust the units to the metadata; returns lines on slots that are not served, with reasons.

    :param items: this server's metadata.
    :param memory: MiB of the GPU; 0 if unknown.
    :param private_key: path of the tunnel's key; empty if it can have none.
    :param closed: tests whether units have a filter; without one no slot is served.
    """
    there = set(_read_units(root))
    slots = {client for client in map(records.client_of_key, items) if client is not None}
    if records.SHARE_KEY not in items:
        _end_slots(root, programs, there)
        if records.CLIENT_KEY not in items:
            tunnel.take_down(programs)
        return []
    _end_slots(root, programs, there - slots)
    try:
        share = records.read_share(items[records.SHARE_KEY])
        engine = load_engine(root, share.engine)
        release = find_release(root, engine)
    except ValueError as error:
        # The description of the share is unknown: start nothing new.
        return [str(error)]
    texts = _read_units(root)
    held = {client: units.memory_in_unit(text, engine) for client, text in texts.items()}
    there = set(held)
    plan = plan_slots(share, items, memory, held)
    problems = list(plan.refused)
    open_ports = closed.explain_open_ports(root, programs) if plan.served or there else None
    if open_ports is not None:
        _end_slots(root, programs, there)
        return [*problems, f"no slot is served: {open_ports}"]
    wanted, cut_off, more = _build_wanted(root, plan, engine, release, programs.own)
    problems += more
    if any(mps.UNIT in text for text in wanted.values()):
        problems += _start_mps(root, programs, engine)
    peers = [
        (served.slot.key, served.peer, served.slot.address)
        for served in plan.served
        if served.slot.key and served.client in wanted
    ]
    if share.encrypted or peers:
        problems += tunnel.set_up(
            programs, private_key, port_rule.SHARE_INSIDE, port_rule.TUNNEL_PORT, peers
        )
    _end_slots(root, programs, there - wanted.keys() - cut_off - plan.unknown)
    for client, text in sorted(wanted.items()):
        try:
            changed = root.write(f"{units.FOLDER}/{units.unit_name_of(client)}", text.encode())
            if changed:
                programs.run("systemctl", "daemon-reload")
            programs.run("systemctl", "restart" if changed else "start", units.unit_name_of(client))
        except ProgramError as error:
            problems.append(f"slot of server {client}: {error}")
    return problems


def _read_units(root: Root) -> dict[str, str]:
    """Return client -> text of each slot's systemd unit on this machine."""
    clients = filter(None, map(units.client_of_unit, root.names(units.FOLDER)))
    return {
        client: root.text(f"{units.FOLDER}/{units.unit_name_of(client)}") or ""
        for client in clients
    }


def _build_wanted(
    root: Root, plan: SlotPlan, engine: Engine, release: str, program: Sequence[str]
) -> tuple[dict[str, str], set[str], list[str]]:
    """Build the units of all served slots.

    :returns: client -> text of its unit, clients that cannot be reached now, and problems.
    """
    clients = [served.client for served in plan.served]
    slices, problems = read_slices(root)
    held = {client: units.slice_in_unit(text) for client, text in _read_units(root).items()}
    chosen = choose_slices(slices, clients, held)
    wanted, cut_off = {}, set()
    for served in plan.served:
        if slices and served.client not in chosen:
            problems.append(f"slot of server {served.client}: {SLICES} has no slice left for it")
            continue
        try:
            bind = port_rule.SHARE_INSIDE if served.slot.key else find_own_address(served.peer)
        except OSError as error:
            # Its jobs may outlast a network that is away for seconds.
            cut_off.add(served.client)
            problems.append(f"slot of server {served.client}: no way to {served.peer}: {error}")
            continue
        mig = chosen.get(served.client, "")
        lack = mps.explain_no_limit(root, engine) if served.memory and not mig else None
        if lack is not None:
            problems.append(f"slot of server {served.client}: {lack}")
            continue
        if served.memory and mig:
            problems.append(
                f"slot of server {served.client}: its MIG slice limits its memory, and not the "
                f"{served.memory} MiB that it asks for"
            )
        unit = build_unit(served, engine, release, bind, program, mig)
        wanted[served.client] = units.format_unit(unit)
    return wanted, cut_off, problems


def _start_mps(root: Root, programs: Programs, engine: Engine) -> list[str]:
    """Start MPS if it does not run; a slot that needs it does not start without."""
    try:
        if root.write(f"{units.FOLDER}/{mps.UNIT}", mps.format_mps_unit(engine).encode()):
            programs.run("systemctl", "daemon-reload")
        programs.run("systemctl", "start", mps.UNIT)
    except ProgramError as error:
        return [f"NVIDIA's MPS does not run, so slots with a limit of memory do not: {error}"]
    return []


def _end_slots(root: Root, programs: Programs, clients: Sequence[str] | set[str]) -> None:
    """End slots; the file of one that cannot be ended stays, so that the next round tries again."""
    for client in sorted(clients):
        name = units.unit_name_of(client)
        try:
            programs.run("systemctl", "stop", name)
        except ProgramError:
            continue
        root.remove(f"{units.FOLDER}/{name}")
    if clients:
        programs.try_run("systemctl", "daemon-reload")
