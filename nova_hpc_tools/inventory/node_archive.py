# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc inventory --save`` and ``--from``: a node as an archive, for reports of bugs.

The archive contains only the files that the reader of the node has read. Identities of
the machine and its hardware are replaced before anything is written. Consecutive numbers replace
serial numbers, MACs and GUIDs, the same original always by the same number; ``node`` replaces the
name of the host. A manifest in the archive lists the replaced kinds (:mod:`nova_hpc.wire.capture`).
"""

from __future__ import annotations

import contextlib
import io
import lzma
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from nova_hpc.topology import atomic_files, sysfs
from nova_hpc.topology.files import FileError, FileTree, decode_kernel_text, show_path
from nova_hpc.topology.model import InventoryError
from nova_hpc.wire import capture
from nova_hpc_tools.inventory import config_essence, nccl_node
from nova_hpc_tools.inventory.record import Entry, RecordingTree, ReplayTree

_HOSTNAME: Final = "/proc/sys/kernel/hostname"
#: The most bytes and files: far more than the largest node has, and little enough for memory.
_LARGEST: Final = 1 << 26
_MOST: Final = 1 << 18

_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
_GUID: Final = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_SAYING: Final = re.compile(r"[0-9A-Za-z]")
_GUID_FILE: Final = re.compile(r"/infiniband/[^/]+/(?:node_guid|ports/\d+/gids/\d+)")
_HIVE: Final = "xgmi_hive_id"
#: The default prefix of a GID.
_LINK_LOCAL: Final = "fe80:0000:0000:0000"
#: The name of a network interface or an RDMA device in a path.
_DEVICE: Final = re.compile(r"(?<=/net/)[^/]+|(?<=/infiniband/)[^/]+")
#: A MAC or GUID in a name by systemd or rdma-core: enx0c42a1000001, rocexe41d2d....
_NAMED_BY: Final = re.compile(r"(?<=x)(?:[0-9a-f]{16}|[0-9a-f]{12})(?![0-9a-f])")
#: File name -> the lines that are read; only these are kept.
_LINES: Final = {
    "cpuinfo": re.compile(
        r"(?:processor|vendor_id|cpu family|model|model name|CPU implementer|cpu)\s*:.*", re.ASCII
    ),
    "meminfo": re.compile(
        r"(?:Node\s+\d+\s+)?(?:MemTotal|HugePages_\w+|Hugepagesize):.*", re.ASCII
    ),
    # For KFD's nodes and links: a node's file also contains the serial number of its GPU.
    "properties": re.compile(r"(?:domain|location_id|type|node_from|node_to)\s+\d+", re.ASCII),
}


class HiddenIdentities:
    """The identities (serial numbers, MACs, host name) to hide in an archive, and their
    stand-ins.
    """

    def __init__(self) -> None:
        self._stand_ins: dict[bytes, bytes] = {}
        self._host: tuple[str, ...] = ()
        self._patterns: tuple[re.Pattern[str], re.Pattern[str]] | None = None

    def __len__(self) -> int:
        return len(self._stand_ins)

    def add(self, identity: bytes) -> bytes:
        """Add the bytes of a MAC, a GUID or a serial number, and return their stand-in.

        The stand-in is a locally administered number, which no manufacturer assigns. Numbers
        are counted in the order of the calls. All zeros or all ones identify nothing and stay.
        """
        if not identity.strip(b"\0") or not identity.strip(b"\xff"):
            return identity
        if identity not in self._stand_ins:
            number = 1 + sum(len(original) == len(identity) for original in self._stand_ins)
            self._stand_ins[identity] = capture.stand_in(number, len(identity))
            self._patterns = None
        return self._stand_ins[identity]

    def add_host(self, name: str) -> None:
        """Hide the name of the host, long and short, as ``node`` from now on."""
        both = (name, name.partition(".")[0])
        # A name like "10" or "cafe" also occurs in unrelated numbers.
        self._host = tuple(
            host_name
            for host_name in both
            if len(host_name) > 2 and not set(host_name) <= _DIGITS and host_name != capture.NAME
        )

    def hide(self, text: str, names: bool = True) -> str:
        """Replace every identity (GUID, MAC, serial number) in *text* by a stand-in.

        :param names: also replace the name of the host.
        """
        if self._patterns is None:
            # An identity of few different bytes would match in unrelated numbers.
            telling = [raw for raw in self._stand_ins if len(set(raw) - {0, 0xFF}) > 2]
            orders = [order for raw in telling for order in (raw, raw[::-1])]
            # With or without a separator between the bytes.
            digits = ("[:._ -]?".join(f"{byte:02x}" for byte in order) for order in orders)
            characters = (re.escape(order.decode("latin-1")) for order in orders)
            self._patterns = (
                re.compile("|".join(digits) or "(?!)", re.IGNORECASE),
                re.compile("|".join(characters) or "(?!)"),
            )
        text = self._patterns[0].sub(lambda match: self._written(match[0]), text)
        text = self._patterns[1].sub(lambda match: "*" * len(match[0]), text)
        for host in self._host if names else ():
            text = re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", capture.NAME, text, flags=re.I)
        return text

    def hide_inside(self, text: str) -> str:
        """Replace identities like :meth:`hide`, and the host's name also inside another name."""
        text = self.hide(text)
        for host in self._host:
            text = re.sub(re.escape(host), capture.NAME, text, flags=re.I)
        return text

    def is_in(self, text: str) -> bool:
        """Whether *text* still contains an identity that is not also a stand-in."""
        standing = set(self._stand_ins.values())
        for pattern, encoding in zip(self._patterns or (), (None, "latin-1"), strict=False):
            for match in pattern.finditer(text):
                raw = (
                    match[0].encode(encoding)
                    if encoding
                    else bytes.fromhex("".join(char for char in match[0] if char in _DIGITS))
                )
                if not {raw, raw[::-1]} & standing:
                    return True
        return False

    def _written(self, text: str) -> str:
        """Return the stand-in for the identity *text*, in the notation and byte order of *text*."""
        raw = bytes.fromhex("".join(char for char in text if char in _DIGITS))
        stand_in = self._stand_ins.get(raw) or self._stand_ins[raw[::-1]][::-1]
        digits = iter(stand_in.hex())
        return "".join(next(digits) if char in _DIGITS else char for char in text)


