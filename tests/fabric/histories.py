# SPDX-License-Identifier: Apache-2.0
"""Random histories: projects compete for few physical ports while everything beside them fails.

``python -m tests.fabric.histories --count 500 --seed 1 --result FILE`` starts a control plane of
its own. A history is a few requests at once over two API processes, with up to two faults in
between: a hung adapter, a node that writes its own table, an adapter that boots with 0xffff, a
subnet manager that stands by on a host, an edited file, a killed process. Then everything has to
come to rest. :mod:`tests.fabric.history_watch` looks at every physical port all the time.
"""

import argparse
import contextlib
import json
import random
import re
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import requests

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.fabric import subnet_manager
from nova_hpc_lab.progress import PlainDisplay
from tests.fabric import intruder
from tests.fabric.bare_fabric import wait_until
from tests.fabric.history_watch import HistoryWatch, Records, list_bound, list_hosted
from tests.fabric.matrix import (
    FULL_DEFAULT,
    LIMITED_DEFAULT,
    LIMITED_TAG,
    FabricView,
    file_members,
    guid_text,
)
from tests.fabric.own_network import own_network
from tests.fabric.plane import running
from tests.fabric.tenants import PHYSICAL, Tenants

#: Network -> its project, its P_Key, and whether other projects may use it.
NETWORKS = {
    "red-1": ("red", 0x384, False),
    "red-2": ("red", 0x385, False),
    "blue-1": ("blue", 0x386, False),
    "shared": ("red", 0x387, True),
}
#: Ports that compete: project and network.
PORTS = (
    ("red", "red-1"),
    ("red", "red-1"),
    ("red", "red-2"),
    ("blue", "blue-1"),
    ("blue", "blue-1"),
    ("red", "shared"),
    ("blue", "shared"),
)
#: Physical ports, by their numbers: those for which they compete, those of members that no event
#: concerns, and the one on which a subnet manager stands by.
PLACES = (3, 14, 25, 36)
BYSTANDERS = (1, 10, 19, 28, 37, 46)
STANDBY = 60
WISHES = (
    *("bind",) * 6,
    *("unbind",) * 3,
    *("delete",) * 2,
    *("off", "on") * 3,
    *("tag", "untag", "network-tag", "network-untag", "network-off", "network-on"),
)
#: Faults, and in how many histories of a hundred each of them begins.
FAULTS = {
    "hang": 12,
    "own-table": 12,
    "boot": 8,
    "standby": 5,
    "edit": 6,
    "edit-and-signal": 3,
    "kill opensm": 8,
    "kill fabric-agent": 8,
    "kill neutron-2": 3,
    "kill neutron-rpc-server": 3,
}
#: Seconds to come to rest.
REST = 90.0
#: Seconds that opensm has for a sweep after a signal.
_SWEEP = 15.0
_INTRUDER = str(Path(intruder.__file__))


@attrs.frozen
class Record:
    """One history.

    :ivar wishes: port or network, wish, place, API process, and the answer.
    :ivar faults: those that happened in it.
    :ivar broken: what was not as it has to be after :data:`REST` seconds.
    """

    number: int
    wishes: tuple
    faults: tuple
    seconds: float
    broken: tuple = ()


