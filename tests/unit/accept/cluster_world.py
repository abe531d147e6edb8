# SPDX-License-Identifier: Apache-2.0
"""A cluster whose members are directories: what they print is laid down, the processes are real.

In place of ssh stands a program that takes ssh's words and runs the rest as sshd does, by a
shell, with the member's own tools on PATH.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nova_hpc_client.accept.cluster_result import ClusterAcceptance
from nova_hpc_client.accept.cluster_run import ClusterMeasuring
from nova_hpc_client.accept.cluster_terms import AcceptedHost, ClusterTerms
from nova_hpc_client.accept.launchers import Reach
from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_client.cluster.hostfiles import MemberHost
from nova_hpc_guest import command
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.first_sample import FirstSample, write_first_sample
from nova_hpc_guest.accept.own_probes import OwnProbes, join_probes
from nova_hpc_guest.accept.sample import Reading, Sample, write_sample
from tests.unit.guest.accept_world import AcceptWorld

TOP = Path(command.__file__).parents[1]
_GUEST = f"""#!/bin/sh
verb=$1; shift
exec env PYTHONPATH={TOP} {sys.executable} -m nova_hpc_guest.command \\
    "$verb" --root ROOT --skip device "$@"
"""
_LAID_DOWN = """#!/bin/sh
case "$*" in
    *--first*) cat HOME/first ;;
    *--serve*) echo serving; cat > /dev/null ;;
    *) cat HOME/round ;;
esac
"""
#: As sshd runs a command: by a shell, with what the member has.
_SSH = """#!/bin/sh
[ "$1 $2 $3" = "-o BatchMode=yes -T" ] || exit 99
while [ "$1" != -- ]; do shift; done
HOME=$MEMBERS/$2; RATES=$HOME/rates; PATH=$HOME/bin:/bin; export HOME RATES PATH
cd "$HOME" || exit 255
[ -e login ] && exec /bin/sh -c "$(cat login)" sh "$3"
exec /bin/sh -c "$3"
"""


class ClusterWorld:
    """Members ``10.0.0.1`` and so on, all alike."""

    #: Files with probes of the user.
    own: tuple[OwnProbes, ...] = ()

    def __init__(self, folder: Path, size: int, real: bool = False) -> None:
        self.folder = folder
        #: Members run the guest's own command, over tools that say what we like.
        self.real = real
        self.members: dict[int, AcceptWorld] = {}
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.place("ssh", _SSH)
        for number in range(1, size + 1):
            self.add_member(number)

    def place(self, name: str, text: str) -> None:
        """A program of this machine."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def add_member(self, number: int) -> AcceptWorld:
        """One member more."""
        home = self.folder / f"10.0.0.{number}"
        home.mkdir()
        world = AcceptWorld(home)
        world.tool("nova-hpc-guest", _GUEST.replace("ROOT", str(world.root)))
        self.members[number] = world
        if not self.real:
            world.tool("nova-hpc-guest", _LAID_DOWN.replace("HOME", str(home)))
            self.lay_down(number, cpu_one=1000.0)
        return world

    def lay_down(self, number: int, model: str = "Some CPU", **rates: float) -> None:
        """What a member says of itself, and what each of its rounds gives."""
        facts = GuestFacts(model=model, online=(0, 1), allowed=(0, 1))
        readings = {
            name: Reading(value, wall=1.0, own=1.0, watched=1.0) for name, value in rates.items()
        }
        sample = Sample(facts, readings)
        home = self.members[number].folder
        obstacles = {} if "net_bw" in rates else {"net_bw": "no tool iperf3"}
        first = FirstSample(Sample(facts, {"clock": Reading(40.0)}), obstacles=obstacles)
        (home / "first").write_text(write_first_sample(first, None) + "\n")
        (home / "round").write_text(write_sample(sample) + "\n")

    def say_at_login(self, number: int, text: str) -> None:
        """What the member's shell runs in place of the command, which is its ``$1``."""
        (self.members[number].folder / "login").write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        """What ssh is run with."""
        return {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "MEMBERS": str(self.folder),
        }

    def hosts(self, reach: Reach | None = None) -> list[AcceptedHost]:
        """The members, to be measured."""
        chosen = reach or Reach()

        def member(number: int) -> RemoteMember:
            host = MemberHost(f"id-{number}", f"train-{number}", f"10.0.0.{number}", 2, 1024, {})

            def build(words: Sequence[str]) -> list[str]:
                first, *rest = chosen.build_words(host, words)
                return [str(self.bin / first), *rest]

            words = [word for file in self.own for word in file.words]
            return RemoteMember(build, "quick", more=words, environment=self.environment)

        return [
            AcceptedHost(
                number, f"train-{number}", f"id-{number}", f"10.0.0.{number}", member(number)
            )
            for number in self.members
        ]

    def measure(self, only: tuple[str, ...] = ("cpu_one",), **more: Any) -> ClusterAcceptance:
        """Measure all of it."""
        wishes = {"tier": "quick", "least": 6, "budget": 600.0, "busy": True, **more}
        terms = ClusterTerms(only=only, own=join_probes(self.own, only), **wishes)
        return ClusterMeasuring("train", self.hosts(), terms, lambda *_: None).measure()
