# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: which PCI functions play which role."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

DEFAULT_ROLES: Final = [
    # NVSwitch is a bridge-class function of NVIDIA, so its entry comes before the GPUs'.
    '{"role": "nvswitch", "vendor_id": "10de", "class": "0680"}',
    '{"role": "gpu", "vendor_id": "10de", "class": "0302"}',
    '{"role": "gpu", "vendor_id": "10de", "class": "0300"}',
    '{"role": "gpu", "vendor_id": "1002", "class": "1200"}',
    '{"role": "gpu", "vendor_id": "1002", "class": "0380"}',
    '{"role": "gpu", "vendor_id": "8086", "class": "0380"}',
    '{"role": "gpu", "vendor_id": "8086", "class": "1200"}',
    # An adapter on another fabric is another device, although its ids are the same.
    '{"role": "vf", "vendor_id": "15b3", "link_layer": "InfiniBand", "dev_type": "type-VF"}',
    '{"role": "pf", "vendor_id": "15b3", "link_layer": "InfiniBand", "dev_type": "type-PF"}',
    '{"role": "nic", "vendor_id": "15b3", "link_layer": "InfiniBand"}',
    '{"role": "ethvf", "vendor_id": "15b3", "link_layer": "Ethernet", "dev_type": "type-VF"}',
    '{"role": "ethpf", "vendor_id": "15b3", "link_layer": "Ethernet", "dev_type": "type-PF"}',
    '{"role": "ethnic", "vendor_id": "15b3", "link_layer": "Ethernet"}',
]

OPTS: Final[list[cfg.Opt]] = [
    cfg.MultiStrOpt(
        "device_role",
        default=DEFAULT_ROLES,
        help="""
Which PCI functions play which role. May be given several times; the first
entry that matches a function wins, and a function without an entry has no
role and is never offered.

Each value is a JSON object. ``role`` is the name of the role, which is also the default name of
the PCI alias and the word used in ``hpc:group``. The other keys all have to match: ``vendor_id``
and ``product_id`` (four hex digits), ``class`` (base class and sub-class, four hex digits),
``dev_type`` (``type-PCI``, ``type-PF`` or ``type-VF``, as Nova has them), ``interface`` (name of
the network interface of the function, or of its physical function, on the host) and
``link_layer`` (``InfiniBand`` or ``Ethernet``: of the ports of the function or of its physical
function; by its class if the ports do not report it). All values but ``link_layer`` may contain
the wildcards ``*`` and ``?``.

The defaults match the GPUs of NVIDIA, AMD and Intel, NVSwitches, and the adapters of the mlx5
family, with separate roles for InfiniBand and Ethernet. Giving the option replaces all of the
defaults.

Related options:

* ``[pci]device_spec``
* ``[pci]alias``
""",
    ),
]
