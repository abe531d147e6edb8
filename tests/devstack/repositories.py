# SPDX-License-Identifier: Apache-2.0
"""Git repositories for devstack's GIT_BASE, made of PyPI's source archives, and an image."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Repository -> its distribution and release; constraints.txt has those of Nova's neighbours.
PROJECTS: Final[Mapping[str, tuple[str, str]]] = {
    "keystone": ("keystone", "30.0.0"),
    "glance": ("glance", "33.0.0"),
    "neutron": ("neutron", "29.0.0"),
    "nova": ("nova", "34.0.0"),
    "placement": ("openstack-placement", "16.0.0"),
    "tempest": ("tempest", "47.0.0"),
}
#: What devstack takes from the list of requirements and constraints.txt has no line for.
MORE: Final = (
    *("python-openstackclient", "keystonemiddleware", "python-memcached", "glance-store"),
    *("osc-placement", "PyMySQL", "libvirt-python", "psutil", "pymemcache", "setuptools"),
    *("testrepository", "os-testr"),
)
#: openstack/requirements' own does not start with today's setuptools.
EDIT_CONSTRAINTS: Final = '''
import pathlib, re, sys

def main():
    """edit-constraints FILE -- NAME [LINE]: replace the line of a package, or take it out."""
    words = [word for word in sys.argv[1:] if word != "--"]
    file, name, line = pathlib.Path(words[0]), words[1], words[2:]
    plain = lambda text: re.sub("[-_.]+", "-", re.split("[=<>!~;@ ]", text)[0]).lower()
    kept = [each for each in file.read_text().splitlines() if plain(each) != plain(name)]
    file.write_text("".join(f"{each}\\n" for each in [*kept, *line]))
'''
REQUIREMENTS_SETUP: Final = (
    "import setuptools\n"
    "setuptools.setup(name='openstack-requirements', version='1.0',"
    " py_modules=['edit_constraints'],"
    " entry_points={'console_scripts': ['edit-constraints = edit_constraints:main']})\n"
)


def run(*words: object, cwd: Path | None = None, **environment: str) -> str:
    """Run a program that has to end well; its output."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment or None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}"
    return done.stdout


def publish_repository(folder: Path, base: Path, name: str, version: str = "1.0") -> None:
    """Make a bare repository of a folder: one commit on master, with a tag for pbr."""
    target = base / f"{name}.git"
    shutil.rmtree(target, ignore_errors=True)
    author = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    run("git", "init", "-q", "-b", "master", cwd=folder)
    run("git", "add", "-A", "-f", cwd=folder)
    run("git", *author, "commit", "-q", "-m", f"{name} {version}", cwd=folder)
    run("git", *author, "tag", "-a", "-m", version, version, cwd=folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    run("git", "clone", "-q", "--bare", folder, target)


def publish_projects(base: Path, archives: Path) -> None:
    """The projects of OpenStack, each from its source archive."""
    archives.mkdir(parents=True, exist_ok=True)
    builder = archives / "venv"
    if not (builder / "bin" / "pip").exists():
        run(sys.executable, "-m", "venv", builder)
        # With today's at hand, pip needs no environment for the metadata of each.
        run(builder / "bin" / "pip", "install", "-q", "-U", "setuptools", "pbr", "wheel")
    for name, (distribution, version) in PROJECTS.items():
        if (base / "openstack" / f"{name}.git").is_dir():
            continue
        archive = archives / f"{distribution.replace('-', '_')}-{version}.tar.gz"
        if not archive.exists():
            # From a folder without a checkout, which would be taken for the package.
            plain = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
            wanted = f"{distribution}=={version}"
            pip = builder / "bin" / "pip"
            run(pip, "download", "-q", *plain, "-d", archives, wanted, cwd=Path("/"))
        with tempfile.TemporaryDirectory() as scratch:
            run("tar", "--no-same-owner", "-xf", archive, "-C", scratch)
            (folder,) = Path(scratch).iterdir()
            # A checkout has neither, and pbr would take the version from them.
            (folder / "PKG-INFO").unlink()
            for each in folder.glob("*.egg-info"):
                shutil.rmtree(each)
            publish_repository(folder, base / "openstack", name, version)


def publish_requirements(base: Path, constraints: Path) -> None:
    """openstack/requirements, of the project's constraints; and a list of no images."""
    lines = [re.sub(r"\s*#.*", "", line) for line in constraints.read_text().splitlines()]
    upper = [re.sub("==+", "===", line, count=1) for line in lines if line]
    names = sorted({*(line.partition("===")[0].replace("_", "-") for line in upper), *MORE})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "upper-constraints.txt").write_text("\n".join(upper) + "\n")
        # devstack refuses a name without a bound.
        bounds = "".join(f"{name}>=0\n" for name in names)
        (folder / "global-requirements.txt").write_text(bounds)
        (folder / "edit_constraints.py").write_text(EDIT_CONSTRAINTS)
        (folder / "setup.py").write_text(REQUIREMENTS_SETUP)
        publish_repository(folder, base / "openstack", "requirements")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "images").mkdir()
        (folder / "images" / "manifest.yaml").write_text("images: []\n")
        (folder / "tox.ini").write_text(
            "[tox]\nskipsdist = true\n[testenv:generate]\nskip_install = true\n"
            "allowlist_externals = true\ncommands = true\n"
        )
        publish_repository(folder, base / "openstack", "os-test-images")


