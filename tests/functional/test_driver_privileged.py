# SPDX-License-Identifier: Apache-2.0
"""What only root may do, through a real daemon of oslo.privsep."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tenancy.hygiene_node import GPU, OTHER, FakeNode, config, make

# In a process of its own: the daemon is a fork of it, and reads the same configuration.
START = """\
import os, sys
from pathlib import Path
from oslo_config import cfg
from oslo_privsep import priv_context
import nova.conf
from nova_hpc import conf as hpc_conf
from virt_driver_patches import privileged

root = Path(sys.argv[1])
CONF = nova.conf.CONF
hpc_conf.register_all_options(CONF)
CONF([], project="nova")
for name, value in {
    "sysfs_root": str(root),
    "ledger_file": str(root / "state/ledger.json"),
    "reset_timeout": 1.0,
    "clean_drivers": {"gpu": "nvidia"},
}.items():
    CONF.set_override(name, value, group="hpc")
"""
DAEMON = """\
privileged.default.start(priv_context.Method.FORK)

def tell(call, *arguments):
    try:
        print(call(*arguments))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
"""
END = "os._exit(0)\n"

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start the daemon by itself")


def run(text: str, root: Path, *more: str, before: str = "") -> list[str]:
    """The lines that a program prints which has started the daemon.

    :param before: the daemon reads what this has set.
    """
    whole = START + before + DAEMON + text + END
    argv = [sys.executable, "-W", "ignore", "-c", whole, str(root), *more]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    (tmp_path / "state").mkdir()
    return make(tmp_path)


@only_root
def test_reset_and_reading(node: FakeNode) -> None:
    node.hang(OTHER)
    node.config(GPU, master=True)
    found = run(
        f"""
tell(privileged.reset_by_helper, "{GPU}")
tell(privileged.reset_by_helper, "{OTHER}")
found = privileged.read_configs_by_helper(["{GPU}", "0000:99:00.0", "../../etc"])
print(sorted(found), len(found["{GPU}"]), found["{GPU}"].hex()[:16])
""",
        node.root,
    )
    assert found == [
        "None",
        "ResetError: it did not answer within 1 seconds",
        f"['{GPU}'] 4096 {config().hex()[:16]}",
    ]
    assert node.resets(GPU)
    assert (node.root / "state/.ledger.json.locks").is_dir()


#: What each function would be asked by a service that somebody has taken over.
HOSTILE = f"""
import attrs
for place in ("/", "../..", "../../../../etc", "{GPU}/../../../../etc", "{GPU}\\n", "", "lo", "*"):
    tell(privileged.reset_by_helper, place)
    tell(privileged.bind_by_helper, root, place, "vfio-pci", 1.0)
    tell(privileged.read_vpd_by_helper, place)
    holders = sorted(privileged.find_holders_by_helper([place]))
    print(privileged.read_configs_by_helper([place]), holders)
    tell(privileged._write_setting_in_helper, place, "mac", "0e:00:00:00:00:01")
"""


@only_root
def test_a_device_is_a_pci_address_and_nothing_else(node: FakeNode) -> None:
    before = {path: path.read_bytes() for path in node.root.rglob("*") if path.is_file()}
    found = run(HOSTILE, node.root)
    assert len(found) == 5 * 8
    for reset, bind, vpd, read, write in zip(*[iter(found)] * 5, strict=True):
        assert reset.startswith("ResetError: ")
        assert "is not a PCI address" in reset
        assert bind.startswith("BindError: ")
        assert "is not a PCI address" in bind
        assert vpd.startswith("FileError: ")
        assert "is not a PCI address" in vpd
        assert read.startswith("{} [")
        assert write.startswith("(False, ")
        assert "is not a PCI address" in write
    after = {path: path.read_bytes() for path in node.root.rglob("*") if path.is_file()}
    assert before == after


@only_root
def test_roots_folders_and_times_are_not_the_callers(node: FakeNode, tmp_path: Path) -> None:
    """The functions have no such parameters: what is added is refused by the daemon itself."""
    other = tmp_path / "other"
    shutil.copytree(node.root / "sys", other / "sys", symlinks=True)
    found = run(
        f"""
