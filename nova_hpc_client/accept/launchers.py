# SPDX-License-Identifier: Apache-2.0
"""Builds commands that run another command on a member: over ssh, or by Slurm's srun.

Neither launcher prompts the user. The command on the member reads the launcher's standard input,
and ends when it is closed (``nova-hpc-guest accept --hold``). When ssh ends, the other side notices
only this. So no command runs on there after this command, or this whole machine, has ended.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Final

import attrs

from nova_hpc_client.cluster.hostfiles import MemberHost

SSH: Final = "ssh"
SRUN: Final = "srun"
LAUNCHERS: Final = (SSH, SRUN)
#: The command on members if no option names another one.
GUEST_COMMAND: Final = ("nova-hpc-guest",)
#: Seconds for ssh to connect, and between two checks of a silent connection; after the third
#: unanswered check, ssh ends.
_CONNECT: Final = 15
_ALIVE: Final = 15
_ALIVE_COUNT: Final = 3
#: Seconds in which Slurm has to give the node to the job.
_IMMEDIATE: Final = 30
#: Options before the user's own, which these override: ssh uses the first of several values.
_SSH_FIRST: Final = ("-o", "BatchMode=yes", "-T")
_SSH_LAST: Final = (
    *("-o", f"ConnectTimeout={_CONNECT}", "-o", f"ServerAliveInterval={_ALIVE}"),
    *("-o", f"ServerAliveCountMax={_ALIVE_COUNT}", "-o", "ForwardAgent=no"),
    *("-o", "ForwardX11=no", "-o", "PermitLocalCommand=no", "-o", "RequestTTY=no"),
)


@attrs.frozen
class Reach:
    """The way to run commands on members.

    :ivar login: user on the members; empty for the one in ssh's configuration.
    :ivar options: options of ssh, such as ``IdentityFile=key``.
    :ivar command: words that run ``nova-hpc-guest`` on a member.
    """

    launcher: str = SSH
    login: str = ""
    options: tuple[str, ...] = ()
    command: tuple[str, ...] = GUEST_COMMAND

    def build_words(self, host: MemberHost, words: Sequence[str]) -> list[str]:
        """Build the command line that runs ``nova-hpc-guest`` with *words* on a member.

        :param host: a host with a checked name and address.
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
    # All of the node's CPUs, without binding: otherwise a step gets one CPU.
    words = ["srun", "--quiet", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}"]
    words += [f"--cpus-per-task={max(1, host.vcpus)}", "--cpu-bind=none", "--wait=0"]
    words += ["--kill-on-bad-exit=1", "--mpi=none", "--job-name=nova-hpc-accept"]
    if "SLURM_JOB_ID" in os.environ:
        return [*words, "--overlap"]
    return [*words, "--exclusive", f"--immediate={_IMMEDIATE}"]
