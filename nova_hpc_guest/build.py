# SPDX-License-Identifier: Apache-2.0
"""Pack the command for guests: a single file, or a part of cloud-init's user data.

``python3 -m nova_hpc_guest.build FILE`` writes the command itself, with
``--cloud-config`` user data that installs it and its systemd units, and with ``--unit`` or
``--shared-memory-unit`` a unit. ``--elements`` prints the path of the directory with the elements
for diskimage-builder.
"""

from __future__ import annotations

import argparse
import ast
import base64
import gzip
import io
import sys
import tokenize
import zipfile
from pathlib import Path
from typing import Final

COMMAND: Final = "/usr/local/bin/nova-hpc-guest"
UNITS: Final = "/etc/systemd/system"
UNIT: Final = f"{UNITS}/nova-hpc-guest.service"
SHARED_UNIT: Final = f"{UNITS}/nova-hpc-shared-memory.service"
#: The units of a cluster, which refresh the host list regularly.
CLUSTER_UNITS: Final = ("nova-hpc-cluster.service", "nova-hpc-cluster.timer")

_HERE: Final = Path(__file__).parent
_UNIT_FILE: Final = _HERE / "data/nova-hpc-guest.service"
_SHARED_UNIT_FILE: Final = _HERE / "data/nova-hpc-shared-memory.service"
#: The roles of the units that follow a share of a GPU.
_GPU_ENDS: Final = ("client", "serve")
_MODULES: Final = (
    "__init__",
    "cluster_files",
    "command",
    "compare",
    "disks",
    "document",
    "files",
    "host_list",
    "install",
    "machine",
    "own_metadata",
    "peers",
    "pkeys",
    "rdma_devices",
    "segment",
    "shared_memory",
    "shared_settings",
    "shared_use",
    "show",
    "terms",
    "topology",
)
_ACCEPT: Final = tuple(
    f"accept/{name}"
    for name in (
        "__init__.py",
        "baseline.py",
        "cause_facts.py",
        "causes.py",
        "child_all_reduce.py",
        "child_clock.py",
        "child_dgemm.py",
        "counters.py",
        "diagnosis.py",
        "distribution.py",
        "evidence.py",
        "facts.py",
        "fillings.py",
        "first_sample.py",
        "gpus.py",
        "measuring.py",
        "network.py",
        "options.py",
        "own_probes.py",
        "picture.py",
        "probes.py",
        "published.json",
        "published.py",
        "ratio.py",
        "rdma_ports.py",
        "readings.py",
        "refusal.py",
        "result.py",
        "rounds.py",
        "sample.py",
        "scratch.py",
        "session.py",
        "toolbox.py",
        "tools.py",
        "views.py",
    )
)
_GPU: Final = tuple(
    f"gpu/{name}"
    for name in (
        "__init__.py",
        "announcements.py",
        "attached.py",
        "command.py",
        "engines.py",
        "engines/lupine.ini",
        "engines/pocl.ini",
        "job.py",
        "lifeline.py",
        "mps.py",
        "packet_filter.py",
        "port_rule.py",
        "records.py",
        "serving.py",
        "system.py",
        "tunnel.py",
        "units.py",
    )
)
_MAIN: Final = "import sys\nfrom nova_hpc_guest.command import main\nsys.exit(main())\n"
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
#: Built twice it is the same file, byte for byte.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def single_file(accept: bool = True) -> bytes:
    """Return the command as one executable file that needs ``python3`` and nothing else.

    :param accept: with ``nova-hpc-guest accept``, which is larger than all the rest, and ``gpu``.
        Without them nothing is compressed: user data are, and take less when that is done once.
        Comments and docstrings are left out then.
    """
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        _add_archive_file(archive, "__main__.py", _MAIN.encode())
        files = [f"{module}.py" for module in _MODULES]
        for name in (*files, *((*_ACCEPT, *_GPU, "completion.py") if accept else ())):
            data = (_HERE / name).read_bytes()
            data = data if accept else drop_comments(data.decode()).encode()
            _add_archive_file(archive, f"nova_hpc_guest/{name}", data, packed=accept)
    return b"#!/usr/bin/env python3\n" + target.getvalue()


