# SPDX-License-Identifier: Apache-2.0
"""A server that moves while it runs: the new device that takes the place of each former one.

Nova's order is by chance. The guest keeps its hardware, so a group's new devices take the places of
one group's former ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nova_hpc.topology.model import address_key

#: Key of a request -> PCI addresses of its devices.
DevicesByRequest = Mapping[str, Collection[str]]


class PairsError(ValueError):
    """The guest cannot get these devices while it runs. The text is for the server's user."""


def order_by_group(
    devices: DevicesByRequest, groups: Mapping[str, int]
) -> dict[str, tuple[str, ...]]:
    """Order the devices of each request by their groups, then by their addresses.

    The groups are ordered by their first device in the order of requests and addresses.

    :param groups: address -> number of the device's group in the flavor.
    """
    rank: dict[int | None, int] = {}
    for addresses in devices.values():
        for address in _sort_addresses(addresses):
            rank.setdefault(groups.get(address), len(rank))
    return {
        key: tuple(
            sorted(_sort_addresses(addresses), key=lambda address: rank[groups.get(address)])
        )
        for key, addresses in devices.items()
    }


def is_in_order(devices: DevicesByRequest, groups: Mapping[str, int]) -> bool:
    """Whether the order of addresses is also the order of groups, in each request."""
    return order_by_group(devices, groups) == {
        key: tuple(_sort_addresses(addresses)) for key, addresses in devices.items()
    }


def pair_devices(
    former: DevicesByRequest, new: DevicesByRequest, groups: Mapping[str, int]
) -> dict[str, str]:
    """Pair each former device with the new one that takes its place in the guest.

    Nova replaces one address after the other, each where it first finds it
    (``_update_pci_dev_xml`` of nova/virt/libvirt/migration.py, 32 to 34). So no address is
    written before its own is replaced.

    :param former: the present devices, in the order of groups (:func:`is_in_order`).
    :param groups: address -> group, of the *new* devices.
    :returns: former address -> new address, in the order for Nova.
    :raises PairsError: there is no such order, or a request lacks devices.
    """
    counts = {key: len(addresses) for key, addresses in former.items()}
    if counts != {key: len(addresses) for key, addresses in new.items()}:
        raise PairsError("The devices that were claimed for the server are not as many as it has.")
    grouped = len(new) > 1 and len({groups.get(address) for address in _all_of(new)}) > 1
    ordered = order_by_group(new, groups)
    left: dict[str, str] = {}
    for key, addresses in former.items():
        # A device with the address of a former one takes its place, so that fewer are in the way.
        kept = set() if grouped else set(addresses) & set(new[key])
        left |= {address: address for address in kept}
        left |= zip(
            _sort_addresses(set(addresses) - kept),
            [address for address in ordered[key] if address not in kept],
            strict=True,
        )
    pairs: dict[str, str] = {}
    while left:
        ready = [old for old, taken in left.items() if taken == old or taken not in left]
        if not ready:
            raise PairsError(
                "Devices of different kinds would exchange their addresses, which Nova mixes up."
            )
        pairs |= {old: left.pop(old) for old in ready}
    return pairs


def _all_of(devices: DevicesByRequest) -> Iterable[str]:
    return (address for addresses in devices.values() for address in addresses)


def _sort_addresses(addresses: Iterable[str]) -> list[str]:
    return sorted(addresses, key=address_key)
