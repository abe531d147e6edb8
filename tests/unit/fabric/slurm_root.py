# SPDX-License-Identifier: Apache-2.0
"""A slurmctld of another Debian release, in a root of its own: nothing is installed.

Its packages are downloaded with apt from the mirror that this machine uses, checked by
apt against Debian's keys, and unpacked into a folder of the user's cache. The daemon runs
there in a mount namespace of its own, which needs root.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

_KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PATIENCE = 120.0
#: What a slurmctld does not need of what its packages recommend others for.
_LEFT_OUT = re.compile(
    "debconf|perl|adduser|systemd|init|dpkg|ucf|lsb|sysv|libperl|debhelper|python|mariadb|awk|mawk|"
    "gawk|base-files|sensible|cdebconf|dbus|openssl-provider"
)


class CannotError(Exception):
    """It cannot be had here; the text says why."""


@attrs.frozen
class Root:
    """The unpacked packages of one suite."""

    folder: Path
    #: As 24.11 or 26.05.
    release: str


def get(suite: str) -> Root:
    """The slurmctld of a Debian suite.

    :raises CannotError: it cannot be had.
    """
    if os.geteuid() != 0:
        raise CannotError("a private root needs root")
    for tool in ("apt-get", "apt-cache", "dpkg", "unshare"):
        if shutil.which(tool) is None:
            raise CannotError(f"{tool} is not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    work = cache / "nova-hpc/slurm" / suite
    done = work / "done"
    if not done.exists():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        _download(suite, work)
        _furnish(work / "root")
        done.touch()
    root = work / "root"
    said = _inside(root, {}, "/usr/sbin/slurmctld", "-V").stdout
    match = re.search(r"slurm\S* (\d+\.\d+)", said)
    if match is None:
        raise CannotError(f"the slurmctld of {suite} does not say what it is: {said!r}")
    return Root(root, match[1])


def _mirror() -> str:
    """Where this machine has Debian's packages from."""
    for path in sorted(Path("/etc/apt").glob("sources.list*")) + sorted(
        Path("/etc/apt/sources.list.d").glob("*")
    ):
        if path.is_file():
            for match in re.finditer(r"\bhttps?://\S+/debian/?(?=\s|$)", path.read_text("utf-8")):
                return match[0]
    raise CannotError("apt has no mirror of Debian here")


def _download(suite: str, work: Path) -> None:
    if not _KEYS.exists():
        raise CannotError(f"{_KEYS} is not there: debian-archive-keyring is not installed")
    for name in ("lists/partial", "cache/archives/partial", "debs", "root"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_mirror()} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::State": work,
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    config = work / "apt.conf"
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(config)}

    def run(*words: str) -> str:
        ended = subprocess.run(
            words,
            cwd=work / "debs",
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if ended.returncode:
            raise CannotError(f"{' '.join(words[:3])} failed: {ended.stderr.strip()[-300:]}")
        return ended.stdout

    run("apt-get", "update", "-qq")
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    wanted = ("slurmctld", "slurm-client", "slurm-wlm-basic-plugins")
    found = run("apt-cache", "depends", "--recurse", *(f"--no-{kind}" for kind in kinds), *wanted)
    names = {line for line in found.splitlines() if re.match("[a-z0-9]", line)}
    run("apt-get", "download", "-qq", *sorted(n for n in names if not _LEFT_OUT.match(n)))
    for package in sorted((work / "debs").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, work / "root"], check=True)


