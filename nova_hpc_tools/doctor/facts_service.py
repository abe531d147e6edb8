# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor`` reads of what nova-compute needs: its libvirt, its shim, its files."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from nova_hpc.guest_tree import needs
from nova_hpc.guest_tree.needs import Need
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import Function, Node
from nova_hpc_tools.adopt import include_files, install_shim, settings
from nova_hpc_tools.doctor import libvirt_domains
from nova_hpc_tools.doctor.checks_service import Place, Service, Shim, TooOld, User

#: Units that start nova-compute: of Debian and Ubuntu, of RDO, of devstack.
_UNITS: Final = ("nova-compute", "openstack-nova-compute", "devstack@n-cpu")
#: Where systemd looks, the last word first.
_FOLDERS: Final = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")
_OLD_FOLDER: Final = "lib/systemd/system"
_USER: Final = re.compile(r"^\s*User\s*=\s*(\S+)\s*$", re.MULTILINE)


def is_here(root: Path | None) -> bool:
    """Whether *root* is this machine, whose services can be asked."""
    return root is not None and root.resolve() == Path("/")


def read(root: Path | None, node: Node, offered: Iterable[Function], nova: Any) -> Service:
    """Read it; what cannot be read is not there.

    :param root: where the host's files are; None: nobody knows.
    :param offered: what servers can be given.
    :param nova: with groups ``[DEFAULT]``, ``[libvirt]`` and ``[hpc]``.
    """
    if root is None:
        return Service()
    here = is_here(root)
    ledger = str(nova.hpc.ledger_file)
    tree = Tree(root)
    return Service(
        too_old=tuple(_too_old(wanted(node, offered, nova), nova)) if here else (),
        shim=shim(nova.compute_driver) if here else None,
        folder=_place(tree, root, str(Path(ledger).parent), stat.S_ISDIR),
        ledger=_place(tree, root, ledger, stat.S_ISREG),
        user=_user(root),
    )


# --- libvirt ----------------------------------------------------------------------------


def wanted(node: Node, offered: Iterable[Function], nova: Any) -> tuple[Need, ...]:
    """What is configured or offered here, and needs a libvirt newer than Nova does."""
    memory = sum(each.memory_kib or 0 for each in node.numa_nodes) << 10
    return tuple(needs.of_node(offered, memory, nova.hpc.gpudirect_clique))


def _too_old(wishes: Iterable[Need], nova: Any) -> Iterator[TooOld]:
    found = tuple(wishes)
    version = libvirt_domains.version(uri(nova)) if found else None
    for each in found:
        if version is not None and version < each.least:
            yield TooOld(each.what, needs.dotted(each.least), needs.dotted(version), each.otherwise)


def uri(nova: Any) -> str:
    """Where nova-compute of this machine finds libvirt."""
    return nova.libvirt.connection_uri or libvirt_domains.DEFAULT_URI


# --- the shim ---------------------------------------------------------------------------


def shim(driver: str | None) -> Shim | None:
    """What is wrong with the file through which Nova finds the driver; None: nothing.

    :param driver: ``[DEFAULT]compute_driver``; for another driver nothing is needed.
    """
    if driver != settings.DRIVER:
        return None
    try:
        place = install_shim.locate(install_shim.interpreter())
        found = install_shim.state(place.target, install_shim.content())
    except (install_shim.ShimError, OSError) as error:
        return Shim(
            f"The shim of the driver was not looked at: {error}.",
            "Run nova-hpc install-shim --check with the --python of nova-compute.",
            unknown=True,
        )
    if not place.complete:
        return Shim(
            f"{place.python} does not find nova-hpc.",
            f"Install its wheel there: {place.python} -m pip install nova_hpc-*.whl",
        )
    if found == "foreign":
        return Shim(
            f"{place.target} is not a file of nova-hpc.",
            f"Move {place.target} away if Nova does not need it; then nova-hpc install-shim",
        )
    if found != "installed":
        return Shim(f"{place.target} is {found}.", "nova-hpc install-shim")
    return None


# --- files ------------------------------------------------------------------------------


def _place(tree: Tree, root: Path, path: str, kind: Any) -> Place | None:
    try:
        found = tree.resolve(path)
        if found is None:
            return None
        here = (root / found.lstrip("/")).lstat()
    except (FileError, OSError, ValueError):
        return None
    if not kind(here.st_mode):
        return None
    return Place(path, here.st_uid, here.st_gid, stat.S_IMODE(here.st_mode))


def _user(root: Path) -> User | None:
    """Who the unit of nova-compute runs it as; None: there is none, or it cannot be read."""
    for unit in _UNITS:
        texts = list(_unit(root, unit))
        if texts:
            names = [name for text in texts for name in _USER.findall(text)]
            return _account(root, names[-1] if names else "root")
    return None


def _unit(root: Path, name: str) -> Iterator[str]:
    """The unit and what is dropped in, a later one wins."""
    folders = (*_FOLDERS, _OLD_FOLDER)
    for folder in folders:
        text = _text(root / folder / f"{name}.service")
        if text:
            yield text
            break
    for folder in reversed(folders):
        for path in sorted((root / folder / f"{name}.service.d").glob("*.conf")):
            yield _text(path)


def _account(root: Path, name: str) -> User | None:
    if name in ("root", "0"):
        return User("root", 0)
    for line in _text(root / "etc/passwd").splitlines():
        words = line.split(":")
        if len(words) > 3 and name in (words[0], words[2]) and words[2].isdigit():
            groups = {int(words[3])} if words[3].isdigit() else set()
            return User(words[0], int(words[2]), frozenset({*groups, *_groups(root, words[0])}))
    return None


def _groups(root: Path, name: str) -> Iterator[int]:
    for line in _text(root / "etc/group").splitlines():
        words = line.split(":")
        if len(words) > 3 and words[2].isdigit() and name in words[3].split(","):
            yield int(words[2])


def _text(path: Path) -> str:
    try:
        return include_files.read(path) or ""
    except include_files.IncludeError:
        return ""
