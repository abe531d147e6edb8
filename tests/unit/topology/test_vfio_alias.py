# SPDX-License-Identifier: Apache-2.0
"""The VFIO drivers that the kernel names for a function."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc.topology import vfio_alias
from nova_hpc.topology.files import Tree

GPU = "0000:41:00.0"
GENERIC = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
GRACE = "alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n"
MLX5 = "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
HOSTS = "alias pci:v000010DEd00002342sv*sd*bc*sc*i* nouveau\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    device = tmp_path / f"sys/bus/pci/devices/{GPU}"
    device.mkdir(parents=True)
    (device / "modalias").write_text("pci:v000010DEd00002342sv000010DEsd000016EBbc03sc02i00\n")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_text("6.8.0-1\n")
    (tmp_path / "lib/modules/6.8.0-1").mkdir(parents=True)
    return tmp_path


def found(root: Path, text: str = "") -> set[str]:
    (root / "lib/modules/6.8.0-1/modules.alias").write_text(text)
    return set(vfio_alias.drivers(Tree(root), GPU))


def test_the_driver_for_all(root):
    assert found(root) == {"vfio-pci"}
    assert found(root, GENERIC) == {"vfio-pci", "vfio_pci"}
    # A kernel without the file, and one that does not say its name.
    (root / "lib/modules/6.8.0-1/modules.alias").unlink()
    assert set(vfio_alias.drivers(Tree(root), GPU)) == {"vfio-pci"}
    (root / "proc/sys/kernel/osrelease").unlink()
    assert set(vfio_alias.drivers(Tree(root), GPU)) == {"vfio-pci"}


def test_a_variant_of_this_device_alone(root):
    variant = {"nvgrace_gpu_vfio_pci", "nvgrace-gpu-vfio-pci"}
    assert found(root, GRACE + MLX5) == {"vfio-pci", *variant}


def test_drivers_of_the_host_are_none(root):
    assert found(root, HOSTS + "nonsense\n# alias vfio_pci:* evil\n") == {"vfio-pci"}


def test_the_driver_that_has_it_and_speaks_vfio(root):
    """As a vendor's driver does for its vGPUs, without any alias."""
    device = root / f"sys/bus/pci/devices/{GPU}"
    (device / "driver").symlink_to("/sys/bus/pci/drivers/nvidia")
    assert found(root) == {"vfio-pci"}
    (device / "vfio-dev/vfio0").mkdir(parents=True)
    assert found(root) == {"vfio-pci", "nvidia"}
