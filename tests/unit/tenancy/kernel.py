# SPDX-License-Identifier: Apache-2.0
"""Adapters behind rtnetlink, for tests: only the socket is not real."""

import errno
import struct

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


# -- InfiniBand: what the kernel itself writes and reads, byte by byte ---------------------

#: IFLA_VF_* of include/uapi/linux/if_link.h.
_MAC, _LINK_STATE, _NODE_GUID, _PORT_GUID = 1, 5, 10, 11
_NAMES = {_NODE_GUID: "node_guid", _PORT_GUID: "port_guid", _LINK_STATE: "link_state"}
_NESTED = 1 << 15


class InfinibandKernel:
    """An IPoIB device of the kernel's mlx5 driver with virtual functions, behind rtnetlink.

    Requests are encoded by pyroute2 and decoded by the layout of the kernel's header;
    answers are encoded by that layout and decoded by pyroute2. The layout:
    ``struct ifla_vf_guid { __u32 vf; __u64 guid; }``, ``struct ifla_vf_link_state
    { __u32 vf; __u32 link_state; }``, and a MAC of 32 bytes, which for IPoIB is that of
    the physical function.
    """

    def __init__(self, functions: int = 2, shown: bool = True, known: bool = True) -> None:
        #: The kernel is 5.5 or newer.
        self.shown = shown
        #: The driver can set GUIDs at all.
        self.known = known
        self.deaf: set[tuple[int, str]] = set()
        self.writes: list[tuple[int, str, int]] = []
        self.functions = [
            {"node_guid": 0, "port_guid": 0, "link_state": 2} for _ in range(functions)
        ]

    def __call__(self) -> "InfinibandKernel":
        return self

    def __enter__(self) -> "InfinibandKernel":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def link_lookup(self, ifname: str) -> list[int]:
        return [7] if ifname == "ib0" else []

    def link(self, command: str, index: int, vf: dict[str, object]) -> list[object]:
        from pyroute2.netlink.exceptions import NetlinkError
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
        from pyroute2.requests.link import LinkIPRouteFilter

        assert (command, index) == ("set", 7)
        message = ifinfmsg()
        message["attrs"] = [("IFLA_VFINFO_LIST", LinkIPRouteFilter("set").get_vf(vf))]
        message.encode()
        ((_, functions),) = _attributes(bytes(message.data[32:]))
        ((_, function),) = _attributes(functions)
        for kind, data in _attributes(function):
            if kind not in _NAMES or (not self.known and kind != _LINK_STATE):
                raise NetlinkError(errno.EOPNOTSUPP)
            layout = "=II" if kind == _LINK_STATE else "=I4xQ"
            number, value = struct.unpack_from(layout, data)
            self.writes.append((number, _NAMES[kind], value))
            if (number, _NAMES[kind]) not in self.deaf:
                self.functions[number][_NAMES[kind]] = value
        return []

    def get_links(self, index: int, ext_mask: int) -> list[object]:
        from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

        assert (index, ext_mask) == (7, 9)
        functions = b"".join(
            _attribute(1 | _NESTED, self._info(number, each))
            for number, each in enumerate(self.functions)
        )
        # The functions come last, as they do in a message without IFLA_PORT_SELF.
        name = _attribute(3, b"ib0\0")
        body = struct.pack("=BxHiII", 0, 32, 7, 0, 0) + name + _attribute(22 | _NESTED, functions)
        message = ifinfmsg(struct.pack("=IHHII", 16 + len(body), 16, 0, 0, 0) + body)
        message.decode()
        return [message]

    def _info(self, number: int, each: dict[str, int]) -> bytes:
        mac = bytes.fromhex("80000049fe80000000000000") + bytes(20)
        found = _attribute(_MAC, struct.pack("=I32s", number, mac))
        found += _attribute(_LINK_STATE, struct.pack("=II", number, each["link_state"]))
        if self.shown:
            for kind in (_NODE_GUID, _PORT_GUID):
                found += _attribute(kind, struct.pack("=I4xQ", number, each[_NAMES[kind]]))
        return found


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def _attributes(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        length, kind = struct.unpack_from("=HH", data)
        assert 4 <= length <= len(data)
        found.append((kind & ~_NESTED, data[4:length]))
        data = data[(length + 3) & ~3 :]
    return found