other = sys.argv[2]
tell(privileged._reset_in_helper, other, "{GPU}", 20.0, other + "/locks")
tell(privileged._find_holders_in_helper, other, ["{GPU}"])
tell(privileged._read_configs_in_helper, other, ["{GPU}"])
tell(privileged._bind_in_helper, other, "{GPU}", "nvidia", 20.0)
tell(privileged._read_vpd_in_helper, other, "{GPU}")
tell(privileged.bind_by_helper, Path(other), "{GPU}", "nvidia", 20.0)
""",
        node.root,
        str(other),
    )
    assert all(each.startswith("TypeError: ") for each in found[:5]), found
    # The daemon's own place has no files to bind by.
    assert found[5].startswith("BindError: ")
    assert "there is no /sys/bus/pci" in found[5]
    assert not (other / "locks").exists()
    assert (other / f"sys/bus/pci/devices/{GPU}/reset").read_text() == "\n"


@only_root
def test_links_are_not_followed_out_of_sys(node: FakeNode) -> None:
    target = node.root / "etc/shadow"
    target.parent.mkdir()
    target.write_text("mine")
    device = node.devices / GPU
    for name in ("reset", "vpd", "config", "driver_override"):
        (device / name).unlink(missing_ok=True)
        (device / name).symlink_to("/etc/shadow")
    (node.root / "sys/bus/pci/drivers/vfio-pci/unbind").symlink_to("/etc/shadow")
    (node.root / "sys/bus/pci/drivers_probe").symlink_to("/etc/shadow")
    found = run(
        f"""
tell(privileged.reset_by_helper, "{GPU}")
tell(privileged.bind_by_helper, root, "{GPU}", "nvidia", 1.0)
tell(privileged.read_vpd_by_helper, "{GPU}")
tell(privileged.read_configs_by_helper, ["{GPU}"])
""",
        node.root,
    )
    assert all("out of /sys" in each for each in found[:3]), found
    assert found[3] == "{}"
    assert target.read_text() == "mine"


@only_root
def test_no_lock_is_made_through_a_link(node: FakeNode) -> None:
    """In the folder of a service that is another user."""
    target = node.root / "etc"
    target.mkdir()
    state = node.root / "state"
    os.chown(state, 65534, 65534)
    (state / ".ledger.json.locks").symlink_to(target)
    found = run(f'tell(privileged.reset_by_helper, "{GPU}")\n', node.root)
    assert found[0].startswith("ResetError: cannot make the directory of locks ")
    assert not list(target.iterdir())
    assert not node.resets(GPU)
    (state / ".ledger.json.locks").unlink()
    state.rename(node.root / "real")
    os.chown(node.root, 65534, 65534)
    state.symlink_to(target)
    (text,) = run(f'tell(privileged.reset_by_helper, "{GPU}")\n', node.root)
    assert "others than root may write" in text
    assert not list(target.iterdir())


@only_root
def test_which_drivers_there_are(node: FakeNode) -> None:
    """By the daemon's own configuration and the kernel's word, whatever a driver is called."""
    for name in ("driver_override", "driver/unbind"):
        (node.devices / GPU / name).write_text("")
    (node.root / "sys/bus/pci/drivers_probe").write_text("")
    node.write(GPU, "modalias", "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00")
    release = node.root / "proc/sys/kernel/osrelease"
    release.write_text("6.8.0-generic\n")
    aliases = node.root / "lib/modules/6.8.0-generic/modules.alias"
    aliases.parent.mkdir(parents=True)
    aliases.write_text(
        "# Aliases\n"
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000010DEd00002330sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n"
        "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
        "alias pci:v000010DEd*sv*sd*bc03sc*i* nouveau\n"
    )
    names = ("nvidia", "nvgrace-gpu-vfio-pci", "mlx5_vfio_pci", "nouveau", "evil\\n", "../x")
    text = "".join(
        f'tell(privileged.bind_by_helper, root, "{GPU}", "{each}", 1.0)\n' for each in names
    )
    found = run(text, node.root)
    assert found[0] == "BindError: it cannot be bound to nvidia: it is bound to vfio-pci"
    variant = "nvgrace-gpu-vfio-pci"
    assert found[1] == f"BindError: it cannot be bound to {variant}: it is bound to vfio-pci"
    for each in found[2:]:
        assert each.startswith(
            "BindError: it may be bound to nvgrace-gpu-vfio-pci, nvgrace_gpu_vfio_pci, nvidia, "
            "vfio-pci ([hpc]clean_drivers), and not to "
        ), each
    assert (node.devices / GPU / "driver_override").read_text() == f"{variant}\n"
    # It may stay with what it has, and go back to what it had, and to nothing else.
    node.bind(GPU, "i915")
    (node.devices / GPU / "driver/unbind").write_text("")
    found = run(
        f"""