def _furnish(root: Path) -> None:
    """What a small system needs beside its packages."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if not (root / name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "dev", "tmp", "etc", "run", "root", "work", "usr/lib64"):
        (root / name).mkdir(parents=True, exist_ok=True)
    loader = root / "usr/lib64/ld-linux-x86-64.so.2"
    if not loader.exists():
        loader.symlink_to("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files\n")
    # It looks at its own name: as slurmctld-wlm 24.11 ends ("certmgr plugin only allowed on
    # slurmctld").
    shutil.copy(root / "usr/sbin/slurmctld-wlm", root / "usr/sbin/slurmctld")


def _words(root: Path, environment: Mapping[str, str], *words: str) -> list[str]:
    script = 'mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; exec env -i "$@"'
    given = {"PATH": "/usr/sbin:/usr/bin", "HOME": "/root", **environment}
    settings = [f"{key}={value}" for key, value in given.items()]
    inner = ["chroot", str(root), *words]
    return ["unshare", "-m", "bash", "-c", script, str(root), *settings, *inner]


def _inside(root: Path, environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        _words(root, environment, *words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )


@attrs.frozen
class Slurm:
    """A slurmctld that runs.

    :ivar conf: its slurm.conf, as it sees it.
    """

    root: Root
    conf: str

    def scontrol(self, *words: str) -> str:
        """What scontrol prints."""
        return self.run("scontrol", *words).stdout

    def run(self, *words: str) -> subprocess.CompletedProcess:
        """Run a command of Slurm's."""
        return _inside(self.root.folder, {"SLURM_CONF": self.conf}, *words)

    def wrapper(self, folder: Path) -> Path:
        """A ``scontrol`` for programs outside: the folder to put into PATH."""
        path = folder / "scontrol"
        words = _words(self.root.folder, {"SLURM_CONF": self.conf}, "scontrol")
        quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
        path.write_text(f'#!/bin/bash\nexec {quoted} "$@"\n')
        path.chmod(0o755)
        return folder


@contextlib.contextmanager
def running(
    root: Root, name: str, files: Mapping[str, str], nodes: str, *settings: str
) -> Iterator[Slurm]:
    """Start a slurmctld and wait for it.

    :param name: of its folder, which is removed at the end.
    :param files: name -> text, beside its slurm.conf.
    :param nodes: host list of its nodes.
    """
    folder = root.folder / "work" / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "state").mkdir(parents=True)
    inside = f"/work/{name}"
    for file, text in files.items():
        (folder / file).write_text(text, encoding="utf-8")
    (folder / "slurm.conf").write_text("\n".join(_conf(inside, nodes, settings)) + "\n")
    slurm = Slurm(root, f"{inside}/slurm.conf")
    with (folder / "log").open("w", encoding="utf-8") as log:
        daemon = subprocess.Popen(
            _words(root.folder, {}, "/usr/sbin/slurmctld", "-D", "-f", slurm.conf),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        limit = time.monotonic() + _PATIENCE
        while "is UP" not in slurm.scontrol("ping"):
            said = (folder / "log").read_text(encoding="utf-8", errors="replace")
            assert daemon.poll() is None, f"slurmctld ended: {said[-2000:]}"
            assert time.monotonic() < limit, f"slurmctld does not answer: {said[-2000:]}"
            time.sleep(0.2)
        yield slurm
    finally:
        # The shell and what it has become by exec are one process: the daemon itself.
        daemon.terminate()
        try:
            daemon.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _conf(inside: str, nodes: str, settings: Iterable[str]) -> list[str]:
    return [
        "ClusterName=test",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmctldPort={_free_port()}",
        f"SlurmdPort={_free_port()}",
        "AuthType=auth/none",
        "CredType=cred/none",
        "SlurmUser=root",
        f"StateSaveLocation={inside}/state",
        f"SlurmctldPidFile={inside}/slurmctld.pid",
        "MailProg=/usr/bin/scontrol",
        "MpiDefault=none",
        "PluginDir=/usr/lib/x86_64-linux-gnu/slurm-wlm",
        "SelectType=select/cons_tres",
        "ProctrackType=proctrack/linuxproc",
        "SlurmctldParameters=cloud_dns",
        "MaxNodeCount=4096",
        # Without it the nodes of a cloud that are not up are not shown.
        "PrivateData=cloud",
        *settings,
        # No name is looked up, and nobody answers.
        f"NodeName={nodes} NodeAddr=127.0.0.1 CPUs=4 State=CLOUD",
        "PartitionName=p Nodes=ALL Default=YES State=UP",
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
