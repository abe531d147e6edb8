# SPDX-License-Identifier: Apache-2.0
"""Virtual functions through rtnetlink: Ethernet of any driver, InfiniBand of the kernel's mlx5.

For InfiniBand the network device is the one of IPoIB: GUIDs can be set since Linux 4.6
and read back since 5.5 (``struct ifla_vf_guid`` in the kernel's
``include/uapi/linux/if_link.h``). Its MAC, VLAN and rights have no meaning there. This part
is untested on real hardware.
"""

from __future__ import annotations

import contextlib
import errno
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from nova_hpc.tenancy.adapters.function_changes import NoBackendError, UnsupportedError
from nova_hpc.tenancy.adapters.settings import (
    AdapterError,
    AdapterFunction,
    AdapterSetting,
    LinkState,
    PortLayer,
)

#: IFLA_VF_LINK_STATE_*
_STATES: Final = {LinkState.AUTO: 0, LinkState.UP: 1, LinkState.DOWN: 2}
#: Setting -> its name in pyroute2; the attribute's name is the same in capitals.
_GUIDS: Final = {"node_guid": "ib_node_guid", "port_guid": "ib_port_guid"}
#: Length and type of an attribute; then, from ``struct ifla_vf_guid``, the function's number,
#: four bytes that align the GUID, and the GUID as a number in this machine's byte order.
_GUID_ATTRIBUTE: Final = struct.Struct("=HHI4xQ")

#: RTEXT_FILTER_VF: include the virtual functions; and RTEXT_FILTER_SKIP_STATS, because
#: the counters of many functions exceed the length of a message.
_WITH_FUNCTIONS: Final = 1 | 1 << 3

#: The library runs an event loop for each thread of the kernel, and fails if
#: several green threads of one are in it at the same time.
_ONE: Final = threading.Lock()


def _open_netlink() -> Any:
    from pyroute2 import IPRoute

    return IPRoute()


class NetlinkBackend:
    """Adapter backend through rtnetlink; it needs CAP_NET_ADMIN in the namespace of the adapter."""

    def __init__(self, link: Any) -> None:
        """Use an open connection of pyroute2."""
        self._link = link
        self._indexes: dict[str, int] = {}

    @classmethod
    @contextlib.contextmanager
    def session(cls) -> Iterator[NetlinkBackend]:
        """Connect to the kernel; a process has one session at a time.

        :raises AdapterError: there is no connection.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(_ONE)
            try:
                link = stack.enter_context(_open_netlink())
            except Exception as error:
                # Catch everything: a library error must not end the service.
                raise AdapterError(f"rtnetlink cannot be used: {error!r}") from error
            yield cls(link)

    def write(self, function: AdapterFunction, setting: AdapterSetting) -> None:
        """Set one setting of a virtual function through rtnetlink."""
        self._do(
            function,
            setting.name,
            lambda link, index: link.link(
                "set", index=index, vf={"vf": function.index, **_netlink_request_of(setting)}
            ),
        )

    def read(self, function: AdapterFunction) -> Mapping[str, Any]:
        """Read the kernel's settings of a virtual function through rtnetlink: name -> value."""
        messages = self._do(
            function, "read", lambda link, index: link.get_links(index, ext_mask=_WITH_FUNCTIONS)
        )
        for message in messages:
            functions = message.get("IFLA_VFINFO_LIST")
            for info in functions.get_attrs("IFLA_VF_INFO") if functions else ():
                mac = info.get("IFLA_VF_MAC")
                if mac is None or mac["vf"] != function.index:
                    continue
                if function.layer is not PortLayer.INFINIBAND:
                    return _ethernet_settings_of(info)
                try:
                    return _infiniband_settings_of(function, info)
                except ValueError as error:
                    raise AdapterError(f"{function.address}: {function.net}: {error}") from error
        raise NoBackendError(f"{function.address}: {function.net} tells nothing about it")

    def _do(self, function: AdapterFunction, name: str, work: Callable[[Any, int], Any]) -> Any:
        """Run *work* for the adapter's network device, and convert the library's errors."""
        if function.net is None:
            raise NoBackendError(f"{function.address}: its adapter has no network device")
        try:
            if function.net not in self._indexes:
                indexes = self._link.link_lookup(ifname=function.net)
                if not indexes:
                    raise AdapterError(f"{function.address}: no network device {function.net}")
                self._indexes[function.net] = indexes[0]
            return list(work(self._link, self._indexes[function.net]))
        except AdapterError:
            raise
        except Exception as error:
            # NetlinkError has the kernel's number, like OSError; other errors are the library's.
            code = getattr(error, "code", None) or getattr(error, "errno", None)
            kind = UnsupportedError if code == errno.EOPNOTSUPP else AdapterError
            reason = " ".join(str(error).split()) or type(error).__name__
            raise kind(f"{function.address}: {name} of {function.net}: {reason}") from error


