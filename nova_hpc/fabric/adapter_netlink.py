"""Ethernet virtual functions of any driver, through rtnetlink."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import Any, Final

from nova_hpc.fabric.adapter import AdapterError, LinkState, Step, VirtualFunction
from nova_hpc.fabric.adapter_set import UnsupportedError

#: IFLA_VF_LINK_STATE_*
_STATES: Final = {LinkState.AUTO: 0, LinkState.UP: 1, LinkState.DOWN: 2}
#: RTEXT_FILTER_VF: tell about the virtual functions, too.
_WITH_FUNCTIONS: Final = 1


def _open() -> Any:
    from pyroute2 import IPRoute

    return IPRoute()


class Netlink:
    """The backend; needs CAP_NET_ADMIN in the namespace of the adapter."""

    def __init__(self, connect: Callable[[], Any] = _open) -> None:
        self._connect = connect

    def write(self, function: VirtualFunction, step: Step) -> None:
        """Make one setting."""
        self._do(
            function,
            step.name,
            lambda link, index: link.link(
                "set", index=index, vf={"vf": function.index, **_request(step)}
            ),
        )

    def read(self, function: VirtualFunction) -> Mapping[str, Any]:
        """What the kernel tells about the function."""
        messages = self._do(
            function,
            "read",
            lambda link, index: link.get_links(index, ext_mask=_WITH_FUNCTIONS),
        )
        for message in messages:
            functions = message.get("IFLA_VFINFO_LIST")
            for info in functions.get_attrs("IFLA_VF_INFO") if functions else ():
                mac = info.get("IFLA_VF_MAC")
                if mac is not None and mac["vf"] == function.index:
                    return _seen(info)
        raise AdapterError(f"{function.address}: {function.net} tells nothing about it")

    def _do(self, function: VirtualFunction, name: str, work: Callable[[Any, int], Any]) -> Any:
        from pyroute2.netlink.exceptions import NetlinkError

        if function.net is None:
            raise AdapterError(f"{function.address}: its adapter has no network device")
        try:
            with self._connect() as link:
                found = link.link_lookup(ifname=function.net)
                if not found:
                    raise AdapterError(f"{function.address}: no network device {function.net}")
                return list(work(link, found[0]))
        except (NetlinkError, OSError) as error:
            code = error.code if isinstance(error, NetlinkError) else error.errno
            kind = UnsupportedError if code == errno.EOPNOTSUPP else AdapterError
            why = " ".join(str(error).split())
            raise kind(f"{function.address}: {name} of {function.net}: {why}") from error


def _request(step: Step) -> dict[str, Any]:
    if step.name == "mac":
        return {"mac": step.value}
    if step.name == "vlan":
        vlan, qos = step.value
        return {"vlan": {"vlan": vlan, "qos": qos}}
    if step.name == "spoof_check":
        return {"spoofchk": int(step.value)}
    if step.name == "trust":
        return {"trust": int(step.value)}
    if step.name == "rate":
        least, most = step.value
        return {"rate": {"min_tx_rate": least, "max_tx_rate": most}}
    return {"link_state": _STATES[step.value]}


def _seen(info: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"mac": info.get("IFLA_VF_MAC")["mac"][:17].lower()}
    if (vlan := info.get("IFLA_VF_VLAN")) is not None:
        found["vlan"] = (vlan["vlan"], vlan["qos"])
    if (rate := info.get("IFLA_VF_RATE")) is not None:
        found["rate"] = (rate["min_tx_rate"], rate["max_tx_rate"])
    for name, attribute, key in (
        ("spoof_check", "IFLA_VF_SPOOFCHK", "spoofchk"),
        ("trust", "IFLA_VF_TRUST", "trust"),
    ):
        value = info.get(attribute)
        # All ones: the driver does not say.
        if value is not None and value[key] in (0, 1):
            found[name] = bool(value[key])
    state = info.get("IFLA_VF_LINK_STATE")
    if state is not None:
        for each, number in _STATES.items():
            if number == state["link_state"]:
                found["link_state"] = each
    return found
