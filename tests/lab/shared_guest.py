# SPDX-License-Identifier: Apache-2.0
"""A guest that uses the memory which it shares, without MPI: it starts within a minute when nested.

The lab's own guest, with the drivers of an NVDIMM and another first program. The members of a
segment send each other messages of random lengths and contents through their parts; each is
compared whole with what it has to be, and answered before the next one comes.
"""

import json
import re
import tarfile
import tempfile
from pathlib import Path

import attrs

from nova_hpc_guest.build import single_file
from nova_hpc_lab.node import python_env
from nova_hpc_lab.node.initramfs import add_modules, base_archive, module_files

#: nd_pmem reads the label, and the others make a device of what it describes.
MODULES = ("qemu_fw_cfg", "nfit", "nd_pmem", "dax_pmem", "device_dax")
#: Messages from each member.
MESSAGES = 200

INIT = """\
#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t debugfs debug /sys/kernel/debug
while read -r module; do insmod "/modules/$module"; done </modules/order
exec /usr/bin/python3.11 -I /exchange.py
"""
EXCHANGE = f"""\
import json, mmap, os, random, re, struct, subprocess, time

COMMAND = ["/usr/bin/python3.11", "-I", "/usr/local/bin/nova-hpc-guest"]
HEAD, DATA, MARK, ACKS = 2 << 20, 4096, 2048, 64


def ask(*words):
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def tell(**values):
    print("SHARED " + json.dumps(values), flush=True)


status, text = ask("check")
answer = ask("peers", "--format", "json")
while not os.path.exists("/dev/dax0.0"):
    tell(status=status, check=text, peers=answer)
    time.sleep(20)
view = json.loads(answer[1])
size = int(open("/sys/bus/dax/devices/dax0.0/size").read())
memory = mmap.mmap(os.open("/dev/dax0.0", os.O_RDWR), size)
own, parts = view["part"], range(len(view["parts"]))


def place(part, offset=0):
    return HEAD + part * view["part_bytes"] + offset


def read(at):
    return struct.unpack_from("<Q", memory, at)[0]


def write(at, value):
    struct.pack_into("<Q", memory, at, value)


def holder(part):
    return bytes(memory[4096 + 64 * part : 4096 + 64 * part + 36]).decode("ascii", "replace")


def message(part, number):
    chance = random.Random(part << 32 | number)
    return chance.randbytes(chance.randint(1, 1 << 16))


# Of an earlier start of this machine: whoever has seen it starts anew, too.
write(place(own), 0)
mark = b"I am " + holder(own).encode()
memory[place(own, MARK) : place(own, MARK) + len(mark)] = mark
seen = dict.fromkeys(parts, 0)
sent = received = wrong = 0
told = 0
while True:
    idle = True
    others = [part for part in parts if part != own and holder(part).strip(chr(0))]
    for part in others:
        number = read(place(part))
        if number != seen[part]:
            if number:
                wanted = message(part, number)
                got = memory[place(part, DATA) : place(part, DATA) + len(wanted)]
                wrong += got != wanted
                received += 1
            seen[part] = number
            write(place(own, ACKS + 8 * part), number)
            idle = False
    answered = all(read(place(part, ACKS + 8 * own)) == sent for part in others)
    if others and answered and sent < {MESSAGES}:
        sent += 1
        text_of = message(own, sent)
        memory[place(own, DATA) : place(own, DATA) + len(text_of)] = text_of
        write(place(own), sent)
        idle = False
    if time.monotonic() > told + 20:
        told = time.monotonic()
        marks = sorted({{each.decode() for each in re.findall(rb"I am ([0-9a-f-]{{36}})", memory)}})
        tell(
            status=status, check=text, segment=view["segment"], mapping=view["mapping"], part=own,
            sent=sent, received=received, wrong=wrong, marks=marks, seconds=round(told),
        )
    if idle:
        time.sleep(0.02)
"""


@attrs.frozen
class SharedGuest:
    """What the guest starts from."""

    kernel: bytes
    ramdisk: bytes


def pack_guest(archive, root):
    """Make the guest of the packages of the lab's node.

    :param archive: the packages' root file system, a tar archive.
    :param root: the same, unpacked; kernel modules may be missing.
    """
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as packages:
        modules = Path(folder)
        kernel = _unpack(packages, r"\./boot/(vmlinuz-.+)", modules)
        lists = _unpack(packages, r"\./usr/lib/modules/[^/]+/(modules\.(?:dep|builtin))", modules)
        assert (len(kernel), len(lists)) == (1, 2)
        wanted = {str(path.relative_to(modules)) for path in module_files(modules, MODULES)}
        found = _unpack(packages, r"\./usr/lib/modules/[^/]+/(.+\.ko\S*)", modules, wanted)
        assert set(found) == wanted
        disk = base_archive(root / "bin/busybox")
        add_modules(disk, modules, MODULES)
        image = (modules / kernel[0]).read_bytes()
    command = single_file()
    for path, content in python_env.for_guest(root, command).items():
        disk.file(path, content, 0o755)
    disk.file("usr/local/bin/nova-hpc-guest", command, 0o755)
    disk.file("exchange.py", EXCHANGE.encode())
    disk.file("init", INIT.encode(), 0o755)
    return SharedGuest(image, disk.pack())


def _unpack(packages, pattern, folder, wanted=None):
    """The files whose names have the pattern: its group, below *folder*."""
    found = []
    for member in packages:
        match = re.fullmatch(pattern, member.name)
        if match and member.isfile() and (wanted is None or match[1] in wanted):
            target = folder / match[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packages.extractfile(member).read())
            found.append(match[1])
    return found


def parse_accounts(console):
    """What a guest has said of its memory, from its console, oldest first."""
    accounts = []
    for line in console.replace("\r", "").splitlines():
        match = re.search(r"SHARED (\{.*\})$", line)
        if match:
            accounts.append(json.loads(match[1]))
    return accounts
