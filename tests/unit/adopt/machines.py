# SPDX-License-Identifier: Apache-2.0
"""Machines for tests: built by hand, and any that Hypothesis can think of."""

import attrs
from hypothesis import strategies as st

from nova_hpc.topology import roles
from nova_hpc.topology.model import IommuGroup, Node, PciFunction, address_key

ROLE_ENTRIES = (
    '{"role": "gpu", "class": "03*"}',
    '{"role": "vf", "class": "02*", "dev_type": "type-VF"}',
    '{"role": "pf", "class": "02*"}',
)
ROLES = roles.parse_roles(ROLE_ENTRIES)


def gpu(address, group=None, **values):
    values = {
        "vendor_id": "10de",
        "product_id": "2330",
        "class_code": "030200",
        "numa_node": 0,
        "socket": 0,
        "root": "pci0000:17",
        "switches": ("0000:18:00.0",),
        "iommu_group": group,
        **values,
    }
    return PciFunction(address=address, **values)


def adapter(address, vfs, groups=(), product="1021", vf_product="101e", **values):
    """A physical function and its virtual functions."""
    pf = gpu(
        address,
        vendor_id="15b3",
        product_id=product,
        class_code="020700",
        total_vfs=8,
        virtual_functions=tuple(vfs),
        **values,
    )
    return [
        pf,
        *(
            attrs.evolve(
                pf,
                address=vf,
                product_id=vf_product,
                physical_function=address,
                virtual_functions=(),
                total_vfs=None,
                iommu_group=groups[number] if groups else None,
            )
            for number, vf in enumerate(vfs)
        ),
    ]


def node(*functions, numa_nodes=()):
    groups = {}
    for function in functions:
        if function.iommu_group is not None:
            groups.setdefault(function.iommu_group, []).append(function.address)
    return Node(
        source="test",
        numa_nodes=numa_nodes,
        functions=tuple(sorted(functions, key=lambda f: address_key(f.address))),
        iommu_groups=tuple(IommuGroup(id=k, members=tuple(v)) for k, v in sorted(groups.items())),
    )


groups = st.none() | st.integers(1, 4)


@st.composite
def machines(draw):
    parts = []
    for bus in range(draw(st.integers(0, 3))):
        parts.append(
            gpu(f"0000:{bus:02x}:00.0", draw(groups), total_vfs=draw(st.sampled_from([None, 4])))
        )
    for bus in range(0x40, 0x40 + draw(st.integers(0, 3))):
        vfs = draw(
            st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), unique=True, max_size=6).map(
                sorted
            )
        )
        addresses = [f"0000:{bus:02x}:{slot:02x}.{number}" for slot, number in vfs]
        parts += adapter(
            f"0000:{bus:02x}:00.0",
            addresses,
            [draw(groups) for _ in vfs],
            vf_product=draw(st.sampled_from(["1021", "101e"])),
        )
    return node(
        *(attrs.evolve(p, unknown=draw(st.sampled_from([None] * 5 + ["bad"]))) for p in parts)
    )
