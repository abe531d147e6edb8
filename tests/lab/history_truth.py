# SPDX-License-Identifier: Apache-2.0
"""Who had which device when, and when it was reset: by QEMU's logs and by the kernel.

Neither Nova nor this project is asked. libvirt writes each start of a QEMU, with all that it
was given, and each end into a log of its own; the kernel tells of each write to a device's
``reset``. VFIO's own resets, at the start and end of a guest, are not among them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime

import attrs

#: Prints all that is needed, inside of the node.
LOOK = r"""
echo '== clock'; date +%s.%N
echo '== running'; virsh -c qemu:///system list --name --uuid
echo '== defined'; virsh -c qemu:///system list --all --name --uuid
echo '== resets'; cat /run/resets
echo '== ledger'; cat /var/lib/nova/hpc-ledger.json; echo
for log in /var/log/libvirt/qemu/*.log; do
    test -e "$log" || continue
    echo "== log $(basename "$log" .log)"
    grep -E '^[0-9-]+ [0-9:.]+\+0000: |"driver":"vfio-pci"' "$log"
done
true
"""
#: Watches who writes to any device's ``reset``: inotify, as the kernel tells of writes to
#: sysfs, too. With the clock of the day, as libvirt's logs.
WATCH = r"""
import ctypes, os, struct, time
from pathlib import Path

libc = ctypes.CDLL(None)
inotify = libc.inotify_init1(0)
names = {}
for path in Path("/sys/bus/pci/devices").glob("*/reset"):
    names[libc.inotify_add_watch(inotify, bytes(path), 0x2)] = path.parent.name
with open("/run/resets", "a", buffering=1) as log:
    log.write(f"{time.time():.6f} watching {len(names)}\n")
    while True:
        data, at = os.read(inotify, 4096), 0
        while at < len(data):
            watch, _, _, length = struct.unpack_from("iIII", data, at)
            at += 16 + length
            log.write(f"{time.time():.6f} {names[watch]}\n")
"""
#: Starts that in the background, once.
START = f"""
test -e /run/watch.py && exit 0
cat >/run/watch.py <<'END'
{WATCH}
END
/opt/nova-hpc/venv/bin/python -S /run/watch.py </dev/null >/run/watch.log 2>&1 &
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do
    grep -q watching /run/resets 2>/dev/null && exit 0
    sleep 1
done
cat /run/watch.log >&2
exit 1
"""

_SECTION = re.compile(r"^== (\w+)(?: (.+))?$", re.MULTILINE)
_STAMP = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+)\+0000: (starting up|shutting down)")
_HOST = re.compile(r'"driver":"vfio-pci","host":"([0-9a-f:.]+)"')
_WATCHED = re.compile(r"^(\d+\.\d+) watching \d+$", re.MULTILINE)
_RESET = re.compile(r"^(\d+\.\d+) ([0-9a-f:.]+)$", re.MULTILINE)


@attrs.frozen
class Tenure:
    """The time for which one QEMU had devices; seconds of the epoch."""

    domain: str
    start: float
    end: float
    devices: frozenset[str]


@attrs.frozen
class Seen:
    """The node at one moment."""

    now: float
    #: Resets are known from here on.
    since: float
    #: UUID -> libvirt's name of the domain.
    running: Mapping[str, str]
    defined: Mapping[str, str]
    ledger: str
    tenures: tuple[Tenure, ...]
    #: When, and the device, in their order.
    resets: tuple[tuple[float, str], ...]

    def devices(self, server: str) -> frozenset[str]:
        """What a server's running guest has."""
        name = self.running.get(server)
        mine = [each for each in self.tenures if each.domain == name and each.end == math.inf]
        return mine[-1].devices if mine else frozenset()


def read(text: str) -> Seen:
    """Make sense of what :data:`LOOK` has printed.

    :raises ValueError: a part of it is missing.
    """
    parts: dict[str, str] = {}
    logs: dict[str, str] = {}
    found = list(_SECTION.finditer(text))
    for match, following in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : following.start() if following else len(text)]
        if match[1] == "log":
            logs[match[2]] = body
        else:
            parts[match[1]] = body
    missing = {"clock", "running", "defined", "resets", "ledger"} - parts.keys()
    if missing:
        raise ValueError(f"the node did not say: {sorted(missing)}")
    watched = _WATCHED.search(parts["resets"])
    if watched is None:
        raise ValueError("nobody watches the resets")
    now = float(parts["clock"])
    running = dict(_pairs(parts["running"]))
    return Seen(
        now=now,
        since=float(watched[1]),
        running=running,
        defined=dict(_pairs(parts["defined"])),
        ledger=parts["ledger"].strip(),
        tenures=tuple(
            one
            for name, log in sorted(logs.items())
            for one in tenures(name, log, now, name in running.values())
        ),
        resets=tuple((float(at), name) for at, name in _RESET.findall(parts["resets"])),
    )


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        uuid, _, name = line.strip().partition(" ")
        if name:
            yield uuid, name.strip()


def tenures(domain: str, log: str, now: float, running: bool) -> list[Tenure]:
    """The times of one domain, by its log.

    :param now: the end of a QEMU that is no more and whose end nobody has written down.
    """
    found: list[Tenure] = []
    start, devices = None, set[str]()

    def close(end: float) -> None:
        nonlocal start
        if start is not None:
            found.append(Tenure(domain, start, end, frozenset(devices)))
        start = None

    for line in log.splitlines():
        match = _STAMP.match(line)
        if match is None:
            devices.update(_HOST.findall(line))
            continue
        moment = datetime.fromisoformat(f"{match[1]}+00:00").timestamp()
        close(moment)
        if match[2] == "starting up":
            start, devices = moment, set()
    close(math.inf if running else now)
    return found


def violations(seen: Seen) -> list[str]:
    """What must never have been: given twice, reset in use, given with another's traces."""
    found = []
    for address in sorted({each for one in seen.tenures for each in one.devices}):
        mine = sorted(
            (one for one in seen.tenures if address in one.devices), key=lambda one: one.start
        )
        resets = [at for at, name in seen.resets if name == address]
        for one in mine:
            found += [
                f"{address} was reset at {at:.3f} while {one.domain} had it, since {one.start:.3f}"
                for at in resets
                if one.start < at < one.end
            ]
        found += _between(address, mine, resets, seen.since)
    return found


def _between(
    address: str, mine: Iterable[Tenure], resets: Collection[float], since: float
) -> Iterator[str]:
    before: Tenure | None = None
    for one in mine:
        if before is not None and before.domain != one.domain:
            if one.start < before.end:
                yield f"{address} was given to {one.domain} while {before.domain} had it"
            elif before.end > since and not any(before.end <= at <= one.start for at in resets):
                yield f"{address} was given to {one.domain} with the traces of {before.domain}"
        before = one