def publish_checkouts(base: Path, devstack: Path, project: Path) -> None:
    """devstack as it is, and this project's commit as main."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "devstack")
        shutil.copytree(devstack, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        publish_repository(folder, base, "devstack")
    target = base / "nova-hpc.git"
    shutil.rmtree(target, ignore_errors=True)
    run("git", "clone", "-q", "--bare", project, target)
    head = run("git", "-C", project, "rev-parse", "HEAD").strip()
    run("git", "-C", target, "update-ref", "refs/heads/main", head)


def build_image(image: Path) -> None:
    """A bootable disk of 24 MiB: Debian's kernel for clouds, busybox and syslinux."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        depends = run("apt-cache", "depends", "linux-image-cloud-amd64")
        kernel = re.search(r"Depends: (linux-image-[0-9]\S*)", depends)
        assert kernel is not None, depends
        run("apt-get", "download", "-q", kernel[1], cwd=work)
        run("dpkg-deb", "-x", next(work.glob("linux-image-*.deb")), work / "kernel")
        for each in ("bin", "proc", "sys", "dev"):
            (work / "init" / each).mkdir(parents=True)
        busybox = shutil.which("busybox")
        assert busybox is not None
        shutil.copy(busybox, work / "init" / "bin")
        init = work / "init" / "init"
        init.write_text(
            "#!/bin/busybox sh\n/bin/busybox --install -s /bin\n"
            "mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n"
            "echo tiny: up\nexec setsid sh -c 'exec sh < /dev/ttyS0 > /dev/ttyS0 2>&1'\n"
        )
        init.chmod(0o755)
        pack = "cd init && find . | cpio -o -H newc -R 0:0 --quiet | gzip -9 > ../initrd.gz"
        run("bash", "-c", pack, cwd=work)
        disk = work / "disk"
        run("truncate", "-s", "24M", disk)
        run("mkfs.vfat", "-F", "16", disk)
        (work / "syslinux.cfg").write_text(
            "DEFAULT tiny\nTIMEOUT 1\nLABEL tiny\n KERNEL vmlinuz\n"
            " APPEND initrd=initrd.gz console=tty0 console=ttyS0 quiet\n"
        )
        for source, name in (
            (next((work / "kernel/boot").glob("vmlinuz-*")), "vmlinuz"),
            (work / "initrd.gz", "initrd.gz"),
            (work / "syslinux.cfg", "syslinux.cfg"),
        ):
            run("mcopy", "-i", disk, source, f"::{name}")
        run("syslinux", "--install", disk)
        shutil.copy(disk, image)