def _netlink_request_of(setting: AdapterSetting) -> dict[str, Any]:
    if setting.name in _GUIDS:
        octets = int(setting.value).to_bytes(8, "big")
        return {_GUIDS[setting.name]: octets.hex(":")}
    if setting.name == "mac":
        return {"mac": setting.value}
    if setting.name == "vlan":
        vlan, qos = setting.value
        return {"vlan": {"vlan": vlan, "qos": qos}}
    if setting.name == "spoof_check":
        return {"spoofchk": int(setting.value)}
    if setting.name == "trust":
        return {"trust": int(setting.value)}
    if setting.name == "rate":
        least, most = setting.value
        return {"rate": {"min_tx_rate": least, "max_tx_rate": most}}
    return {"link_state": _STATES[setting.value]}


def _ethernet_settings_of(info: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"mac": info.get("IFLA_VF_MAC")["mac"][:17].lower()}
    if (vlan := info.get("IFLA_VF_VLAN")) is not None:
        values["vlan"] = (vlan["vlan"], vlan["qos"])
    if (rate := info.get("IFLA_VF_RATE")) is not None:
        values["rate"] = (rate["min_tx_rate"], rate["max_tx_rate"])
    for name, attribute, key in (
        ("spoof_check", "IFLA_VF_SPOOFCHK", "spoofchk"),
        ("trust", "IFLA_VF_TRUST", "trust"),
    ):
        value = info.get(attribute)
        # A value of all ones means that the driver does not report it.
        if value is not None and value[key] in (0, 1):
            values[name] = bool(value[key])
    return values | _link_state(info)


def _infiniband_settings_of(function: AdapterFunction, info: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, key in _GUIDS.items():
        value = info.get(f"IFLA_VF_{key.upper()}")
        if value is None:
            raise NoBackendError(
                f"{function.address}: {function.net} does not show its GUIDs; that needs Linux "
                "5.5 or newer and mlx5_core, or NVIDIA's own driver (DOCA-OFED)"
            )
        values[name] = _parse_guid_attribute(value)
    return values | _link_state(info)


def _parse_guid_attribute(value: Any) -> int:
    """Return the GUID in an attribute.

    pyroute2 assumes a longer structure than the kernel's: at the end of a message it
    finds too few bytes, and returns the attribute's bytes unparsed.

    :raises ValueError: the value is neither.
    """
    if isinstance(value, bytes):
        if len(value) < _GUID_ATTRIBUTE.size:
            raise ValueError(f"a GUID of {len(value)} bytes")
        number: int = _GUID_ATTRIBUTE.unpack_from(value)[-1]
        return number
    text = next((str(value[key]) for key in _GUIDS.values() if key in value), "")
    return int(text.replace(":", ""), 16)


def _link_state(info: Any) -> dict[str, Any]:
    state = info.get("IFLA_VF_LINK_STATE") or {}
    states: dict[object, LinkState] = {number: state_name for state_name, number in _STATES.items()}
    link_state = states.get(state.get("link_state"))
    return {} if link_state is None else {"link_state": link_state}