def anonymise_record(
    record: Mapping[str, Entry],
    keep_names: bool = False,
    others: Iterable[bytes] = (),
    keep_serials: bool = False,
) -> tuple[dict[str, Entry], HiddenIdentities]:
    """Replace the identities of the machine and its hardware in a record of files.

    :param keep_names: keep the name of the host.
    :param others: further MACs and GUIDs, which are not from files of the record.
    :param keep_serials: keep the serial numbers of PCI functions.
    :returns: the new record, and the identities that were replaced in it.
    """
    identities = HiddenIdentities()
    host = record.get(_HOSTNAME)
    if isinstance(host, bytes) and not keep_names:
        identities.add_host(host.decode("ascii", "replace").strip())
    for path, entry in sorted(record.items()):
        for name in _DEVICE.findall(path):
            for digits in _NAMED_BY.findall(name):
                identities.add(bytes.fromhex(digits))
        for identity in (
            _identities_in_file(path, entry, keep_serials) if isinstance(entry, bytes) else ()
        ):
            identities.add(identity)
    for identity in others:
        identities.add(identity)
    new_record: dict[str, Entry] = {}
    for path, entry in record.items():
        if isinstance(entry, bytes):
            entry = _anonymise_file(path, entry, identities, keep_serials)
        elif isinstance(entry, str):
            entry = _DEVICE.sub(lambda match: _anonymise_device_name(match[0], identities), entry)
            entry = identities.hide(entry, names=False)
        new_record[
            _DEVICE.sub(lambda match: _anonymise_device_name(match[0], identities), path)
        ] = entry
    if isinstance(host, bytes) and host.strip() and not keep_names:
        new_record[_HOSTNAME] = f"{capture.NAME}\n".encode()
    return new_record, identities


def _identities_in_file(path: str, data: bytes, keep_serials: bool) -> Iterator[bytes]:
    """Yield the GUIDs or the serial number in a file, as bytes."""
    serial = config_essence.serial_at(data) if path.endswith("/config") else None
    if serial is not None and not keep_serials:
        yield data[serial : serial + 8][::-1]
    yield from (bytes.fromhex(guid.replace(":", "")) for guid in _guids_in_file(path, data))


