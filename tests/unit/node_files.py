# SPDX-License-Identifier: Apache-2.0
"""Files of a small node, and commands on it, for the tests of commands."""

import sys
import types

import pytest
import yaml

from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.wire import node_declaration

#: The devices of :func:`machine`.
GPU, PF, VF = "0000:18:00.0", "0000:19:00.0", "0000:19:00.1"


def put(root, path, text):
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n", encoding="ascii")


def declared(at_home):
    """The declaration of the node, as it stands in its file."""
    return node_declaration.read_declaration(
        (at_home.folder / "node.yaml").read_text(encoding="utf-8")
    )


def declare(path, **wishes):
    """Write keys into a declaration as an operator does; None takes one out."""
    document = {"schema": "nova-hpc/node", "version": 1}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        document = node_declaration.build_declaration(node_declaration.read_declaration(text))
    document = {key: value for key, value in {**document, **wishes}.items() if value is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def identities(form, *roles):
    """Value of ``role_options``: all of these in one form."""
    return {role: {"identity": form} for role in roles}


def snapshot(folder):
    """All files of a directory with their texts."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


@pytest.fixture
def machine(tmp_path):
    """Two cores on one NUMA node, and a GPU and an adapter with a VF."""
    root = tmp_path / "machine"
    for cpu in range(2):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        put(root, f"{folder}/topology/physical_package_id", "0")
        put(root, f"{folder}/topology/core_id", cpu)
        put(root, f"{folder}/topology/thread_siblings_list", cpu)
        put(root, f"{folder}/topology/core_cpus_list", cpu)
    put(root, "/sys/devices/system/cpu/online", "0-1")
    put(root, "/sys/devices/system/node/online", "0")
    put(root, "/sys/devices/system/node/node0/cpulist", "0-1")
    put(root, "/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 16777216 kB")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    parts = {
        GPU: ("0x10de", "0x2330", "0x030200", {}),
        PF: ("0x15b3", "0x1021", "0x020700", {"sriov_totalvfs": 8}),
        VF: ("0x15b3", "0x101e", "0x020700", {"physfn": "../0000:19:00.0"}),
    }
    for address, (vendor, product, code, more) in parts.items():
        folder = f"/sys/devices/pci0000:17/{address}"
        put(root, f"{folder}/vendor", vendor)
        put(root, f"{folder}/device", product)
        put(root, f"{folder}/class", code)
        put(root, f"{folder}/numa_node", "0")
        for name, value in more.items():
            if name == "physfn":
                (root / folder.lstrip("/") / name).symlink_to(value)
                pf = root / "sys/devices/pci0000:17/0000:19:00.0/virtfn0"
                pf.symlink_to(f"../{address}")
            else:
                put(root, f"{folder}/{name}", value)
        (root / "sys/bus/pci/devices" / address).symlink_to(
            f"../../../devices/pci0000:17/{address}"
        )
    return root


class Guest:
    """A virDomain that has one device."""

    def __init__(self, address):
        self.address = address

    def name(self):
        return "by-hand"

    def UUIDString(self):
        return "11111111-1111-1111-1111-111111111111"

    def info(self):
        return [1]

    def XMLDesc(self, flags):
        bus = self.address[5:7]
        source = f"<source><address bus='0x{bus}'/></source>"
        return f"<domain><devices><hostdev type='pci'>{source}</hostdev></devices></domain>"


class Libvirt(types.ModuleType):
    """Stands for libvirt-python, which these tests do without."""

    Guest = Guest
    VIR_ERR_NO_DOMAIN = 42
    libvirtError = ConnectionError  # noqa: N815

    def __init__(self):
        super().__init__("libvirt")
        self.guests = []
        self.asked = []
        #: As virConnectGetLibVersion says it.
        self.version = 9_000_000

    def registerErrorHandler(self, handler, context):
        pass

    def openReadOnly(self, uri):
        self.asked.append(uri)
        if self.guests is None:
            raise ConnectionError("no socket")
        return self

    def getLibVersion(self):
        return self.version

    def listAllDomains(self, flags):
        assert flags == 3
        return self.guests


@pytest.fixture(autouse=True)
def libvirt(monkeypatch):
    found = Libvirt()
    monkeypatch.setitem(sys.modules, "libvirt", found)
    return found


def contents(folder):
    """The include files; the declaration is beside them."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.conf")}


@pytest.fixture
def at_home(machine, tmp_path, monkeypatch, capsys):
    """Run the command on a machine whose services find their files by themselves."""
    home = tmp_path / "home" / ".nova"
    (home / "nova.conf.d").mkdir(parents=True)
    (home / "nova.conf").write_text("[DEFAULT]\nhost = somewhere\n", encoding="ascii")
    monkeypatch.setenv("HOME", str(home.parent))

    def run(*args, write=True):
        words = ["--root", str(machine), *map(str, args)]
        if write:
            words += ["--write", str(run.folder)]
        command = Configure(None, None)
        parser = command.get_parser("nova-hpc configure")
        status = command.run(parser.parse_args(words))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    def nova(text):
        (home / "nova.conf").write_text(text, encoding="ascii")

    def write(**wishes):
        declare(run.folder / "node.yaml", **wishes)

    def told(option):
        """The values of an option in the files that were written."""
        lines = "".join(contents(run.folder).values()).splitlines()
        return [line.partition(" = ")[2] for line in lines if line.startswith(f"{option} = ")]

    run.home, run.folder, run.nova, run.told = home, home / "nova.conf.d", nova, told
    run.declare = write
    return run


def refused(answer, *texts, out=""):
    """Exit status 2 and one line for each loss."""
    assert (answer[0], answer[1]) == (2, out)
    losses = [line for line in answer[2].splitlines() if line.startswith("nova-hpc configure:")]
    assert len(losses) == len(texts), answer[2]
    for line, text in zip(losses, texts, strict=True):
        assert text in line


def declare_as_told(at_home, err):
    """Add to the declaration what the refusals name, as they name it."""
    told = {}
    for line in err.splitlines():
        head, marker, text = line.partition(f" to {at_home.folder}/node.yaml: ")
        if marker:
            expected = "nova-hpc configure: first add the device settings of these lines"
            assert head == expected
            told |= yaml.safe_load(text)
    at_home.declare(**told)
    return told
