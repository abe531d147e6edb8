# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc prepare``: the files by which a host starts ready for servers."""

from __future__ import annotations

import argparse
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import holders
from nova_hpc.topology import vfio
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.nvlink import SWITCH_ROLE
from nova_hpc_tools.adopt import at_boot, configure_options, host, host_files, readable_node
from nova_hpc_tools.adopt.configure import Configure, NodeSetup
from nova_hpc_tools.adopt.host import HostStart
from nova_hpc_tools.adopt.host_files import File
from nova_hpc_tools.adopt.quiet_host import plan_quiet_cpus
from nova_hpc_tools.base import CommandAnswer, CommandError, ListCommand
from nova_hpc_tools.site import (
    device_spec,
    include_files,
    kernel_options,
    page_memory,
    settings,
    source_options,
)
from nova_hpc_tools.site.include_files import FileChange, IncludeError

_AUTO: Final = "auto"
_COLUMNS: Final = ("File", "State")
_PARTS: Final = (settings.COMMON, settings.COMPUTE)


class Prepare(ListCommand):
    """Write the files by which a host starts ready for servers.

    The files bind devices to vfio-pci, create virtual functions of adapters,
    and set the hugepages of each NUMA node, the kernel's command line and the
    initramfs. With quiet_cpus in the declaration they keep the host's own work
    off the dedicated CPUs. They follow from the inventory and the node's declaration.
    Without --write the command prints them. A second run changes nothing. It
    removes its own files that are not needed any more, and leaves all other
    files alone. It prints the commands to run afterwards, and changes no
    running host.
    """

    acts_with = ("write", "remove")
    errors = Configure.errors

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the options of the command on its argparse parser; return the parser."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        source_options.add_node_options(parser)
        source_options.add_config_options(parser, "the services of this node")
        parser.add_argument(
            "--boot-loader",
            choices=(_AUTO, *host_files.BOOT_LOADERS),
            default=_AUTO,
            help="the tool that sets the kernel's command line: grub reads /etc/default/grub.d, "
            "grubby is a command; none: the words are only printed (default: the host's own "
            "tool)",
        )
        parser.add_argument(
            "--initramfs",
            choices=(_AUTO, *host_files.INITRAMFS),
            default=_AUTO,
            help="the tool that builds the initramfs (default: the host's own tool)",
        )
        parser.add_argument(
            "--write",
            type=Path,
            metavar="DIR",
            help="show the differences to the files below DIR, then write them there; / is this "
            "host",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="with --write: show the differences only"
        )
        parser.add_argument(
            "--remove",
            action="store_true",
            help="with --write: remove every file that this command has written",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> CommandAnswer:
        """Print the files with which the host starts ready for servers; or write or remove them."""
        args = parsed_args
        if (args.dry_run or args.remove) and args.write is None:
            raise CommandError("--dry-run and --remove need --write")
        if args.write is not None and not (args.write / "etc").is_dir():
            raise CommandError(
                f"there is no directory {args.write / 'etc'}: name the root of the host, /"
            )
        where = args.write or args.root
        boot_loader = _choose_boot_loader(where) if args.boot_loader == _AUTO else args.boot_loader
        initramfs = _choose_initramfs(where) if args.initramfs == _AUTO else args.initramfs
        wanted: HostStart = HostStart()
        wanted_files: tuple[File, ...] = ()
        if not args.remove:
            work = NodeSetup.read(configure_options.parse_as_configure(args, _PARTS))
            readable_node.check_cpus_read(work.node)
            _check_pages(work)
            wanted = _plan_prepared_host(work, args.root)
            wanted_files = host_files.build_host_files(wanted, boot_loader, initramfs)
            self._tell(wanted, boot_loader)
        if args.write is None:
            rows = [(f"/{file.path}", file.text) for file in wanted_files]
            return CommandAnswer(
                ("File", "Content"), rows, show=lambda: _print_host_files(wanted_files)
            )
        changes = find_host_file_changes(args.write, wanted_files)
        return self._write(args, wanted, wanted_files, changes, (boot_loader, initramfs))

    def _tell(self, wanted: HostStart, boot_loader: str) -> None:
        for note in wanted.notes:
            self.say(f"# {note}")
        if not wanted.needed:
            self.say("# No device of this node is for servers: nothing is to be prepared.")
        elif boot_loader == "none" and wanted.kernel_line:
            self.say(f"# Words of the kernel's command line: {' '.join(wanted.kernel_line)}")

    def _write(
        self,
        args: argparse.Namespace,
        wanted: HostStart,
        wanted_files: Sequence[File],
        changes: Sequence[FileChange],
        tools: tuple[str, str],
    ) -> CommandAnswer:
        states = {str(args.write / file.path): "unchanged" for file in wanted_files}
        for change in changes:
            self.say(change.diff() or f"{change.path}: permissions change\n", end="")
            done = "removed" if change.new is None else "written"
            states[str(change.path)] = f"would be {done}" if args.dry_run else done
        if not changes:
            self.say("Nothing to do.")
        elif args.dry_run:
            self.say(f"Nothing written: --dry-run. {len(changes)} files differ.")
        else:
            include_files.write_file_changes(list(changes))
            paths = frozenset(str(change.path.relative_to(args.write)) for change in changes)
            for line in host_files.commands_after_writing(wanted, paths, *tools):
                self.say(f"Run now: {line}")
            self.say("Then restart the host.")
        return CommandAnswer(_COLUMNS, list(states.items()))


def find_host_file_changes(root: Path, wanted: Sequence[File]) -> list[FileChange]:
    """Return the changes of files that ``prepare`` would make below *root*; change nothing.

    :raises IncludeError: this command did not write a file, or the file cannot be read.
    """
    changes = []
    for file in wanted:
        path = root / file.path
        old = include_files.read_plain_file(path)
        if old is not None and not host_files.is_prepared_file(old):
            raise IncludeError(f"{path} was not written by this command: move it away")
        if old != file.text or stat.S_IMODE(path.stat().st_mode) != file.mode:
            changes.append(FileChange(path, old, file.text, file.mode))
    for name in {*host_files.ALL} - {file.path for file in wanted}:
        path = root / name
        old = include_files.read_plain_file(path)
        if old is not None and host_files.is_prepared_file(old):
            changes.append(FileChange(path, old, None))
    return sorted(
        changes, key=lambda change: host_files.ALL.index(_relative_name_of(root, change.path))
    )


def find_host_file_drift(work: NodeSetup) -> tuple[str, ...]:
    """Return files of a prepared host that differ from the ones that ``prepare`` would write now.

    :returns: their paths or the problem as text; () if the host is not prepared.
    """
    if work.root is None:
        return ()
    there = [name for name in host_files.ALL if _is_own_host_file(work.root / name)]
    if not there:
        return ()  # another tool prepares the host
    tools = _choose_boot_loader(work.root), _choose_initramfs(work.root)
    try:
        changes = find_host_file_changes(
            work.root, host_files.build_host_files(_plan_prepared_host(work, work.root), *tools)
        )
    except IncludeError as error:
        return (str(error),)
    return tuple(f"/{_relative_name_of(work.root, change.path)}" for change in changes)


def _is_own_host_file(path: Path) -> bool:
    try:
        text = include_files.read_plain_file(path)
    except IncludeError:
        return False
    return text is not None and host_files.is_prepared_file(text)


def _relative_name_of(root: Path, path: Path) -> str:
    return str(path.relative_to(root))


def _plan_prepared_host(work: NodeSetup, root: Path) -> HostStart:
    kernel = vfio.read_vfio_kernel(FileTree(root))
    boot = at_boot.foresee_boot(
        work.node,
        work.table(),
        work.wishes,
        whole=work.whole.addresses,
        left_out=work.left_out.addresses,
        variant=lambda function: kernel.variant(
            vfio.alias_of(
                function.vendor_id,
                function.product_id,
                (function.subsystem_vendor_id, function.subsystem_id),
                function.class_code,
            )
        ),
    )
    offered = attrs.evolve(work, node=boot.node).offer()
    switches = [omitted for omitted in offered.spec.omitted if omitted.role == SWITCH_ROLE]
    quiet, notes = None, list(device_spec.format_omitted_lines(switches))
    if work.wishes.quiet_cpus:
        dedicated = work.told.configured.cpu_sets.get(settings.CPU_SETS[1])
        quiet, more = plan_quiet_cpus(work.node, dedicated)
        notes += more
    beside = host.companions_of_devices(boot, offered.spec, offered.roles, offered.declaration)
    plan = host.plan_host_start(
        boot,
        offered.spec,
        offered.roles,
        work.wishes,
        offered.declaration,
        never=frozenset(offered.withheld.never),
        used={
            address: holder.text
            for address, holder in holders.find_kernel_holders(root, beside).items()
        },
        iommu=_find_iommu_kind(FileTree(root)),
        kernel=kernel_options.read_kernel_options(root, host_files.ALL),
        quiet=quiet,
    )
    return attrs.evolve(plan, notes=(*plan.notes, *notes))


def _check_pages(work: NodeSetup) -> None:
    for numa in work.node.numa_nodes if work.wishes.hugepages else ():
        excess = page_memory.explain_excess(numa, work.wishes.hugepages or {})
        if numa.cpus and excess is not None:
            raise CommandError(
                f"{excess}; lower hugepages in the declaration, or declare 0 pages of a size that "
                "is needed no more"
            )


#: Table of the firmware -> kind of IOMMU; without such a table the processor decides.
_TABLES: Final = {"DMAR": "intel", "IVRS": "amd", "IORT": "arm"}
_PROCESSORS: Final = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "HygonGenuine": "amd"}


