# SPDX-License-Identifier: Apache-2.0
"""The Debian part of the node's root disk: the packages and their mirror."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import cache

SUITE: Final = "bookworm"
#: Version of Python in the suite; packages compiled for another version do not run there.
PYTHON: Final = (3, 11)
_FALLBACK_MIRROR: Final = "http://deb.debian.org/debian"

PACKAGES: Final = (
    "busybox-static",
    "ca-certificates",
    "dmidecode",
    "e2fsprogs",
    "ethtool",
    "genisoimage",
    "hwloc-nox",
    "iproute2",
    "kmod",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "linux-image-amd64",
    "numactl",
    "openssh-server",
    "ovmf",
    "pciutils",
    "python3",
    "qemu-system-x86",
    "qemu-utils",
    "rdma-core",
    "seabios",
    "udev",
)

# All of these come from backports: Nova needs libvirt 10 or later, and the older QEMU lacks the
# SR-IOV adapter and much of the IOMMU.
_PIN: Final = "Package: *\\nPin: release n=bookworm-backports\\nPin-Priority: 990\\n"

_UNWANTED: Final = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def key() -> str:
    """Return a key of the result of :func:`bootstrap`: it changes with the packages."""
    return cache.key_of("1", SUITE, _PIN, *_UNWANTED, *PACKAGES)


def bootstrap(target: Path, log: Path) -> None:
    """Make the root file system as a tar archive, which takes minutes.

    :param log: file for mmdebstrap's messages.
    :raises LabError: mmdebstrap is missing or failed.
    """
    options = ["--variant=minbase", "--mode=root", "--format=tar"]
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in _UNWANTED]
    options += [
        '--setup-hook=mkdir -p "$1/etc/apt/preferences.d"; '
        f'printf "{_PIN}" >"$1/etc/apt/preferences.d/backports"',
        # The node boots from an archive of our own; Debian's takes half a minute to make.
        '--essential-hook=chroot "$1" dpkg-divert --quiet --local --rename'
        " --add /usr/sbin/update-initramfs",
        '--essential-hook=ln -s /bin/true "$1/usr/sbin/update-initramfs"',
        f"--include={','.join(PACKAGES)}",
    ]
    suites = (SUITE, f"{SUITE}-updates", f"{SUITE}-backports")
    mmdebstrap(options, SUITE, suites, str(target), log)


def mmdebstrap(
    options: Sequence[str], suite: str, suites: Sequence[str], target: str, log: Path
) -> None:
    """Run mmdebstrap with the mirror and proxy of this machine's apt.

    :param suites: suites whose packages may be used.
    :param log: file for its messages.
    :raises LabError: it is missing or failed.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise LabError("mmdebstrap is not installed; run: apt-get install mmdebstrap")
    uri = mirror()
    sources = "".join(f"deb {uri} {one} main\n" for one in suites)
    argv = [program, '--aptopt=APT::Install-Recommends "false"', *_proxies()]
    argv += [*options, suite, target, "-"]
    with log.open("ab") as stream:
        done = subprocess.run(
            argv, input=sources.encode(), stdout=stream, stderr=stream, check=False
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
        raise LabError(
            f"mmdebstrap could not take Debian {suite} from {uri} (status {done.returncode});"
            f" the end of {log}:\n{tail}"
        )


def mirror() -> str:
    """Return the Debian mirror that apt uses on this machine, as a URI.

    Debian's own address if apt has no repository of the suite.
    """
    found = [uri for uri, suite, component in _repositories() if (suite, component) == _WANTED]
    return found[0].rstrip("/") if found else _FALLBACK_MIRROR


_WANTED: Final = (SUITE, "main")


def _repositories() -> Iterator[tuple[str, str, str]]:
    """Yield URI, suite and component of apt's repositories."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 3:
            yield words[0], words[1], words[2]
    # Before the first "apt-get update" the command above lists nothing.
    yield from parse_sources(Path("/etc/apt"))


def parse_sources(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield URI, suite and component of the repositories in apt's files below *folder*."""
    parts = folder / "sources.list.d"
    for path in [folder / "sources.list", *sorted(parts.glob("*.list"))]:
        for line in _lines(path):
            # The options in brackets, if any, may hold blanks.
            words = re.sub(r"\[[^]]*\]", "", line.partition("#")[0]).split()
            if len(words) > 3 and words[0] == "deb":
                yield from ((words[1], words[2], component) for component in words[3:])
    for path in sorted(parts.glob("*.sources")):
        for stanza in "\n".join(_lines(path)).split("\n\n"):
            fields = _stanza(stanza)
            if "deb" not in fields.get("types", ()) or fields.get("enabled") == ["no"]:
                continue
            for uri in fields.get("uris", ()):
                for suite in fields.get("suites", ()):
                    for component in fields.get("components", ()):
                        yield uri, suite, component


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError):
        return []


def _stanza(text: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if not line[:1].isspace() and ":" in line:
            name, _, line = line.partition(":")
            name = name.lower()
        fields.setdefault(name, []).extend(line.split())
    return fields


def _proxies() -> list[str]:
    """Return the options of apt that set the proxy for the mirror."""
    done = subprocess.run(
        ["apt-config", "dump", "Acquire::http"], capture_output=True, text=True, check=False
    )
    pattern = re.compile(r'^(Acquire::http::Proxy(?:-Auto-Detect)?) "(.+)";$', re.MULTILINE)
    return [f'--aptopt={name} "{value}"' for name, value in pattern.findall(done.stdout)]
