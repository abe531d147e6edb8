# SPDX-License-Identifier: Apache-2.0
"""The needs of nova-compute, for ``nova-hpc doctor``: its libvirt, its shim, its files."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from nova_hpc.guest_tree.needs import format_dotted_version
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.adopt import install_shim
from nova_hpc_tools.doctor import libvirt_domains, libvirt_needs
from nova_hpc_tools.doctor.checks_service import LedgerPath, ServiceFacts, Shim, TooOld, User
from nova_hpc_tools.doctor.libvirt_needs import LibvirtNeed
from nova_hpc_tools.site import include_files, settings
from nova_hpc_tools.site.cures import CommandRun, CuredCommand, DoctorCure

#: Units that start nova-compute: of Debian and Ubuntu, of RDO, of devstack.
_UNITS: Final = ("nova-compute", "openstack-nova-compute", "devstack@n-cpu")
#: The folders of systemd, the one that wins first.
_FOLDERS: Final = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")
_OLD_FOLDER: Final = "lib/systemd/system"
_USER: Final = re.compile(r"^\s*User\s*=\s*(\S+)\s*$", re.MULTILINE)


def is_this_machine(root: Path | None) -> bool:
    """Whether *root* is this machine, so that its services are reachable."""
    return root is not None and root.resolve() == Path("/")


def read_service_facts(
    root: Path | None, node: Node, offered: Iterable[PciFunction], nova: Any
) -> ServiceFacts:
    """Read the conditions that nova-compute needs; an unreadable file counts as missing.

    :param root: the folder with the host's files; None if unknown.
    :param offered: the functions that servers can get.
    :param nova: options with the groups ``[DEFAULT]``, ``[libvirt]`` and ``[hpc]``.
    """
    if root is None:
        return ServiceFacts()
    on_this_machine = is_this_machine(root)
    ledger = str(nova.hpc.ledger_file)
    tree = FileTree(root)
    return ServiceFacts(
        too_old=tuple(_find_too_old_libvirt(configured_libvirt_needs(node, offered, nova), nova))
        if on_this_machine
        else (),
        shim=find_shim_fault(nova.compute_driver) if on_this_machine else None,
        folder=_stat_service_path(tree, root, str(Path(ledger).parent), stat.S_ISDIR),
        ledger=_stat_service_path(tree, root, ledger, stat.S_ISREG),
        user=_find_service_user(root),
    )


# --- libvirt ----------------------------------------------------------------------------


def configured_libvirt_needs(
    node: Node, offered: Iterable[PciFunction], nova: Any
) -> tuple[LibvirtNeed, ...]:
    """Return configured or offered features that need a newer libvirt than Nova itself."""
    memory = sum(numa_node.memory_kib or 0 for numa_node in node.numa_nodes) << 10
    return tuple(libvirt_needs.libvirt_needs_of(offered, memory, nova.hpc.gpudirect_clique))


def _find_too_old_libvirt(wishes: Iterable[LibvirtNeed], nova: Any) -> Iterator[TooOld]:
    needs = tuple(wishes)
    version = libvirt_domains.libvirt_version_of(libvirt_uri_of(nova)) if needs else None
    for need in needs:
        if version is not None and version < need.least:
            yield TooOld(
                need.what,
                format_dotted_version(need.least),
                format_dotted_version(version),
                need.otherwise,
            )


def libvirt_uri_of(nova: Any) -> str:
    """Return the URI of the libvirt that nova-compute of this machine uses."""
    return nova.libvirt.connection_uri or libvirt_domains.DEFAULT_URI


# --- the shim ---------------------------------------------------------------------------


def find_shim_fault(driver: str | None) -> Shim | None:
    """Find the fault of the file that Nova loads the driver from; None without a fault.

    :param driver: ``[DEFAULT]compute_driver``; another driver needs no such file.
    """
    if driver != settings.DRIVER:
        return None
    try:
        place = install_shim.locate_shim(install_shim.find_nova_interpreter())
        shim_state = install_shim.shim_state_of(place.target, install_shim.read_shim_content())
    except (install_shim.ShimError, OSError) as error:
        return Shim(
            f"The shim of the driver was not looked at: {error}.",
            DoctorCure.of("Run ", CommandRun(CuredCommand.CHECK_SHIM), "."),
            unknown=True,
        )
    if not place.complete:
        return Shim(
            f"{place.python} does not find nova-hpc.",
            f"Run {place.python} -m pip install nova_hpc-*.whl nova_hpc_common-*.whl",
        )
    if shim_state == "foreign":
        return Shim(
            f"{place.target} is not a file of nova-hpc.",
            f"Move {place.target} away if Nova does not need it; then nova-hpc install-shim",
        )
    if shim_state != "installed":
        return Shim(f"{place.target} is {shim_state}.", "nova-hpc install-shim")
    return None


# --- files ------------------------------------------------------------------------------


def _stat_service_path(tree: FileTree, root: Path, path: str, kind: Any) -> LedgerPath | None:
    try:
        resolved_path = tree.resolve(path)
        if resolved_path is None:
            return None
        file_status = (root / resolved_path.lstrip("/")).lstat()
    except (FileError, OSError, ValueError):
        return None
    if not kind(file_status.st_mode):
        return None
    return LedgerPath(
        path, file_status.st_uid, file_status.st_gid, stat.S_IMODE(file_status.st_mode)
    )


def _find_service_user(root: Path) -> User | None:
    """Find the user in nova-compute's unit; None without a unit, or if its account is unknown."""
    for unit in _UNITS:
        texts = list(_read_service_unit(root, unit))
        if texts:
            names = [name for text in texts for name in _USER.findall(text)]
            return _read_passwd_account(root, names[-1] if names else "root")
    return None


def _read_service_unit(root: Path, name: str) -> Iterator[str]:
    """Yield the texts of a systemd unit and its drop-in files; a later one wins."""
    folders = (*_FOLDERS, _OLD_FOLDER)
    for folder in folders:
        text = include_files.read_text_or_empty(root / folder / f"{name}.service")
        if text:
            yield text
            break
    for folder in reversed(folders):
        for path in sorted((root / folder / f"{name}.service.d").glob("*.conf")):
            yield include_files.read_text_or_empty(path)


def _read_passwd_account(root: Path, name: str) -> User | None:
    if name in ("root", "0"):
        return User("root", 0)
    for line in include_files.read_text_or_empty(root / "etc/passwd").splitlines():
        words = line.split(":")
        if len(words) > 3 and name in (words[0], words[2]) and words[2].isdigit():
            groups = {int(words[3])} if words[3].isdigit() else set()
            return User(
                words[0], int(words[2]), frozenset({*groups, *_read_group_ids(root, words[0])})
            )
    return None


def _read_group_ids(root: Path, name: str) -> Iterator[int]:
    for line in include_files.read_text_or_empty(root / "etc/group").splitlines():
        words = line.split(":")
        if len(words) > 3 and words[2].isdigit() and name in words[3].split(","):
            yield int(words[2])
