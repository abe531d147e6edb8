# SPDX-License-Identifier: Apache-2.0
"""Reads P_Key tables by libibmad, 0.2 ms each: a program of its own, on a simulated node.

One JSON request a line, one answer a line: ``{"op": "topology"}`` gives GUID -> [LID, LID of the
switch, its port]; ``{"op": "tables", "ports": [[LID, port], ...]}`` gives a list of table entries
for each, null where nothing answers, and for a null instead of a port; ``"op": "states"`` gives the
state of each link (4: active). It leaves at the end of its
input: the simulator keeps the place of one that is killed. It shares nothing with the product.
"""

import ctypes
import json
import re
import subprocess
import sys

_BLOCK, _ATTRIBUTE, _MILLISECONDS, _BLOCKS = 32, 0x16, 500, 4
#: PortInfo, and the byte whose lower half is the state of the link.
_PORT_INFO, _STATE = 0x15, 32


class DirectedRoute(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int),
        ("path", ctypes.c_uint8 * 64),
        ("source", ctypes.c_uint16),
        ("target", ctypes.c_uint16),
    ]


class PortId(ctypes.Structure):
    """``ib_portid_t`` of infiniband/mad.h, with room behind it."""

    _fields_ = [
        ("lid", ctypes.c_int),
        ("route", DirectedRoute),
        ("has_grh", ctypes.c_int),
        ("gid", ctypes.c_uint8 * 16),
        ("queue_pair", ctypes.c_uint32),
        ("queue_key", ctypes.c_uint32),
        ("level", ctypes.c_uint8),
        ("pkey_index", ctypes.c_uint),
        ("room", ctypes.c_uint8 * 64),
    ]


def open_port(mad):
    mad.mad_rpc_open_port.restype = ctypes.c_void_p
    mad.smp_query_via.restype = ctypes.c_void_p
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    port = ctypes.POINTER(PortId)
    mad.smp_query_via.argtypes = [pointer, port, number, number, number, pointer]
    # Subnet management, directed routes, subnet administration.
    classes = (ctypes.c_int * 3)(0x1, 0x81, 0x3)
    return mad.mad_rpc_open_port(None, 0, classes, 3)


def read_table(mad, source, lid, number):
    buffer, entries = ctypes.create_string_buffer(256), []
    target = PortId()
    target.lid = lid
    for block in range(_BLOCKS):
        modifier = number << 16 | block
        if not mad.smp_query_via(
            buffer, ctypes.byref(target), _ATTRIBUTE, modifier, _MILLISECONDS, source
        ):
            return entries if block else None
        raw = buffer.raw[: 2 * _BLOCK]
        keys = [raw[place] << 8 | raw[place + 1] for place in range(0, 2 * _BLOCK, 2)]
        entries += [key for key in keys if key & 0x7FFF]
        if not any(keys):
            break
    return sorted(entries)


def read_state(mad, source, lid, number):
    buffer, target = ctypes.create_string_buffer(256), PortId()
    target.lid = lid
    if not mad.smp_query_via(
        buffer, ctypes.byref(target), _PORT_INFO, number, _MILLISECONDS, source
    ):
        return None
    return buffer.raw[_STATE] & 0xF


def read_topology():
    found, switch = {}, None
    done = subprocess.run(["ibnetdiscover"], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if head := re.match(r'Switch\s+\d+ "S-\w+".*lid (\d+)', line):
            switch = int(head[1])
        elif line.startswith("Ca\t") or line.startswith("Ca "):
            switch = None
        elif switch and (
            link := re.match(r'\[(\d+)\]\s+"H-\w+"\[\d+\]\((\w+)\).* lid (\d+)', line)
        ):
            found[f"0x{int(link[2], 16):016x}"] = [int(link[3]), switch, int(link[1])]
    return found


def main():
    mad = ctypes.CDLL("libibmad.so.5")
    source = open_port(mad)
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "topology":
            answer = read_topology()
        elif request["op"] == "states":
            answer = [read_state(mad, source, *port) for port in request["ports"]]
        else:
            answer = [port and read_table(mad, source, *port) for port in request["ports"]]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
