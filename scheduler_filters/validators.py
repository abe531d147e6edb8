# SPDX-License-Identifier: Apache-2.0
"""Validators of the ``hpc:`` extra specs, for Nova's API.

Nova loads this module through the entry point ``nova.api.extra_spec_validators``
and calls :func:`register`. The validators run from compute API 2.86 on and see
one key at a time: the filter and the driver check rules across keys.

A module of validators that cannot be imported stops nova-api, so this one imports
very little.
"""

from __future__ import annotations

from nova import exception
from nova.api.validation.extra_specs import base

from nova_hpc.placement import flavor
from nova_hpc.placement.grouping import FlavorError


class HpcExtraSpecValidator(base.ExtraSpecValidator):
    """Validator of one ``hpc:`` key. Its refusal names the key, the value and the remedy."""

    def validate(self, name: str, value: str) -> None:
        """Check the value of one ``hpc:`` extra spec.

        :raises nova.exception.ValidationError: answered as 400 by the API.
        """
        try:
            flavor.check_value(name, value)
        except FlavorError as error:
            raise exception.ValidationError(f"Validation failed; {error}.") from None


def register() -> list[base.ExtraSpecValidator]:
    """List the validators of ``hpc:`` keys, for Nova's entry point of extra spec validators."""
    return [
        HpcExtraSpecValidator(
            name=flavor.AFFINITY,
            description=(
                "The tightest common ancestor that the devices of every group must "
                "have: a PCIe switch, a PCIe root, a NUMA node, a socket or only the host."
            ),
            value={
                "type": str,
                "description": "The level of locality.",
                "enum": list(flavor.WORDS[flavor.AFFINITY]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.AFFINITY_POLICY,
            description=(
                "The action if the level of ``hpc:affinity`` cannot be reached: ``required`` "
                "(the default) refuses the host, ``preferred`` takes the next best devices and "
                "records the level that was reached."
            ),
            value={
                "type": str,
                "description": "The policy.",
                "enum": list(flavor.WORDS[flavor.AFFINITY_POLICY]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.GROUP,
            description=(
                "The unit of devices that must sit together, by alias or role. A server of four "
                "GPUs and four virtual functions with ``gpu:1,vf:1`` has four groups. ``port``, or "
                "the role of their network, sets how many direct ports one group takes at most."
            ),
            value={
                "type": str,
                "description": "Names and counts, for example ``gpu:1,vf:1``.",
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.NVLINK,
            description="Whether only whole sets of NVLink-connected GPUs are given.",
            value={
                "type": str,
                "description": "The policy.",
                "enum": list(flavor.WORDS[flavor.NVLINK]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.GUEST_TOPOLOGY,
            description=(
                "The PCIe tree of the guest: ``mirror``, a copy of the host's; ``numa``, one "
                "PCIe root for each NUMA cell; ``flat`` (the default), Nova's own."
            ),
            value={
                "type": str,
                "description": "The kind of tree.",
                "enum": list(flavor.WORDS[flavor.GUEST_TOPOLOGY]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.FABRIC,
            description=(
                "How near the members of a server group are on the fabric: in one NVLink "
                "sub-domain or domain, leaf, block or spine. It has no effect on a server "
                "without a group."
            ),
            value={
                "type": str,
                "description": "The level of the fabric.",
                "enum": list(flavor.WORDS[flavor.FABRIC]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.FABRIC_POLICY,
            description=(
                "The action if no domain of the level of ``hpc:fabric`` has room: ``required`` "
                "(the default) refuses the server, ``preferred`` takes the next wider domain."
            ),
            value={
                "type": str,
                "description": "The policy.",
                "enum": list(flavor.WORDS[flavor.FABRIC_POLICY]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.SHARED_MEMORY,
            description=(
                "MiB of memory that the server brings to a segment which the members of its "
                "server group on one host share. It is an even number from 2 to 4096, and at most "
                "a quarter of the server's memory. The flavor needs hw:cpu_policy=dedicated. A "
                "server without a server group gets none."
            ),
            value={
                "type": str,
                "description": "MiB, for example ``64``.",
                "pattern": "^[0-9]+$",
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.SHARED_MEMORY_POLICY,
            description=(
                "The action on a host that cannot give the memory of ``hpc:shared_memory``: "
                "``preferred`` (the default) starts the server without, ``required`` refuses "
                "the host."
            ),
            value={
                "type": str,
                "description": "The policy.",
                "enum": list(flavor.WORDS[flavor.SHARED_MEMORY_POLICY]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.MOVABLE,
            description=(
                "Whether owners of servers agree that operators move them to make room for others "
                "(``no`` is the default). The server's own metadata of this name outranks it."
            ),
            value={
                "type": str,
                "description": "The owner's consent.",
                "enum": list(flavor.WORDS[flavor.MOVABLE]),
            },
        ),
        HpcExtraSpecValidator(
            name=flavor.PREEMPTIBLE,
            description=(
                "Whether operators may shelve servers to make room for others (``no`` is the "
                "default). Their owners read the time minutes before, as the tag ``hpc-preempt``. "
                "The server's own metadata has no effect."
            ),
            value={
                "type": str,
                "description": "The operator's right.",
                "enum": list(flavor.WORDS[flavor.PREEMPTIBLE]),
            },
        ),
    ]
