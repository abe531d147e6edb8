# SPDX-License-Identifier: Apache-2.0
"""Which driver speaks VFIO, by the kernel's word."""

from pathlib import Path

import pytest

from nova_hpc.topology import sysfs, vfio
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import PciFunction
from nova_hpc.topology.vfio import Kernel, Vfio

ALIASES = """\
# Aliases extracted from modules themselves.
alias pci:v000010DEd00002342sv*sd*bc*sc*i* nvidia
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
alias vfio_pci:v000010DEd*sv*sd*bc*sc*i* everything_vfio_pci
alias vfio_pci:v00001AF4d00001041sv*sd*bc*sc*i* other_module
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
"""


def machine(root: Path, aliases: str | None = ALIASES, says: bool = False) -> FileTree:
    (root / "proc/sys/kernel").mkdir(parents=True)
    (root / "proc/sys/kernel/osrelease").write_text("6.8.0-45-generic\n")
    if aliases is not None:
        folder = root / "lib/modules/6.8.0-45-generic"
        folder.mkdir(parents=True)
        (folder / "modules.alias").write_text(aliases)
    if says:
        (root / "sys/class/vfio-dev").mkdir(parents=True)
    return FileTree(root)


@pytest.mark.parametrize(
    ("driver", "says", "aliases", "names", "parent", "expected"),
    [
        (None, True, ALIASES, [], None, Vfio.NO),
        ("vfio-pci", True, ALIASES, [], None, Vfio.GUEST),
        # The kernel's word goes before any name.
        ("nvidia", True, ALIASES, ["vfio3"], None, Vfio.GUEST),
        ("nvidia", True, ALIASES, ["vfio3"], "nvidia", Vfio.VENDOR),
        ("mlx5_vfio_pci", True, ALIASES, ["vfio3"], "mlx5_core", Vfio.GUEST),
        ("mlx5_vfio_pci", True, ALIASES, [], "mlx5_core", Vfio.NO),
        ("nvidia", True, ALIASES, [], "nvidia", Vfio.NO),
        # An older kernel says it by its aliases.
        ("nvgrace_gpu_vfio_pci", False, ALIASES, [], None, Vfio.GUEST),
        ("other_module", False, ALIASES, [], None, Vfio.GUEST),
        ("other-module", False, ALIASES, [], None, Vfio.GUEST),
        ("mlx5_vfio_pci", False, ALIASES, [], None, Vfio.NO),
        ("nvidia", False, ALIASES, [], "nvidia", Vfio.NO),
        # A capture shows none of both: the variants of Linux's own tree.
        ("mlx5_vfio_pci", False, None, [], None, Vfio.GUEST),
        ("my_vfio_pci", False, None, [], None, Vfio.NO),
    ],
)
def test_what_a_driver_makes_of_a_function(
    tmp_path: Path, driver, says, aliases, names, parent, expected
) -> None:
    tree = machine(tmp_path, aliases, says)
    assert vfio.vfio_of_driver(tree, driver, names, parent) is expected


def test_the_variant_with_the_fewest_wildcards(tmp_path: Path) -> None:
    kernel = vfio.read_vfio_kernel(machine(tmp_path))

    def variant(vendor: str, product: str) -> str | None:
        return kernel.variant(vfio.alias_of(vendor, product, (None, None), "030200"))

    assert variant("10de", "2342") == "nvgrace_gpu_vfio_pci"
    assert variant("10de", "2330") == "everything_vfio_pci"
    assert variant("8086", "1521") is None


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert len(vfio.read_vfio_kernel(machine(one)).aliases or ()) == 4
    short = "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
    assert vfio.read_vfio_kernel(machine(other, short)).aliases == (
        ("vfio_pci:v*d*sv*sd*bc*sc*i*", "vfio_pci"),
    )


@pytest.mark.parametrize("release", ["", "../../etc", "a b", "x" * 300])
def test_a_release_that_is_none(tmp_path: Path, release: str) -> None:
    tree = machine(tmp_path)
    (tmp_path / "proc/sys/kernel/osrelease").write_text(release)
    assert vfio.read_vfio_kernel(tree) == Kernel(says=False, aliases=None)


def test_the_driver_for_guests() -> None:
    """What is bound and speaks VFIO stays; else what the kernel has for the ids."""
    bound = PciFunction("0000:01:00.0", driver="nvgrace_gpu_vfio_pci", vfio=Vfio.GUEST)
    assert bound.guest_driver == "nvgrace_gpu_vfio_pci"
    host = PciFunction("0000:01:00.0", driver="nvidia", vfio=Vfio.NO, vfio_variant="x_vfio")
    assert host.guest_driver == "x_vfio"
    plain = PciFunction("0000:01:00.0", driver="vfio-pci", vfio=Vfio.GUEST, vfio_variant="x_vfio")
    assert plain.guest_driver == "x_vfio"
    assert PciFunction("0000:01:00.0").guest_driver == "vfio-pci"


def test_the_nodes_that_have_them(synthetic) -> None:
    grace, shared = (
        sysfs.read_sysfs_node(synthetic("gh200-host")),
        sysfs.read_sysfs_node(synthetic("vgpu")),
    )
    gpu = grace.function("0009:01:00.0")
    assert gpu is not None
    assert (gpu.driver, gpu.vfio, gpu.vfio_variant) == (
        "nvidia", Vfio.NO, "nvgrace_gpu_vfio_pci",
    )  # fmt: skip
    card, part = shared.function("0000:17:00.0"), shared.function("0000:17:00.4")
    assert card is not None
    assert part is not None
    assert (card.vfio, part.vfio) == (Vfio.NO, Vfio.VENDOR)
    assert not card.on_vfio
    assert part.on_vfio
    assert part.guest_driver == "nvidia"
