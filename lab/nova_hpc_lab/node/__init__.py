# SPDX-License-Identifier: Apache-2.0
"""The virtual HPC node: an emulated machine with two NUMA nodes, a VT-d IOMMU,
PCIe switches, SR-IOV adapters and GPU stand-ins, real libvirt and nova-compute.

Use from the rest of the lab::

    shape = Shape.load("two-socket")              # a sample, or a YAML file
    prepare_image(paths, progress)                # cached, minutes only once
    kernel, initramfs = guest_image(paths)        # for the tenants' servers
    node = Node(1, shape, paths, cloud)           # named "hpc1"
    node.start()                                  # returns at once
    node.status().state                           # STARTING ... UP
    subprocess.run(node.ssh_argv(["virsh", "list"]))
    node.stop()
"""

from nova_hpc_lab.node.contract import (
    HOST_ADDRESS,
    NodeCloud,
    NodeStatus,
    Progress,
    State,
)
from nova_hpc_lab.node.guest import GuestReport, guest_image, parse_report
from nova_hpc_lab.node.image import Image, prepare_image
from nova_hpc_lab.node.machine import Node
from nova_hpc_lab.node.shape import Shape, ShapeError, sample_names

__all__ = [
    "HOST_ADDRESS",
    "GuestReport",
    "Image",
    "Node",
    "NodeCloud",
    "NodeStatus",
    "Progress",
    "Shape",
    "ShapeError",
    "State",
    "guest_image",
    "parse_report",
    "prepare_image",
    "sample_names",
]
