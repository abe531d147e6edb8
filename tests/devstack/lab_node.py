# SPDX-License-Identifier: Apache-2.0
"""The lab's virtual node as a compute node of a devstack: its guests prove their devices.

stack.sh is not run in it: the processor is emulated. It has its own Nova, and takes from the
controller what devstack would write on a subnode: the message broker, and the users of services.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from nova_hpc_lab import config, node
from nova_hpc_lab.machines import IMAGE_PROPERTIES
from nova_hpc_lab.process import Process
from nova_hpc_lab.state import DEFAULT_BASE_PORT, Paths, Settings
from tests.devstack.container import Machine

SHAPE = "mirror"
#: What flavors of the devstack call the node's devices: its own host has another kind of GPU.
PREFIX = "lab-"
IMAGE = "lab-guest"
#: Sections of nova.conf with the users of nova-compute at other services.
_USERS = ("placement", "glance", "neutron", "service_user")


@attrs.define
class NamespaceProcess(Process):
    """A process in a network namespace."""

    namespace: str = ""

    def spawn(self, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
        return super().spawn(["ip", "netns", "exec", self.namespace, *argv], environ)


class SubNode(node.Node):
    """A virtual node beside a controller: what it connects to is in the controller's namespace."""

    def __init__(self, controller: Machine, paths: Paths) -> None:
        shape = node.Shape.load(SHAPE)
        super().__init__(1, shape, paths, ControllerFiles(controller, shape))
        self._namespace = controller.name
        self.process = NamespaceProcess(self.process.name, paths, controller.name)

    def ssh_argv(self, command: Sequence[str] = ()) -> list[str]:
        return ["ip", "netns", "exec", self._namespace, *super().ssh_argv(command)]


@attrs.frozen
class ControllerFiles:
    """Nova's configuration for a node that joins a devstack; see :class:`node.NodeCloud`."""

    controller: Machine
    shape: node.Shape

    def compute_files(self, host: str, host_address: str) -> Mapping[str, str]:
        """The lab's own settings of the node, with the controller's broker and users."""
        theirs = configparser.RawConfigParser(strict=False)
        theirs.read_string(self.controller.call("cat /etc/nova/nova-cpu.conf")[1])
        settings = Settings.fresh(DEFAULT_BASE_PORT, 1, SHAPE)
        ours = config.compute(settings, host, host_address, self.shape.network_roles)
        sections: dict[str, Mapping[str, Any]] = dict(ours)
        url = {"transport_url": theirs["DEFAULT"]["transport_url"]}
        sections["DEFAULT"] = {**sections["DEFAULT"], **url}
        for name in _USERS:
            own = theirs[name].items() if name in theirs else ()
            sections[name] = {key: value for key, value in own if key not in theirs.defaults()}
        return {"nova.conf": config.render(sections)}


def add_aliases(controller: Machine) -> None:
    """Name the node's devices to Nova's API and scheduler, and start them again."""
    text = controller.call("cat /etc/nova/nova.conf")[1]
    aliases = [
        f"alias = {json.dumps({**alias, 'name': PREFIX + alias['name']})}"
        for alias in config.ALIASES
    ]
    if aliases[0] in text:
        return
    (controller.tree / "etc/nova/nova.conf").write_text(
        text.replace("[pci]\n", "\n".join(["[pci]", *aliases, ""]))
    )
    units = "devstack@n-api devstack@n-sch devstack@n-super-cond devstack@n-cond-cell1"
    controller.call(f"systemctl restart {units}", user="root")


def upload_guest(controller: Machine, admin: str, paths: Paths) -> None:
    """The image of the lab's guests: a kernel, an initramfs and an empty disk."""
    parts = {}
    for word, path, form in zip(
        ("kernel_id", "ramdisk_id"), node.guest_image(paths), ("aki", "ari"), strict=True
    ):
        name = f"{IMAGE}-{form}"
        (controller.tree / "opt/stack" / name).write_bytes(Path(path).read_bytes())
        form = f"--disk-format {form} --container-format {form}"
        create = f"openstack image create --public {form} --file {name} -f value -c id {name}"
        parts[word] = controller.call(f"{admin}{create}")[1].split()[-1]
    # Nova wants a disk image even where kernel and initramfs are all there is.
    (controller.tree / "opt/stack" / IMAGE).write_bytes(bytes(1 << 20))
    properties = " ".join(
        f"--property {key}='{value}'" for key, value in {**IMAGE_PROPERTIES, **parts}.items()
    )
    form = "--disk-format raw --container-format bare"
    controller.call(
        f"{admin}openstack image create --public {form} {properties} --file {IMAGE} {IMAGE}"
    )
