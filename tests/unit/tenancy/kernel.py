# SPDX-License-Identifier: Apache-2.0
"""Adapters behind rtnetlink, for tests: only the socket is not real."""

import errno

from nova_hpc.tenancy.adapters import settings


class Kernel:
    """Adapters with virtual functions behind rtnetlink.

    Each request and each answer is encoded to the bytes of the protocol and
    decoded again by pyroute2 itself.
    """

    def __init__(
        self, functions: int = 2, unknown: tuple[str, ...] = (), nets: tuple[str, ...] = ("ens1",)
    ) -> None:
        self.nets = nets
        self.unknown = unknown
        self.deaf: set[tuple[int, str]] = set()
        self.writes: list[tuple[int, str]] = []
        self.functions = [
            {
                "IFLA_VF_MAC": {"vf": number, "mac": settings.NO_MAC},
                "IFLA_VF_VLAN": {"vf": number, "vlan": 0, "qos": 0},
                "IFLA_VF_RATE": {"vf": number, "min_tx_rate": 0, "max_tx_rate": 0},
                "IFLA_VF_SPOOFCHK": {"vf": number, "spoofchk": 1},
                "IFLA_VF_LINK_STATE": {"vf": number, "link_state": 0},
                "IFLA_VF_TRUST": {"vf": number, "trust": 0},
            }
            for number in range(functions)
        ]
        for each in self.functions:
            for name in unknown:
                # A driver that does not know a setting tells all ones, or nothing.
                if name in ("IFLA_VF_SPOOFCHK", "IFLA_VF_TRUST"):
                    each[name] = dict.fromkeys(each[name], 4294967295) | {"vf": each[name]["vf"]}
                else:
                    del each[name]

    def __call__(self) -> "Kernel":
        return self

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def link_lookup(self, ifname: str) -> list[int]:
        return [7] if ifname in self.nets else []

    def link(self, command: str, index: int, vf: dict[str, object]) -> list[object]:
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.requests.link import LinkIPRouteFilter

        assert (command, index) == ("set", 7)
        message = over_the_wire(LinkIPRouteFilter("set").get_vf(vf))
        (info,) = message.get("IFLA_VFINFO_LIST").get_attrs("IFLA_VF_INFO")
        for name, value in info["attrs"]:
            self.writes.append((value["vf"], name))
            if name in self.unknown:
                raise NetlinkError(errno.EOPNOTSUPP)
            if (value["vf"], name) not in self.deaf:
                keys = self.functions[value["vf"]][name].keys()
                self.functions[value["vf"]][name] = {key: value[key] for key in keys}
        return []

    def get_links(self, index: int, ext_mask: int) -> list[object]:
        assert (index, ext_mask) == (7, 9)
        return [
            over_the_wire(
                {
                    "attrs": [
                        ("IFLA_VF_INFO", {"attrs": [(k, dict(v)) for k, v in each.items()]})
                        for each in self.functions
                    ]
                }
            )
        ]


def over_the_wire(functions: dict[str, object]) -> object:
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

    message = ifinfmsg()
    message["index"] = 7
    message["attrs"] = [("IFLA_VFINFO_LIST", functions)]
    message.encode()
    again = ifinfmsg(message.data)
    again.decode()
    return again