def _find_iommu_kind(tree: FileTree) -> str | None:
    try:
        tables = tree.names("/sys/firmware/acpi/tables")
    except FileError:
        tables = []
    kinds = [kind for name, kind in _TABLES.items() if name in tables]
    for line in (_read_tree_text(tree, "/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            kinds.append(_PROCESSORS.get(value.strip(), "intel"))
        elif key.strip() == "CPU implementer":
            kinds.append("arm")
    return kinds[0] if kinds else None


def _read_tree_text(tree: FileTree, path: str) -> str | None:
    try:
        return tree.text(path)
    except FileError:
        return None


# The choice of an earlier run wins over the tools that the host has.


def _choose_boot_loader(root: Path) -> str:
    if _is_own_host_file(root / host_files.GRUB):
        return "grub"
    if (root / "usr/sbin/grubby").exists():
        return "grubby"
    return "grub" if (root / "etc/default/grub").exists() else "none"


def _choose_initramfs(root: Path) -> str:
    if _is_own_host_file(root / host_files.HOOK) or (root / "etc/initramfs-tools").is_dir():
        return "initramfs-tools"
    if _is_own_host_file(root / host_files.DRACUT) or (root / "etc/dracut.conf.d").is_dir():
        return "dracut"
    return "none"


def _print_host_files(files: Sequence[File]) -> None:
    for number, file in enumerate(files):
        print(f"{'' if number == 0 else chr(10)}### /{file.path}\n{file.text}", end="")