tell(privileged.bind_by_helper, root, "{GPU}", "i915", 1.0)
tell(privileged.bind_by_helper, root, "{GPU}", "vfio-pci", 1.0)
link = root / "sys/bus/pci/devices/{GPU}/driver"
link.unlink()
tell(privileged.bind_by_helper, root, "{GPU}", "i915", 1.0)
# As the daemon, with a kernel that does what it is told.
privileged.default.set_client_mode(False)
def kernel(root, address, driver, timeout):
    link.unlink(missing_ok=True)
    link.symlink_to(f"/sys/bus/pci/drivers/{{driver}}")
privileged.binding.bind_device = kernel
kernel(root, "", "xe", 0)
for each in ("vfio-pci", "xe", "nvidia", "i915"):
    tell(privileged.bind_by_helper, root, "{GPU}", each, 1.0)
""",
        node.root,
    )
    assert found[0] == "None"
    assert found[1].endswith("it is bound to i915")
    assert "and not to 'i915'" in found[2], "nothing was taken from it yet"
    assert found[3:6] == ["None", "None", "None"]
    assert "vfio-pci, xe ([hpc]clean_drivers), and not to 'i915'" in found[6]


@only_root
def test_only_a_disk_that_was_taken_from_vfio_is_erased(node: FakeNode) -> None:
    """A service that was taken over cannot erase what the host has, or what it names."""
    erase = f'tell(privileged.erase_disk_by_helper, "{GPU}")\n'
    daemon = f"""
privileged.default.set_client_mode(False)
CONF.set_override("clean_drivers", {{"nvme": "nvme"}}, group="hpc")
{erase}privileged._had["{GPU}"] = {{"vfio-pci"}}
{erase}"""
    node.bind(GPU, "nvme")
    found = run(f'{erase}tell(privileged.erase_disk_by_helper, "../x")\n{daemon}', node.root)
    assert found[0].startswith("LateError: it was not taken from a VFIO driver")
    assert "../x" in found[1]
    assert found[1].startswith("LateError: ")
    assert found[2] == found[0]
    # Then its check is made: this one is no disk.
    assert json.loads(found[3])["unable"] is True
    assert "NVMe" in json.loads(found[3])["reason"]
    net = node.devices / GPU / "net/ens1"
    net.mkdir(parents=True)
    (net / "flags").write_text("0x1003\n")
    (net / "upper_bond0").symlink_to("/sys/class/net/bond0")
    found = run(daemon, node.root)
    assert found[1].startswith("LateError: the host uses")


@only_root
def test_nothing_is_taken_from_the_host(node: FakeNode) -> None:
    """A function whose interface the host uses is neither reset nor given away."""
    node.bind(GPU, "ice")
    net = node.devices / GPU / "net/ens1"
    net.mkdir(parents=True)
    (net / "flags").write_text("0x1003\n")
    (net / "upper_bond0").symlink_to("/sys/class/net/bond0")
    found = run(
        f'tell(privileged.reset_by_helper, "{GPU}")\n'
        f'tell(privileged.bind_by_helper, root, "{GPU}", "vfio-pci", 1.0)\n',
        node.root,
    )
    assert found[0].startswith("HeldError: the host uses its network interface ens1")
    assert "the host uses its network interface ens1" in found[1]
    assert not node.resets(GPU)


@only_root
def test_another_configuration_is_noticed(node: FakeNode) -> None:
    found = run(
        """
tell(privileged.expect_same_settings, CONF)
CONF.set_override("ledger_file", "/elsewhere/ledger.json", group="hpc")
tell(privileged.expect_same_settings, CONF)
""",
        node.root,
    )
    assert found[0] == "None"
    assert found[1].startswith(
        "SettingsError: the privileged helper goes by another configuration: [hpc]ledger_file is "
    )
    assert "'/elsewhere/ledger.json' here" in found[1]


@only_root
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_root_where_others_write_is_refused(node: FakeNode, mode: int) -> None:
    node.root.chmod(mode)
    found = run(
        f"""
