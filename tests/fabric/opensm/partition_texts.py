# SPDX-License-Identifier: Apache-2.0
"""Files of partitions, made up: as people write them, and as they should not."""

MANAGER = 0x2C90000100001
HOSTS = tuple(0x2C90000200001 + 0x100000 * number for number in range(4))
SWITCH = 0x2C90000020000
_ABSENT = 0x2C90000F00001

_KEYS = (
    "0x7fff",
    "0xffff",
    "32767",
    "0x8001",
    "0x0001",
    "2",
    "0x8002",
    "077",
    "0x3",
    "0",
    "0x18003",
)
_BAD_KEYS = ("", "0x", "1a", "-1", " 5", "0x10003x")
_NAMES = ("Default", "a", "b", "storage", "", "vc.A", "cn[01-64]", "x y")
#: Without indx0: a key at index 0 takes the place of 0x7fff at port 0 of a switch.
_FLAGS = (
    *("ipoib", "i", "mtu=5", "m=4", "rate=12", "r=3", "sl=2", "sl", "s=5", "scope=5"),
    *("defmember=full", "defmember=limited", "defmember=both", "d=f", "defmember=", "defmember"),
    *("Q_Key=0x9", "TClass=1", "FlowLabel=7", "unknown=1", "", "=5", "ipoib=1"),
)
_WORDS = (
    *("ALL", "ALL_CAS", "ALL_SWITCHES", "ALL_ROUTERS", "SELF", "A", "AL", "ALL_", "ALL_S", "ALL_C"),
    *("S", "SE", "NONE", "NO", "", "ALL_ROUT"),
)
_BAD_WORDS = ("ALL_VCAS", "cn01", "oss[1-4]", "self", "all", "0x", "0xg", "full")
_MEMBERSHIPS = (
    *("", "", "=full", "=limited", "=both", "=f", "=l", "=b", "=", "=FULL", " = full", "=limi"),
)
_SPACES = ("", "", " ", "\t", "\n", " \n\t", "\n\n")
_GROUPS = (
    *("mgid=ff12:401b::0707,sl=1", "mgid=ff12:401b::0707", "mgid=ff12:601b::16, mtu=5 ,rate=3"),
    *("mgid=fe80::1", "mgid=ff12:401b::0707,sl=1, SELF"),
)
#: What a hand or a program puts into a file by mistake.
_SLIPS = (
    ";",
    ";;",
    ",",
    ":",
    "=",
    "\r",
    "\n",
    "#",
    " # x\n",
    "\0",
    "\x0b",
    "ü",
    " ",
    "x",
    ";\n",
    "\n;",
)


def make_text(random):
    """A file, from right to hopeless."""
    text = "".join(_definition(random) for _ in range(random.randint(1, 4)))
    for _ in range(random.choice((0, 0, 0, 1, 1, 3))):
        at = random.randint(0, len(text))
        cut = at + random.choice((0, 0, 1, 3))
        text = text[:at] + random.choice((*_SLIPS, "")) + text[cut:]
    if random.random() < 0.1:
        text = text[: random.randint(0, len(text))]
    return text


def _definition(random):
    some = random.random
    name = random.choice(_NAMES[:5] if some() < 0.9 else _NAMES)
    key = random.choice(_KEYS) if some() < 0.97 else random.choice(_BAD_KEYS)
    head = random.choice((f"{name}={key}", f"{name} = {key}", key, f"{name}={key}"))
    if some() < 0.1:
        head = name
    for _ in range(random.choice((0, 0, 1, 2))):
        flag = random.choice(_FLAGS)
        head += random.choice((", ", ",", " ,")) + flag
    space = random.choice(("", " ", "\t"))
    members = [_member(random) for _ in range(random.randint(0, 5))]
    glue = "," + random.choice(_SPACES)
    body = random.choice(_SPACES) + glue.join(members)
    if some() < 0.15:
        body = f"\n{random.choice(_GROUPS)}\n{body}"
    comment = random.choice(("", "", "", " # x, y=1 : ALL=full ;"))
    return f"{head}{space}:{body}{random.choice(('', ' ', ' '))};{comment}\n"


def _member(random):
    if random.random() < 0.5:
        word = random.choice(_WORDS if random.random() < 0.97 else _BAD_WORDS)
    else:
        guid = random.choice((MANAGER, *HOSTS, SWITCH, _ABSENT))
        word = random.choice((f"0x{guid:016x}", f"{guid:#x}", str(guid), f"{guid:#X}"))
        if random.random() < 0.02:
            word = f"{guid:016x}"
    return word + random.choice(_MEMBERSHIPS)