def drop_comments(text: str) -> str:
    """Remove comments, docstrings and blank lines of a module; its first line stays."""
    lines: list[str | None] = list(text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        number, column = token.start
        comment = token.type == tokenize.COMMENT and number > 1
        # A blank line within a string is no token.
        if (comment or token.type == tokenize.NL) and not token.line[:column].strip():
            lines[number - 1] = None
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
            continue
        first, last = node.body[0].lineno - 1, node.body[0].end_lineno or 0
        lines[first:last] = [None] * (last - first)
        if len(node.body) == 1:
            lines[first] = f"{' ' * node.body[0].col_offset}pass"
    return "".join(f"{line}\n" for line in lines if line is not None)


def _add_archive_file(
    archive: zipfile.ZipFile, name: str, data: bytes, packed: bool = True
) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    archive.writestr(info, data)


def cloud_config() -> str:
    """Return user data of cloud-init that install the command and start it at each boot.

    Nova limits user data to 64 KiB, which is too little for ``accept`` and ``gpu``.
    """
    return "\n".join(
        [
            "#cloud-config",
            "write_files:",
            *_format_cloud_file(COMMAND, single_file(accept=False), "0755"),
            *_format_cloud_unit(UNIT, _UNIT_FILE),
            *_format_cloud_unit(SHARED_UNIT, _SHARED_UNIT_FILE),
            *(
                line
                for unit in CLUSTER_UNITS
                for line in _format_cloud_unit(f"{UNITS}/{unit}", _HERE / "data" / unit)
            ),
            "groups: [hpc]",
            "runcmd:",
            "  - [systemctl, daemon-reload]",
            "  - [systemctl, enable, --now, nova-hpc-guest.service]",
            "  - [systemctl, enable, --now, nova-hpc-shared-memory.service]",
            "  - [systemctl, enable, --now, nova-hpc-cluster.timer]",
            "",
        ]
    )


def _format_cloud_unit(path: str, unit: Path) -> list[str]:
    """Format cloud-init's lines for a systemd unit without its comments."""
    lines = unit.read_bytes().splitlines(keepends=True)
    data = b"".join(line for line in lines if not line.startswith(b"#"))
    return _format_cloud_file(path, data, "0644")


def _format_cloud_file(path: str, data: bytes, mode: str) -> list[str]:
    packed = base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii")
    return [
        f"  - path: {path}",
        f"    permissions: '{mode}'",
        "    owner: root:root",
        "    encoding: gz+b64",
        f"    content: {packed}",
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the file that the arguments request; return 0, or 2 after printing an error line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m nova_hpc_guest.build", description="Pack the command for guests."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--cloud-config", action="store_true", help="write user data of cloud-init")
    what.add_argument("--unit", action="store_true", help="write the unit of systemd")
    what.add_argument(
        "--shared-memory-unit",
        action="store_true",
        help="write the unit that makes the memory usable which servers of a group share",
    )
    what.add_argument(
        "--gpu-unit", choices=_GPU_ENDS, help="write the unit of one end of a shared GPU"
    )
    what.add_argument(
        "--cluster-unit",
        choices=CLUSTER_UNITS,
        help="write a unit that follows the host list of a cluster",
    )
    what.add_argument(
        "--elements",
        action="store_true",
        help="print the directory of the elements nova-hpc-guest and nova-hpc-cluster",
    )
    parser.add_argument("file", type=Path, metavar="FILE", nargs="?", help="where to write it")
    options = parser.parse_args(arguments)
    if options.elements:
        print(_HERE / "elements")
        return 0
    if options.file is None:
        parser.error("FILE is missing: where to write it")
    target: Path = options.file
    try:
        if options.cloud_config:
            target.write_text(cloud_config())
        elif options.unit:
            target.write_bytes(_UNIT_FILE.read_bytes())
        elif options.shared_memory_unit:
            target.write_bytes(_SHARED_UNIT_FILE.read_bytes())
        elif options.cluster_unit:
            target.write_bytes((_HERE / "data" / options.cluster_unit).read_bytes())
        elif options.gpu_unit:
            unit = _HERE / f"data/nova-hpc-gpu-{options.gpu_unit}.service"
            target.write_bytes(unit.read_bytes())
        else:
            target.write_bytes(single_file())
            target.chmod(0o755)
    except OSError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
