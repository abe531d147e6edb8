# SPDX-License-Identifier: Apache-2.0
"""The words of a command that runs another one on a member: over ssh, or by Slurm's srun.

Neither ever asks anything. What is run gets the launcher's standard input, and ends with it
(``nova-hpc-guest accept --hold``): of its own end ssh tells the other side nothing else, and so
nothing goes on there once this command, or this whole machine, has ended.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

import attrs

from nova_hpc_tools.cluster.hostfiles import MemberHost

SSH: Final = "ssh"
SRUN: Final = "srun"
LAUNCHERS: Final = (SSH, SRUN)
#: The command that members have.
GUEST_COMMAND: Final = ("nova-hpc-guest",)
#: Seconds that a member has to answer at all, and that an unanswered connection lasts.
_CONNECT: Final = 15
_ALIVE: Final = 15
_ALIVE_COUNT: Final = 3
#: Seconds that Slurm has to find the node free.
_IMMEDIATE: Final = 30
#: Before the user's own options: of several values ssh takes the first.
_SSH_FIRST: Final = ("-o", "BatchMode=yes", "-T")
_SSH_LAST: Final = (
    *("-o", f"ConnectTimeout={_CONNECT}", "-o", f"ServerAliveInterval={_ALIVE}"),
    *("-o", f"ServerAliveCountMax={_ALIVE_COUNT}", "-o", "ForwardAgent=no"),
    *("-o", "ForwardX11=no", "-o", "PermitLocalCommand=no", "-o", "RequestTTY=no"),
)


@attrs.frozen
class Reach:
    """The way to members.

    :ivar login: user on the members; empty: what ssh's configuration says.
    :ivar options: of ssh, as ``IdentityFile=key``.
    :ivar command: words that run ``nova-hpc-guest`` there.
    """

    launcher: str = SSH
    login: str = ""
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = GUEST_COMMAND

    def build_words(self, host: MemberHost, words: Sequence[str]) -> list[str]:
        """The words that run ``nova-hpc-guest`` with *words* on a member.

        :param host: whose name or address has been checked.
        """
        remote = [*self.command, *words]
        if self.launcher == SRUN:
            return [*_srun_words(host), *remote]
        login = ("-l", self.login) if self.login else ()
        own = [word for option in self.options for word in ("-o", option)]
        return [
            *("ssh", *_SSH_FIRST, *own, *_SSH_LAST, *login, "--", host.reached),
            shlex.join(remote),
        ]


def _srun_words(host: MemberHost) -> list[str]:
    # All of the node's CPUs, and bound to none: a step gets one otherwise.
    words = ["srun", "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}"]
    words += [f"--cpus-per-task={max(1, host.vcpus)}", "--cpu-bind=none", "--wait=0"]
    words += ["--kill-on-bad-exit=1", "--job-name=nova-hpc-accept"]
    if "SLURM_JOB_ID" in os.environ:
        return [*words, "--overlap"]
    return [*words, "--exclusive", f"--immediate={_IMMEDIATE}"]
