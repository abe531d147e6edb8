# SPDX-License-Identifier: Apache-2.0
"""The configuration disk of a node: made at each start, small, read-only in the node.

It contains everything that changes more often than the image: the project's own code, Nova's
configuration, keys, and the description of the node.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import importlib.util
import json
import py_compile
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node.contract import HOST_ADDRESS
from nova_hpc_lab.node.python_env import PROJECT
from nova_hpc_lab.node.qemu import GPU_IDS, GUEST_ADDRESS, NVME_IDS, WIDE_GPU_IDS
from nova_hpc_lab.node.shape import RAIL_NETWORK, Adapter, Gpu, Shape
from nova_hpc_lab.state import write

_NOT_INSTALLED: Final = "the project is not installed; run: pip install nova_hpc*.whl"
#: Distribution -> its packages that a compute node imports.
_PARTS: Final = {
    "nova-hpc": ("nova_hpc", "scheduler_filters", "virt_driver_patches"),
    "nova-hpc-client": ("nova_hpc_client",),
    "nova-hpc-common": ("nova_hpc_common",),
    "nova-hpc-guest": ("nova_hpc_guest",),
    "nova-hpc-requirements": ("nova_hpc_requirements",),
    "nova-hpc-tools": ("nova_hpc_tools",),
}
_INSIDE: Final = Path(__file__).parent / "inside"
_SIZE: Final = "48M"

# Nova's options that an emulated node needs.
_LAB_SETTINGS: Final = """\
[DEFAULT]
reserved_host_memory_mb = 512
resume_guests_state_on_host_boot = true
# The lab's guests do not listen to the power button.
shutdown_timeout = 5

[libvirt]
# libvirt knows no model for what the emulator offers.
cpu_mode = host-passthrough

[hpc]
# On each NUMA node, for servers that share it; a part of what is reserved above.
shared_memory_mb = 128
"""


def make(
    target: Path, name: str, number: int, shape: Shape, files: Mapping[str, str], folder: Path
) -> None:
    """Write the disk to *target*, in one step.

    :param name: the node's name; *number* is its number, from 1.
    :param files: name below ``/etc/nova`` of the node -> content.
    :param folder: the node's folder, which contains its keys and identity.
    :raises LabError: a file name leads out of ``/etc/nova``, or a tool failed.
    """
    make_keys(folder)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".config-") as temporary:
        tree = Path(temporary) / "tree"
        tree.mkdir()
        _nova(tree / "nova", files)
        (tree / "lab.conf").write_text(_LAB_SETTINGS)
        document = describe(name, number, shape, _identity(folder))
        (tree / "node.json").write_text(json.dumps(document, indent=1))
        shutil.copytree(_INSIDE, tree / "inside", ignore=shutil.ignore_patterns("__pycache__"))
        _keys(tree / "keys", folder)
        _project(tree / Path(PROJECT).name)
        disk = Path(temporary) / "disk"
        _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(tree), str(disk), _SIZE)
        disk.chmod(0o600)
        disk.replace(target)


def describe(name: str, number: int, shape: Shape, identity: str) -> dict[str, object]:
    """Return the facts for the node's own start-up script, as a JSON object."""
    devices = [device for _, device in shape.devices()]
    return {
        "name": name,
        "uuid": identity,
        "address": GUEST_ADDRESS,
        "gateway": HOST_ADDRESS,
        "gpu_ids": list(GPU_IDS),
        "gpus": sum(isinstance(device, Gpu) and not device.wide for device in devices),
        "wide_gpu_ids": list(WIDE_GPU_IDS),
        "wide_gpus": sum(isinstance(device, Gpu) and device.wide for device in devices),
        "rail_network": RAIL_NETWORK,
        "nvme_ids": list(NVME_IDS),
        "nvmes": len(shape.disks),
        "adapters": [
            {
                "name": device.name,
                "mac": device.pf_mac(number),
                "vfs": list(device.vf_macs(number)),
                "network": device.network,
                "rail": device.rail,
            }
            for device in devices
            if isinstance(device, Adapter)
        ],
        "hugepages": [node.hugepages for node in shape.numa_nodes],
    }


def make_keys(folder: Path) -> None:
    """Make the SSH keys of the user and of the node, unless they exist."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("ssh-key", "ssh-host-key"):
        path = folder / name
        if not (path.exists() and path.with_suffix(".pub").exists()):
            path.unlink(missing_ok=True)
            path.with_suffix(".pub").unlink(missing_ok=True)
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "nova-hpc", "-f", str(path))


def _identity(folder: Path) -> str:
    path = folder / "uuid"
    try:
        return str(uuid.UUID(path.read_text().strip()))
    except (OSError, ValueError):
        write(path, f"{uuid.uuid4()}\n")
        return path.read_text().strip()


def _nova(folder: Path, files: Mapping[str, str]) -> None:
    if "nova.conf" not in files:
        raise LabError("the cloud gave the node no nova.conf")
    folder.mkdir()
    for name, text in files.items():
        if name.startswith("/") or ".." in Path(name).parts:
            raise LabError(f"{name} is no name of a file below /etc/nova")
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)


def _keys(target: Path, folder: Path) -> None:
    target.mkdir(mode=0o700)
    shutil.copy2(folder / "ssh-host-key", target / "host")
    shutil.copy2(folder / "ssh-key.pub", target / "authorized")


def _project(target: Path) -> None:
    """Copy this process's packages of the project, compiled, with their entry points."""
    target.mkdir()
    for distribution, packages in _PARTS.items():
        for name in packages:
            shutil.copytree(
                _folder(name), target / name, ignore=shutil.ignore_patterns("__pycache__", "*.swp")
            )
        _copy_metadata(distribution, target)
    compileall.compile_dir(
        target,
        quiet=2,
        stripdir=str(target),
        prependdir=PROJECT,
        # The disk is read-only, so Python need not compare compiled files with their sources.
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _copy_metadata(distribution: str, target: Path) -> None:
    try:
        metadata = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError as err:
        raise LabError(_NOT_INSTALLED) from err
    information = target / f"{distribution.replace('-', '_')}-{metadata.version}.dist-info"
    information.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = metadata.read_text(name)
        if text is not None:
            (information / name).write_text(text)


def _folder(package: str) -> Path:
    """Return the folder of a package of the project, found without an import: two need Nova."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise LabError(_NOT_INSTALLED)
    return Path(found.origin).parent


def _run(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as err:
        raise LabError(f"cannot run {argv[0]}: {err.strerror}; is it installed?") from err
    if done.returncode:
        raise LabError(f"{argv[0]} failed (status {done.returncode}): {done.stderr.strip()}")