def _guids_in_file(path: str, data: bytes) -> list[str]:
    """Read a device's GUID, or the prefix and GUID of a port, as the kernel writes them."""
    text = data.decode("ascii", "replace").strip()
    if _GUID_FILE.search(path) is None or not re.fullmatch(rf"(?:{_GUID.pattern}:?){{1,2}}", text):
        return []
    return [guid for guid in _GUID.findall(text) if guid != _LINK_LOCAL]


def _anonymise_file(
    path: str, data: bytes, identities: HiddenIdentities, keep_serials: bool
) -> bytes:
    name = path.rpartition("/")[2]
    if name == "config":
        data = config_essence.config_essence_of(data)
        serial = config_essence.serial_at(data)
        if serial is None or keep_serials:
            return data
        stand_in = identities.add(data[serial : serial + 8][::-1])[::-1]
        return data[:serial] + stand_in + data[serial + 8 :]
    try:
        text = decode_kernel_text(data, path) + "\n"
    except FileError:
        return b"\xff\n"  # not a text, like the original, but without its bytes
    if name == _HIVE:
        return _anonymise_hive(text, identities)
    if name in _LINES:
        lines = [line for line in text.splitlines() if _LINES[name].fullmatch(line)]
        # An operator can choose the CPUs' model name in a hypervisor; the kernel writes the rest.
        hidden = (
            identities.hide_inside(line)
            if line.startswith("model name")
            else identities.hide(line, names=False)
            for line in lines
        )
        return "".join(f"{line}\n" for line in hidden).encode("ascii")
    if _guids_in_file(path, data):
        # All GUIDs in these files are identities, also those of few different bytes.
        return _GUID.sub(lambda match: _anonymise_guid(match[0], identities), text).encode("ascii")
    if _GUID_FILE.search(path) is not None:
        # A file for an identity, in an unknown form: mask all of its letters and digits.
        text = _SAYING.sub("*", text)
    return identities.hide(text).encode("ascii")


def _anonymise_hive(text: str, identities: HiddenIdentities) -> bytes:
    """Replace the number of an xGMI hive, which contains a GPU's serial number, by a stand-in."""
    number = text.strip()
    if not re.fullmatch(r"\d{1,19}", number, re.ASCII):
        return _SAYING.sub("*", text).encode("ascii")
    stand_in = int.from_bytes(identities.add(int(number).to_bytes(8, "big")), "big")
    return f"{stand_in}\n".encode("ascii")


def _anonymise_guid(text: str, identities: HiddenIdentities) -> str:
    if text == _LINK_LOCAL:
        return text
    digits = identities.add(bytes.fromhex(text.replace(":", ""))).hex()
    return ":".join(digits[index : index + 4] for index in range(0, 16, 4))


def _anonymise_device_name(name: str, identities: HiddenIdentities) -> str:
    named = _NAMED_BY.sub(lambda match: identities.add(bytes.fromhex(match[0])).hex(), name)
    return identities.hide_inside(named)


def check_hidden(record: Mapping[str, Entry], identities: HiddenIdentities) -> None:
    """Check that no replaced identity is left in the record, in any file or link.

    The name of the host is searched only in names of interfaces and RDMA devices. The kernel's own
    paths contain words like ``node1`` and ``vmd``, which identify nothing.

    :raises InventoryError: an identity is left; the text names the file, not the identity.
    """
    for path, entry in record.items():
        texts = [path, entry] if isinstance(entry, str) else [path]
        if isinstance(entry, bytes) and not path.endswith("/config"):
            texts.append(entry.decode("latin-1"))
        names = [name for text in texts[:2] for name in _DEVICE.findall(text)]
        if any(map(identities.is_in, texts)) or any(
            identities.hide_inside(name) != name for name in names
        ):
            raise InventoryError(
                f"--save: {path if path.isprintable() else ascii(path)} would reveal a value "
                "that has to be replaced, so nothing was written; please report this with the "
                "kind of the file"
            )