class Faults:
    """What happens to adapters, nodes, files and processes, and how it ends."""

    def __init__(self, plane, view, places, standby, records, rand):
        self.plane = plane
        self.view = view
        self.places = places
        self.standby_place = standby
        self.records = records
        self.random = rand
        self.standby = None
        self.stuck_managers = 0

    def begin(self, name):
        """Let one fault happen."""
        place = self.random.choice(self.places)
        if name.startswith("kill "):
            self._kill(name.removeprefix("kill "))
        else:
            getattr(self, f"_{name.replace('-', '_')}")(place)

    def heal_some(self):
        """End a part of what is going on; the rest goes on into the next histories."""
        for place in self.places:
            guid = guid_text(place.guid)
            if self.random.random() < 0.5:
                continue
            if guid in self.records.silent:
                self.plane.tell_simulator(f'Error "{place.name}" 0')
                self._forget(self.records.silent, guid)
            elif guid in self.records.sick:
                self._bounce(place)
        if self.standby is not None and self.random.random() < 0.5:
            self._end_standby()

    def heal_all(self):
        for place in self.places:
            guid = guid_text(place.guid)
            self.plane.tell_simulator(f'Error "{place.name}" 0')
            self._forget(self.records.silent, guid)
            if guid in self.records.sick:
                self._bounce(place)
        self._end_standby()

    def _forget(self, where, guid):
        with self.records.guard:
            where.pop(guid, None)

    def _hang(self, place):
        with self.records.guard:
            self.records.silent[guid_text(place.guid)] = time.monotonic()
        self.plane.tell_simulator(f'Error "{place.name}" 100')

    def _own_table(self, place, entry=None):
        guid = guid_text(place.guid)
        if guid in self.records.silent:
            return
        with self.records.guard:
            self.records.sick[guid] = time.monotonic()
        keys = [key | bit for _, key, _ in NETWORKS.values() for bit in (0, 0x8000)]
        entry = entry or self.random.choice([FULL_DEFAULT, 0, *keys])
        self.plane.ask(place.name, sys.executable, _INTRUDER, "own-table", hex(entry))

    def _boot(self, place):
        """An adapter boots with 0xffff: its link goes, and comes back."""
        if guid_text(place.guid) not in self.records.silent:
            self._own_table(place, FULL_DEFAULT)
            self._bounce(place)

    def _bounce(self, place):
        """The link goes and comes: the subnet manager writes the port's table anew."""
        guid, begun = guid_text(place.guid), time.monotonic()
        with self.records.guard:
            self.records.silent[guid] = self.records.sick[guid] = begun
            self.records.bounced.add(guid)
        self.plane.tell_simulator(f'Unlink "{place.name}"')
        time.sleep(0.3)
        self.plane.tell_simulator(f'ReLink "{place.name}"')
        self._forget(self.records.silent, guid)
        threading.Thread(target=self._wait_for_table, args=(guid, begun), daemon=True).start()

    def _wait_for_table(self, guid, begun):
        end = time.monotonic() + REST
        time.sleep(3.0)
        while not self.view.is_active(guid) and time.monotonic() < end:
            time.sleep(0.5)
        with self.records.guard:
            # Its node may have written the table again meanwhile.
            if self.records.sick.get(guid) == begun:
                del self.records.sick[guid]

    def _standby(self, _):
        """A manager that stands by on a host."""
        if self.standby is not None:
            return
        paths = self.plane.paths
        subnet_manager.prepare_manager(paths, "standby")
        self.standby = subnet_manager.opensm_service(paths, "standby", self.standby_place.name)
        with self.records.guard:
            self.records.managers.add(guid_text(self.standby_place.guid))
        self.standby.process.spawn(self.standby.argv, self.standby.environ)

    def _end_standby(self):
        if self.standby is None:
            return
        self.standby.process.stop(10.0)
        self.standby = None
        self.plane.free_places()

    def _edit(self, place, seconds=4.0):
        """An administrator edits the file by hand."""
        with self.records.guard:
            self.records.edited_until = time.monotonic() + seconds
        file = self.plane.files.partitions
        text = file.read_text()
        edits = (
            lambda: "",
            lambda: text[: len(text) // 2],
            lambda: text + f"extra=0x0386 : {guid_text(place.guid)}=full ;\n",
            lambda: text.replace("=full", "=limited", 1),
        )
        file.write_text(self.random.choice(edits)())

    def _edit_and_signal(self, place):
        self._edit(place, 8.0)
        self.plane.hang_up()

    def _kill(self, name):
        if name == "opensm" and self.standby is not None:
            # No agent keeps the other manager's file, so that all keys go until opensm is back.
            self.records.usurped = True
        if self.plane.pid(name) is None:
            return
        with self.records.guard:
            # Later than its end, whatever that takes.
            self.records.quiet_since = time.monotonic() + 120.0
        self.plane.kill(name)
        self.plane.free_places()
        self._start(name)
        with self.records.guard:
            self.records.quiet_since = time.monotonic() + 5.0

    def restart_stuck_manager(self):
        """Kill and start opensm if it makes no sweep any more.

        It waits without end for an answer that ibsim has lost; see :mod:`tests.fabric.own_network`.
        """
        log = self.plane.files.log
        begun = log.stat().st_size
        self.plane.hang_up()
        with contextlib.suppress(AssertionError):
            wait_until(
                lambda: "SUBNET UP" in log.read_text(errors="replace")[begun:], "a sweep", _SWEEP
            )
            return False
        self._kill("opensm")
        self.stuck_managers += 1
        return True

    def _start(self, name):
        """Start a killed process; its port may be in use for a while."""
        end = time.monotonic() + REST
        while True:
            try:
                return self.plane.start(name)
            except LabError:
                if time.monotonic() > end:
                    raise
                time.sleep(1.0)


class Histories:
    """The ports and networks of all histories on one plane."""

    def __init__(self, plane, view, seed):
        self.plane = plane
        self.view = view
        self.tenants = Tenants(plane)
        self.random = random.Random(seed)
        self.records = Records()
        self.networks = {
            name: self.tenants.network(project, key, shared=shared)
            for name, (project, key, shared) in NETWORKS.items()
        }
        every = plane.net.ports
        self.places = [every[number] for number in PLACES]
        standby = every[STANDBY]
        self.faults = Faults(plane, view, self.places, standby, self.records, self.random)
        self.all_places = (*self.places, standby)
        # The trial itself unlinks this one, so that the simulator forgets killed clients. opensm
        # may miss that it is back: once in 500 histories it had no route for 93 s.
        self.seat = guid_text(self.plane.net.spare_ports()[0].guid)
        self.ports = [self._new_port(number) for number in range(len(PORTS))]
        self.bystanders = self._make_bystanders([every[number] for number in BYSTANDERS])
        self.watch = HistoryWatch(plane, self.records, self.bystanders, LIMITED_TAG)

    def _new_port(self, number):
        project, network = PORTS[number]
        return self.tenants.port(project, self.networks[network])

    def _make_bystanders(self, places):
        """Members of two projects on adapters of their own, which stay ACTIVE whatever happens."""
        found = set()
        for number, place in enumerate(places):
            project, network = (("red", "red-1"), ("blue", "blue-1"))[number % 2]
            port = self.tenants.port(project, self.networks[network])
            _, key, _ = NETWORKS[network]
            self.records.ask_bind(port, guid_text(place.guid), self.networks[network], key)
            assert self.tenants.bind(port, place) == 200
            self.tenants.wait_for(port)
            self.records.take_bind_answer(port, guid_text(place.guid), 200)
            found.add(port)
        return found

    # -- requests ------------------------------------------------------------------------

    def _perform(self, wish):
        number, what, place, api = wish
        try:
            return self._ask(number, what, place, api)
        except requests.RequestException as error:
            return type(error).__name__

    def _ask(self, number, what, place, api):
        port = self.ports[number]
        project, network = PORTS[number]
        if what == "bind":
            return self._bind(port, network, self.all_places[place], number % 4, api)
        if what == "unbind":
            self.records.ask_release(port)
            return self.tenants.unbind(port, api=api)
        if what == "delete":
            self.records.ask_release(port)
            answer = self.tenants.delete(port, api=api)
            if self.tenants.show(port) is None:
                self.ports[number] = self._new_port(number)
            return answer
        caller, path, kind = self.plane.callers[project], f"/ports/{port}", "port"
        if "network" in what:
            # The networks of bystanders stay as they are.
            path, kind = f"/networks/{self.networks['shared']}", "network"
            caller = self.plane.callers[NETWORKS["shared"][0]]
        if "tag" in what:
            method = "DELETE" if "untag" in what else "PUT"
            return caller.call(method, f"{path}/tags/{LIMITED_TAG}", api=api)[0]
        body = {kind: {"admin_state_up": what.endswith("on")}}
        return caller.call("PUT", path, body, api=api)[0]

    def _bind(self, port, network, place, function, api):
        guid, key = guid_text(place.guid), NETWORKS[network][1]
        shown = self.tenants.show(port)
        if shown is None or shown["binding:host_id"]:
            return "bound already"
        self.records.ask_bind(port, guid, self.networks[network], key)
        body = {
            "binding:host_id": place.host,
            "binding:profile": {
                "pci_slot": place.functions[function],
                "pci_vendor_info": "15b3:101e",
                "physical_network": PHYSICAL,
            },
            "device_id": str(uuid.uuid4()),
            "device_owner": "compute:nova",
        }
        answer = None
        try:
            status, document = self.plane.admin.call(
                "PUT", f"/ports/{port}", {"port": body}, api=api
            )
            failed = (document.get("port") or {}).get("binding:vif_type") == "binding_failed"
            answer = "binding failed" if status == 200 and failed else status
        finally:
            self.records.take_bind_answer(port, guid, answer)
        return answer

    # -- histories -----------------------------------------------------------------------

    def run_one(self, number):
        """Perform one history, and wait until it has come to rest."""
        chosen = self.random.sample(range(len(PORTS)), self.random.randrange(1, 5))
        wishes = [
            (
                *(port, self.random.choice(WISHES), self._choose_place()),
                self.random.randrange(2),
            )
            for port in chosen
        ]
        faults = [name for name, share in FAULTS.items() if self.random.random() * 100 < share][:2]
        if "kill fabric-agent" in faults:
            # Without an agent nothing heals a file.
            faults = [name for name in faults if not name.startswith("edit")]
        delay = self.random.random() * 0.8
        begun = time.monotonic()
        with ThreadPoolExecutor(len(wishes)) as pool:
            answers = [pool.submit(self._perform, wish) for wish in wishes]
            time.sleep(delay if faults else 0)
            for name in faults:
                self.faults.begin(name)
        told = tuple((*wish, one.result()) for wish, one in zip(wishes, answers, strict=True))
        broken = self._wait_for_rest()
        # Otherwise what was broken counts, whatever the signal has mended.
        if broken and self.faults.restart_stuck_manager():
            broken = self._wait_for_rest()
        self.records.settle(list_bound(self.plane, LIMITED_TAG), list_hosted(self.plane))
        self.faults.heal_some()
        return Record(number, told, tuple(faults), time.monotonic() - begun, broken)

    def _wait_for_rest(self):
        """Wait until all is as it has to be; what is not, if the time is over."""
        try:
            wait_until(lambda: not self.broken_invariants(), "at rest", REST, pause=0.2)
        except AssertionError:
            return tuple(self.broken_invariants())
        return ()

    def _choose_place(self):
        # The place of the manager that stands by is asked for now and then.
        return self.random.choice([*range(len(PLACES))] * 4 + [len(PLACES)])

    def broken_invariants(self):
        """What is not as it has to be at rest, of every physical port; empty: all is right."""
        bound = list_bound(self.plane, LIMITED_TAG)
        with self.records.guard:
            silent, sick = set(self.records.silent), set(self.records.sick)
            managers, bounced = set(self.records.managers), set(self.records.bounced)
        allowed = self.records.allowed()
        broken, keys = [], {}
        for one in bound:
            bad = one.guid in silent | sick | managers
            if one.is_up and not bad and one.status != "ACTIVE" and len(one.entries) == 1:
                broken.append(f"not ACTIVE: {one}")
            if not one.is_up and one.status == "ACTIVE":
                broken.append(f"off and ACTIVE: {one}")
            if one.is_up and one.guid not in managers:
                keys.setdefault(one.guid, []).append(one.entries)
        owners = {}
        for one in bound:
            owners.setdefault(one.guid, set()).add(one.network)
        broken += [f"{guid} has {nets}" for guid, nets in owners.items() if len(nets) > 1]
        for guid, (own, facing) in self.view.tables(silent=silent).items():
            if guid == self.view.manager:
                continue
            sides = [facing] if guid in silent | sick else [own, facing]
            for side in sides:
                if side is None and guid == self.seat:
                    continue
                found = set(side or ()) - {LIMITED_DEFAULT}
                wanted = keys.get(guid, [])
                fits = all(found & entries for entries in wanted)
                extra = found - set().union(*wanted)
                if guid in silent | managers:
                    extra = {
                        entry for entry in extra if entry & 0x7FFF not in allowed.get(guid, set())
                    }
                    fits = True
                if extra and guid in sick & bounced and not self.view.is_active(guid):
                    # The old table: opensm, which may have missed the link, lets no data pass yet.
                    extra = set()
                if side is None or not fits or extra:
                    shown = side and [hex(entry) for entry in side]
                    there = [one for one in bound if one.guid == guid]
                    broken.append(f"tables: {guid} {shown}, wanted {wanted}: {there}")
        return broken

    def close(self):
        """Heal and delete everything; what is left in the file."""
        self.faults.heal_all()
        self.watch.end()
        for port in (*self.ports, *self.bystanders):
            self.tenants.delete(port)
        deadline = time.monotonic() + REST
        while file_members(self.plane) and time.monotonic() < deadline:
            time.sleep(0.1)
        for network in self.networks.values():
            self.plane.admin.call("DELETE", f"/networks/{network}")
        return file_members(self.plane)


def summarize(records, left, found, seed):
    """The result as a document."""
    faults = [name for record in records for name in record.faults]
    wishes = [wish for record in records for _, wish, *_ in record.wishes]
    seconds = sorted(record.seconds for record in records)
    answers = [answer for record in records for *_, answer in record.wishes]
    return {
        "histories": len(records),
        "seed": seed,
        "faults": {name: faults.count(name) for name in FAULTS},
        "wishes": {name: wishes.count(name) for name in dict.fromkeys(WISHES)},
        "answers": {str(one): answers.count(one) for one in sorted(set(answers), key=str)},
        "last": [attrs.asdict(record) for record in records[-2:]],
        "not_at_rest": [attrs.asdict(record) for record in records if record.broken],
        "rounds_of_reading": found.watch.rounds,
        "lists_of_ports": found.watch.lists,
        "wrong": found.records.broken[:20],
        "wrong_count": len(found.records.broken),
        "left_in_the_file": sorted(left),
        "stuck_managers": found.faults.stuck_managers,
        "seconds": {
            "sum": round(sum(seconds), 1),
            "median": round(seconds[len(seconds) // 2], 2),
            "most": round(seconds[-1], 2),
        },
    }


def run_histories(plane, view, count, seed, tell=None):
    """Run so many histories; the result as a document."""
    with quick_agent(plane):
        found = Histories(plane, view, seed)
        records = []
        try:
            for number in range(count):
                records.append(found.run_one(number))
                if tell is not None:
                    tell(records, found)
                # What is not at rest would be counted against the next ones.
                if records[-1].broken or found.records.broken:
                    break
        finally:
            left = found.close()
    return summarize(records, left, found, seed)


@contextlib.contextmanager
def quick_agent(plane):
    """The agent looks once a second and waits five seconds for a member."""
    file = plane.paths.config / "neutron" / "fabric-agent.conf"
    before = file.read_text()
    text = re.sub(r"(?m)^(poll_interval|member_timeout) .*\n", "", before)
    text = text.replace("[hpc_fabric_agent]", "[hpc_fabric_agent]\npoll_interval = 1", 1)
    file.write_text(text + "\n[hpc_partitions]\nmember_timeout = 5\n")
    plane.restart("fabric-agent")
    try:
        yield
    finally:
        file.write_text(before)
        plane.restart("fabric-agent")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    begun = time.monotonic()

    def tell(records, found):
        if len(records) % 10 == 0 or records[-1].broken or found.records.broken:
            print(
                f"{time.monotonic() - begun:7.0f} s  {len(records)} of {args.count} histories,"
                f" {sum(len(one.faults) for one in records)} faults,"
                f" {found.watch.rounds} rounds of reading, not at rest:"
                f" {sum(bool(one.broken) for one in records)}, wrong: {len(found.records.broken)}",
                flush=True,
            )

    with own_network(), running(PlainDisplay(sys.stderr)) as plane:
        view = FabricView(plane)
        document = run_histories(plane, view, args.count, args.seed, tell)
        view.close()
        if document["wrong_count"] or document["not_at_rest"]:
            log = plane.services()["fabric-agent"].process.log
            print("".join(log.read_text().splitlines(keepends=True)[-60:]))
    text = json.dumps(document, indent=1)
    print(text)
    if args.result:
        args.result.write_text(text + "\n")
    good = not (document["not_at_rest"] or document["wrong_count"] or document["left_in_the_file"])
    return 0 if good and document["histories"] == args.count else 1


if __name__ == "__main__":
    sys.exit(main())
