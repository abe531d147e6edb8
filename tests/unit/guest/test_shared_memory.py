# SPDX-License-Identifier: Apache-2.0
"""What install --shared-memory leaves, and the variables of MPI."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest import build, shared_memory, shared_settings, shared_use
from nova_hpc_guest.files import Root
from nova_hpc_guest.shared_settings import NetworkDevices
from tests.unit.guest.segments import PART, SIZE, give_segment, promise_share, run_in_mounts
from tests.unit.guest.servers import fw_cfg_of, run

LIBRARY = "/usr/lib64/nova-hpc/libnova-hpc-shm.so"
CAN_MOUNT = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0,
    reason="nothing can be mounted here",
)


@pytest.fixture
def sharing(guest):
    """A guest with a segment, the library, the group and udev."""
    give_segment(guest)
    guest.file(LIBRARY[1:], "")
    guest.file("etc/group", "root:x:0:\nhpc:x:4242:alice\n")
    (guest.root / "run/udev").mkdir(parents=True)
    for name in ("eth0", "ib0", "bond0", "lo", "docker0", "slave0", "evil;reboot"):
        (guest.root / "sys/class/net" / name).mkdir(parents=True)
    for name in ("eth0/device", "ib0/device", "bond0/bonding", "slave0/device", "slave0/master"):
        (guest.root / "sys/class/net" / name).mkdir()
    (guest.root / "sys/class/net/evil;reboot/device").mkdir()
    return guest


def environment_of(guest) -> dict[str, str]:
    """The variables, as a shell has them."""
    place = guest.root / "run/nova-hpc/shared-memory.env"
    text = subprocess.run(
        ["env", "-i", "/bin/sh", "-c", 'set -a; . "$0"; exec /usr/bin/env', place],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pairs = dict(line.split("=", 1) for line in text.splitlines())
    # Whoever reads lines, as Docker and systemd, has the same.
    plain = dict(
        line.split("=", 1) for line in place.read_text().splitlines() if not line.startswith("#")
    )
    assert plain.items() <= pairs.items()
    return plain


def shell_environment_of(guest, own: str) -> dict[str, str]:
    """The variables of a shell whose user has a library of his own."""
    place = guest.root / "run/nova-hpc/shared-memory.sh"
    words = f'LD_PRELOAD="{own}"; set -u; . "$0"; exec env'
    text = subprocess.run(
        ["env", "-i", "PATH=/bin:/usr/bin", "/bin/sh", "-c", words, place],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


@CAN_MOUNT
def test_install_and_what_it_leaves(sharing):
    look = (
        f'stat -f -c "%T %b %S" {sharing.root}/run/nova-hpc/shared && '
        f'stat -c "%a" {sharing.root}/run/nova-hpc/shared'
    )
    done = run_in_mounts(sharing, "install", "--shared-memory", "--quiet", then=look)
    assert done.stderr == ""
    kind, blocks, block, mode = done.stdout.split()
    assert (kind, int(blocks) * int(block), mode) == ("tmpfs", max(PART, 17 << 20), "1777")
    device = sharing.root / "dev/dax0.0"
    assert (device.stat().st_mode & 0o777, device.stat().st_gid) == (0o660, 4242)
    assert str((sharing.root / "dev/nova-hpc-shared").readlink()) == "dax0.0"
    lock = sharing.root / "run/nova-hpc/shared.lock"
    assert (lock.stat().st_mode & 0o777, lock.stat().st_gid) == (0o660, 4242)
    assert (sharing.root / "run/nova-hpc/part").read_text() == "1\n"
    rule = (sharing.root / "run/udev/rules.d/60-nova-hpc-shared-memory.rules").read_text()
    assert rule.splitlines()[1:] == [
        f'SUBSYSTEM=="dax", KERNEL=="dax0.0", ATTR{{size}}=="{SIZE}", GROUP="hpc", MODE="0660", '
        'SYMLINK+="nova-hpc-shared"'
    ]
    settings = environment_of(sharing)
    assert settings["LD_PRELOAD"] == LIBRARY
    # A shell has the same, and the user's own libraries behind it.
    for own, preload in (
        ("", LIBRARY),
        ("/usr/lib/libtcmalloc.so", f"{LIBRARY}:/usr/lib/libtcmalloc.so"),
    ):
        assert (
            shell_environment_of(sharing, own).items()
            >= {**settings, "LD_PRELOAD": preload}.items()
        )
    assert settings["UCX_POSIX_DIR"] == "/run/nova-hpc/shared"
    assert settings["UCX_NET_DEVICES"] == "bond0,eth0,ib0"
    # A second time, in other mounts, only those are new.
    again = run_in_mounts(sharing, "install", "--shared-memory")
    assert (again.stdout, again.stderr) == ("mounted /run/nova-hpc/shared\n", "")
    assert run(sharing, "check", "--quiet") == (0, "", "")


@CAN_MOUNT
def test_what_is_mounted_stays(sharing):
    """A second install must not hide the files of ranks that run."""
    mark = f"{sharing.root}/run/nova-hpc/shared/rank"
    once_more = f'touch {mark} && "$@" && ls {mark}'
    done = run_in_mounts(sharing, "install", "--shared-memory", then=once_more)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("mounted ") == 1
    assert done.stdout.endswith(f"{mark}\n")


@CAN_MOUNT
def test_without_the_group_root_alone_uses_it(sharing):
    (sharing.root / "etc/group").write_text("root:x:0:\nhpcusers:x:7:\n")
    done = run_in_mounts(sharing, "install", "--shared-memory")
    assert "there is no group hpc: root alone can use the memory" in done.stdout
    assert (sharing.root / "dev/dax0.0").stat().st_mode & 0o777 == 0o600
    rule = (sharing.root / "run/udev/rules.d/60-nova-hpc-shared-memory.rules").read_text()
    assert "GROUP" not in rule
    assert 'MODE="0600"' in rule


def test_plain_install_leaves_none_of_it(sharing):
    assert run(sharing, "install")[0] == 0
    assert not (sharing.root / "run/nova-hpc/part").exists()
    assert not (sharing.root / "dev/nova-hpc-shared").exists()


@CAN_MOUNT
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("library", "libnova-hpc-shm.so is not there: install the package nova-hpc-shm"),
        ("device", "this kernel has made no device of it"),
        ("head", "/dev/dax0.0: it has no head that this command can read"),
    ],
)
def test_what_is_missing_is_named_and_jobs_use_the_network(sharing, what, text):
    assert run_in_mounts(sharing, "install", "--shared-memory").returncode == 0
    variables = sharing.root / "run/nova-hpc/shared-memory.env"
    assert variables.exists()
    if what == "library":
        (sharing.root / LIBRARY[1:]).unlink()
    elif what == "device":
        shutil.rmtree(sharing.root / "sys/bus/dax")
    else:
        with (sharing.root / "dev/dax0.0").open("r+b") as stream:
            stream.write(bytes(64))
    done = run_in_mounts(sharing, "install", "--shared-memory")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"no shared memory for programs: {text}" in done.stdout
    assert not variables.exists()


@CAN_MOUNT
@pytest.mark.parametrize("value", [None, {"why": "full"}])
def test_a_boot_without_shared_memory_forgets_it(sharing, value):
    assert run_in_mounts(sharing, "install", "--shared-memory").returncode == 0
    if value is None:
        fw_cfg_of(sharing).unlink()
        (sharing.root / "run/nova-hpc/guest.json").unlink()
    else:
        promise_share(sharing, value)
    assert run(sharing, "install", "--shared-memory", "--if-present")[0] == 0
    for name in ("shared-memory.env", "shared-memory.sh", "part"):
        assert not (sharing.root / "run/nova-hpc" / name).exists()


@CAN_MOUNT
@pytest.mark.parametrize("what", ["device", "lock", "pointer", "folder"])
def test_a_link_is_not_followed(sharing, tmp_path, what):
    other = tmp_path / "other"
    other.write_text("mine\n")
    other.chmod(0o600)
    (sharing.root / "run/nova-hpc").mkdir(parents=True)
    if what == "device":
        # Opened for its head before, which does not follow it either.
        (sharing.root / "dev/dax0.0").unlink()
        (sharing.root / "dev/dax0.0").symlink_to(other)
    elif what == "lock":
        (sharing.root / "run/nova-hpc/shared.lock").symlink_to(other)
    elif what == "pointer":
        (sharing.root / "dev/nova-hpc-shared").symlink_to(other)
    else:
        (sharing.root / "run/nova-hpc/shared").symlink_to(tmp_path)
    done = run_in_mounts(sharing, "install", "--shared-memory")
    assert other.stat().st_mode & 0o777 == 0o600
    assert other.read_text() == "mine\n"
    if what == "pointer":
        assert str((sharing.root / "dev/nova-hpc-shared").readlink()) == "dax0.0"
    elif what != "device":
        assert done.returncode == 2
    assert (sharing.root / "run/nova-hpc/shared-memory.env").exists() == (what == "pointer")


# -- the variables ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ucx", "rdma", "told"),
    [
        ((1, 13), (), True),
        ((1, 21), (), True),
        ((1, 22), (), False),
        ((2, 0), (), False),
        (None, (), True),
        # It would keep large messages off InfiniBand as well.
        ((1, 13), ("mlx5_0:1",), False),
    ],
)
def test_large_messages_are_kept_off_the_network_where_ucx_would_use_it(ucx, rdma, told):
    devices = NetworkDevices(("eth0",), rdma)
    settings = dict(shared_settings.build_shared_settings(LIBRARY, "/d", ucx, devices))
    assert settings.get("UCX_RNDV_THRESH") == ("inf" if told else None)
    assert settings["UCX_NET_DEVICES"] == ",".join(("eth0", *rdma))


@pytest.mark.parametrize(
    ("mib", "cpus", "room"),
    [(2, 1, 0), (9, 1, 0), (10, 1, None), (64, 7, None), (64, 8, 7), (18, 2, 1)],
)
def test_a_part_that_is_small_for_its_machine_is_said_to_be(mib, cpus, room):
    hint = shared_settings.describe_small_part(mib << 20, cpus)
    text = shared_settings.format_environment((("A", "b"),), (1, 22), hint)
    assert text.splitlines()[-1] == "A=b"
    assert all(line.startswith("#") for line in text.splitlines()[:-1])
    if room is None:
        assert hint is None
    else:
        assert f"The part of {mib} MiB has room for {room} of {cpus} MPI processes" in text
        assert "UCX_POSIX_SEG_SIZE=4k and UCX_POSIX_RX_BUFS_GROW=64" in text


@given(
    st.lists(st.sampled_from(["eth0", "ib0"]), unique=True),
    st.lists(st.sampled_from(["mlx5_0:1", "mlx5_1:2"]), unique=True),
    st.lists(st.sampled_from(["xpmem", "knem"]), unique=True),
    st.none() | st.tuples(st.integers(1, 2), st.integers(0, 40)),
)
def test_every_setting_reaches_ranks_on_other_servers(interfaces, rdma, copiers, ucx):
    devices = NetworkDevices(tuple(interfaces), tuple(rdma), tuple(copiers))
    pairs = shared_settings.build_shared_settings(LIBRARY, "/d", ucx, devices)
    settings = dict(pairs)
    listed = settings["OMPI_MCA_mca_base_env_list"].split(",")
    assert listed == [name for name in settings if not name.startswith("OMPI_MCA_")]
    assert settings["UCX_TLS"].startswith("^cma,sysv")
    assert "lo" not in settings.get("UCX_NET_DEVICES", "").split(",")
    # No character that a shell, systemd or Docker would take for something else.
    for value in settings.values():
        assert not set(value) & set(" \"'$`\\;&|<>()#*?\n")


UCP = """
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release) {
    *major = MAJOR; *minor = MINOR; *release = 7;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize(
    ("source", "version"),
    [
        (UCP, (1, 13)),
        ("int x;", None),
        ("__attribute__((constructor)) static void end(void) { __builtin_trap(); }", None),
    ],
)
def test_a_library_says_its_version_or_none(tmp_path, source, version):
    """Also one that ends whoever loads it."""
    target = tmp_path / "usr/lib64/libucp.so.0"
    target.parent.mkdir(parents=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-DMAJOR=1", "-DMINOR=13", "-x", "c", "-", "-o", target],
        input=source,
        text=True,
        check=True,
    )
    assert shared_memory.find_ucx_version(Root(str(tmp_path))) == version


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
@pytest.mark.parametrize(("written", "told"), [("1.13", False), ("1.22", True)])
def test_another_ucx_than_the_variables_are_for(guest, written, told):
    guest.file(LIBRARY[1:], "")
    guest.file("run/nova-hpc/shared-memory.env", f"# For UCX {written}.\nLD_PRELOAD={LIBRARY}\n")
    target = guest.root / "usr/lib64/libucp.so.0"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-DMAJOR=1", "-DMINOR=13", "-x", "c", "-", "-o", target],
        input=UCP,
        text=True,
        check=True,
    )
    found = shared_use.find_obstacles(Root(str(guest.root)))
    assert [text for text in found if "for another UCX than 1.13" in text] == list(found)
    assert bool(found) is told


def test_no_ucx_has_no_version(tmp_path):
    assert shared_memory.find_ucx_version(Root(str(tmp_path))) is None


# -- the unit --------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_the_unit_of_shared_memory_is_a_unit(tmp_path):
    text = (Path(build.__file__).parent / "data/nova-hpc-shared-memory.service").read_text()
    assert f"ExecStart={build.COMMAND} install --shared-memory" in text
    unit = tmp_path / "nova-hpc-shared-memory.service"
    (tmp_path / "nova-hpc-guest.service").write_text("[Service]\nExecStart=/bin/true\n")
    unit.write_text(text.replace(f"{build.COMMAND} ", "/bin/true ").replace("slurmd", "basic"))
    seen = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (seen.returncode, seen.stderr) == (0, "")
