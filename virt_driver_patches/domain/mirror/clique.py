"""GPUDirect cliques, and QEMU's part of the domain.

A driver that finds itself in a virtual machine does not trust the PCIe tree
that it sees. A GPU's clique tells it which others it can reach directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lxml import etree

#: Namespace of what libvirt hands to QEMU as it is.
QEMU: Final = "http://libvirt.org/schemas/domain/qemu/1.0"


def with_namespace(domain: etree._Element) -> etree._Element:
    """The same domain with QEMU's namespace declared at its top, where libvirt looks."""
    names = {prefix: uri for prefix, uri in domain.nsmap.items() if uri != QEMU}
    copy = etree.Element(domain.tag, dict(domain.attrib), nsmap={**names, "qemu": QEMU})
    copy.text = domain.text
    copy[:] = domain[:]
    return copy


def show(
    domain: etree._Element, seated: Mapping[str, etree._Element], cliques: Mapping[str, int]
) -> None:
    """Show each GPU its clique.

    :param seated: host address -> its element, which has an alias.
    :param cliques: host address -> clique, 0 to 15.
    """
    override = domain.find(f"{{{QEMU}}}override")
    for address, clique in cliques.items():
        element = seated.get(address)
        if element is None:
            continue
        if override is None:
            override = etree.SubElement(domain, f"{{{QEMU}}}override")
        alias = element.find("alias").get("name")
        device = etree.SubElement(override, f"{{{QEMU}}}device", alias=alias)
        frontend = etree.SubElement(device, f"{{{QEMU}}}frontend")
        etree.SubElement(
            frontend,
            f"{{{QEMU}}}property",
            name="x-nv-gpudirect-clique",
            type="unsigned",
            value=str(clique),
        )