tell(privileged.reset_by_helper, "{GPU}")
tell(privileged.bind_by_helper, root, "{GPU}", "vfio-pci", 1.0)
tell(privileged.read_vpd_by_helper, "{GPU}")
print(privileged.find_holders_by_helper(["{GPU}"])["{GPU}"].text)
tell(privileged.expect_same_settings, CONF)
""",
        node.root,
    )
    assert len(found) == 5
    assert all("others than root may write" in each for each in found), found
    assert not node.resets(GPU)


@only_root
def test_the_daemon_reads_its_own_files(node: FakeNode) -> None:
    """Started by its command, as rootwrap does, it knows nothing but what the files say."""
    path = node.root / "nova.conf"
    path.write_text(
        f"[DEFAULT]\nstate_path = {node.root}/state\n"
        f"[hpc]\nsysfs_root = {node.root}\nreset_timeout = 5\n"
        f"[nova_hpc_privileged]\nhelper_command = {sys.executable} -W ignore -c "
        f'"from oslo_privsep.daemon import helper_main; helper_main()" --config-file {path}\n'
    )
    script = f"""\
import sys
import nova.conf
from nova_hpc import conf as hpc_conf
from virt_driver_patches import privileged
CONF = nova.conf.CONF
hpc_conf.register_all_options(CONF)
CONF(["--config-file", sys.argv[1]], project="nova")
privileged.expect_same_settings(CONF)
privileged.reset_by_helper("{GPU}")
CONF.set_override("sysfs_root", "/", group="hpc")
try:
    privileged.expect_same_settings(CONF)
except privileged.SettingsError as error:
    print(error)
print(privileged.default.channel is not None)
sys.stdout.flush()
"""
    argv = [sys.executable, "-W", "ignore", "-c", script, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "the privileged helper goes by another configuration: [hpc]sysfs_root is "
        f"{str(node.root)!r} there and '/' here; give it the same files by "
        "[nova_hpc_privileged]helper_command, and restart nova-compute",
        "True",
    ]
    assert node.resets(GPU)
    assert (node.root / "state/.hpc-ledger.json.locks").is_dir()


FILTERS = Path(__file__).parents[2] / "etc/rootwrap.d"
HELPER = "privsep-helper --config-file {} --privsep_context {} --privsep_sock_path {}"
CONTEXT = "virt_driver_patches.privileged.default"
SOCKET = "/tmp/tmpk3_x9a0b/privsep.sock"


@pytest.mark.parametrize(
    ("path", "context", "socket", "good"),
    [
        ("/etc/nova/nova.conf", CONTEXT, SOCKET, True),
        ("/etc/nova/nova-cpu.conf", CONTEXT, SOCKET, True),
        ("/etc/nova/../../tmp/mine.conf", CONTEXT, SOCKET, False),
        ("/etc/nova/..", CONTEXT, SOCKET, False),
        ("/etc/../tmp/mine.conf", CONTEXT, SOCKET, False),
        ("/etcetera/nova.conf", CONTEXT, SOCKET, False),
        ("/var/lib/nova/mine.conf", CONTEXT, SOCKET, False),
        ("/etc/nova/nova.conf", "virt_driver_patches.privileged_default", SOCKET, False),
        ("/etc/nova/nova.conf", CONTEXT, "/tmp/../etc/passwd", False),
    ],
)
def test_the_filter_of_rootwrap(path: str, context: str, socket: str, good: bool) -> None:
    from oslo_rootwrap import wrapper

    # Rootwrap of this release adds one of its own that lets any helper start.
    (ours,) = (each for each in wrapper.load_filters([str(FILTERS)]) if "nova_hpc" in each.name)
    words = HELPER.format(path, context, socket).split()
    assert ours.match(words) is good


REFUSED = """\
import os
import nova.conf
from nova import exception
from nova_hpc import conf as hpc_conf
from virt_driver_patches import privileged
from virt_driver_patches.driver.reading import ReadingSource
from virt_driver_patches.driver.tenancy import steps_of

CONF = nova.conf.CONF
CONF([], project="nova")
hpc_conf.register_all_options(CONF)
# As with nova-rootwrap that knows no filter for the helper.
CONF.set_override("helper_command", "false", group="nova_hpc_privileged")
os.geteuid = lambda: 1000
try:
    list(steps_of(CONF, ReadingSource.from_config(CONF)))
except exception.InvalidConfiguration as error:
    print(error)
"""


def test_a_service_that_may_not_is_refused() -> None:
    argv = [sys.executable, "-W", "ignore", "-c", REFUSED]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "copy etc/rootwrap.d/nova-hpc.filters" in done.stdout
    assert "[hpc]clean_devices = False" in done.stdout