def save_node_archive(
    root: Path, target: Path, keep_names: bool = False, keep_serials: bool = False
) -> str:
    """Save the files of the node below *root* as the archive *target*.

    :param keep_names: keep the name of the host.
    :param keep_serials: keep the serial numbers of PCI functions.
    :returns: a line about the content of the archive.
    :raises InventoryError: the archive cannot be written, or there is no node below *root*.
    """
    recorder = RecordingTree(root)
    node = sysfs.read_tree(recorder, show_path(root))
    nccl_node.read_nccl_processor(recorder)
    if not node.functions and not node.cpus:
        raise InventoryError(f"--root {show_path(root)}: neither CPUs nor PCI functions below it")
    record = recorder.record()
    addresses = _hardware_addresses(root, record)
    record, identities = anonymise_record(record, keep_names, addresses, keep_serials)
    replaced = {
        capture.ADDRESSES,
        *(() if keep_names else (capture.HOST,)),
        *(() if keep_serials else (capture.SERIALS,)),
        # *root* may be an unpacked archive, whose kinds were replaced before.
        *(capture.replaced_kinds_of(FileTree(root)) or ()),
    }
    check_hidden(record, identities)
    record[capture.PLACE] = capture.write_capture_note(replaced).encode("ascii")
    try:
        atomic_files.write_file(target, _pack_archive(record))
    except OSError as error:
        raise InventoryError(f"--save {show_path(target)}: {error.strerror}") from error
    names = f"the host is called {capture.NAME!r}"
    what = "MACs and GUIDs" if keep_serials else "serial numbers, MACs and GUIDs"
    return (
        f"{show_path(target)}: {len(record)} files, links and directories; "
        f"{len(identities)} {what} "
        f"replaced; {'the host keeps its name' if keep_names else names}"
        f"{'; serial numbers are kept' if keep_serials else ''}"
    )


def _hardware_addresses(root: Path, record: Mapping[str, Entry]) -> list[bytes]:
    """Read the MACs of network interfaces, as bytes.

    The record lacks their files, but other texts may repeat them.
    """
    tree = FileTree(root)
    addresses = []
    for path in sorted(record):
        if path.rpartition("/")[0].endswith("/net"):
            with contextlib.suppress(FileError, ValueError):
                raw = bytes.fromhex((tree.text(f"{path}/address") or "").replace(":", ""))
                # The address of an InfiniBand interface ends with the GUID of its port.
                addresses.append(raw[-8:] if len(raw) == 20 else raw)
    return [raw for raw in addresses if len(raw) in (6, 8)]


def _pack_archive(record: Mapping[str, Entry]) -> bytes:
    """Pack the record into a ``.tar.xz``; equal records give equal bytes."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:xz", preset=2) as archive:
        for path, entry in sorted(record.items()):
            info = tarfile.TarInfo(path.lstrip("/"))
            if not info.name:
                continue
            if isinstance(entry, bytes):
                info.size = len(entry)
                archive.addfile(info, io.BytesIO(entry))
                continue
            info.type = tarfile.DIRTYPE if entry is None else tarfile.SYMTYPE
            info.linkname = entry or ""
            info.mode = 0o755
            archive.addfile(info)
    return target.getvalue()


def load_node_archive(path: Path) -> FileTree:
    """Load an archive; the result is read like the files of the machine.

    No file is unpacked to the disk, as the archive may be malicious.

    :raises InventoryError: the file is missing, or is not an archive of a node.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(_LARGEST)
        decompressor = lzma.LZMADecompressor(memlimit=_LARGEST << 2)
        data = decompressor.decompress(packed, _LARGEST)
        if not decompressor.eof:
            raise InventoryError(f"--from {show_path(path)}: cut short, or too large for a node")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            return ReplayTree(_read_archive_entries(archive))
    except OSError as error:
        raise InventoryError(f"--from {show_path(path)}: {error.strerror or error}") from error
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise InventoryError(
            f"--from {show_path(path)}: not an archive that --save wrote ({error})"
        ) from error


def _read_archive_entries(archive: tarfile.TarFile) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for member in archive:
        parts = member.name.split("/")
        if not {"", ".", ".."}.isdisjoint(parts) or len(entries) >= _MOST:
            raise ValueError(f"{member.name[:80]!a} has no place in it")
        path = f"/{member.name}"
        if member.issym():
            entries[path] = member.linkname
        elif member.isdir():
            entries[path] = None
        elif member.isreg() and not member.issparse() and member.size <= _LARGEST:
            file = archive.extractfile(member)
            entries[path] = b"" if file is None else file.read()
        else:
            raise ValueError(f"{member.name[:80]!a} is of a kind that no node has")
    return entries
