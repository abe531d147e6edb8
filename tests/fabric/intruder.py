# SPDX-License-Identifier: Apache-2.0
"""What somebody with root on a node may send to the fabric: a program of its own.

``own-table KEY`` writes a P_Key into the first block of its own port's table; ``alias-guid LID
GUID`` asks the subnet manager for one more GUID of its port.
"""

import ctypes
import sys

_SMI, _DIRECT, _SA = 0x1, 0x81, 0x3
_PKEY_TABLE, _GUID_INFO_RECORD = 0x16, 0x30
_SET, _MILLISECONDS = 2, 2000


class PortId(ctypes.Structure):
    """``ib_portid_t`` of infiniband/mad.h; its places are those of the C structure."""

    _fields_ = [
        ("lid", ctypes.c_int),
        ("count", ctypes.c_int),
        ("path", ctypes.c_uint8 * 64),
        ("source", ctypes.c_uint16),
        ("target", ctypes.c_uint16),
        ("has_grh", ctypes.c_int),
        ("gid", ctypes.c_uint8 * 16),
        ("queue_pair", ctypes.c_uint32),
        ("queue_key", ctypes.c_uint32),
        ("level", ctypes.c_uint8),
        ("pkey_index", ctypes.c_uint),
        ("room", ctypes.c_uint8 * 64),
    ]


class SaCall(ctypes.Structure):
    """``ib_sa_call_t``."""

    _fields_ = [
        ("attribute", ctypes.c_uint),
        ("modifier", ctypes.c_uint),
        ("mask", ctypes.c_uint64),
        ("method", ctypes.c_uint),
        ("transaction", ctypes.c_uint64),
        ("record_size", ctypes.c_uint),
        ("room", ctypes.c_uint8 * 64),
    ]


def main(what, *words):
    mad = ctypes.CDLL("libibmad.so.5")
    for name in ("mad_rpc_open_port", "smp_set_via", "sa_rpc_call"):
        getattr(mad, name).restype = ctypes.c_void_p
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    mad.smp_set_via.argtypes = [pointer, pointer, number, number, number, pointer]
    mad.sa_rpc_call.argtypes = [pointer, pointer, pointer, pointer, number]
    mad.ib_resolve_smlid_via.argtypes = [pointer, ctypes.c_int, pointer]
    port = mad.mad_rpc_open_port(None, 0, (ctypes.c_int * 3)(_SMI, _DIRECT, _SA), 3)
    target = PortId()
    if what == "own-table":
        # A directed route of no hops: the own port.
        block = bytearray(64)
        block[:4] = (0x7FFF).to_bytes(2, "big") + int(words[0], 16).to_bytes(2, "big")
        buffer = ctypes.create_string_buffer(bytes(block), 256)
        done = mad.smp_set_via(buffer, ctypes.byref(target), _PKEY_TABLE, 0, _MILLISECONDS, port)
    else:
        if mad.ib_resolve_smlid_via(ctypes.byref(target), _MILLISECONDS, port) < 0:
            print("there is no subnet manager")
            return
        target.queue_pair, target.queue_key = 1, 0x80010000
        record = bytearray(256)
        record[:2] = int(words[0]).to_bytes(2, "big")
        record[16:24] = int(words[1], 16).to_bytes(8, "big")
        buffer = ctypes.create_string_buffer(bytes(record), 256)
        call = SaCall(attribute=_GUID_INFO_RECORD, method=_SET, mask=3 | 1 << 5)
        done = mad.sa_rpc_call(
            port, buffer, ctypes.byref(target), ctypes.byref(call), _MILLISECONDS
        )
    print("accepted" if done else "refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
