# SPDX-License-Identifier: Apache-2.0
"""The tables of the page *All hpc: keys on one screen*, made from the code.

``python -m tests.unit.placement.flavor_page`` writes them again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.guest_tree import TopologyMode
from nova_hpc.placement import flavor, grouping
from nova_hpc.placement.model import Ports, Want, WantedCell
from nova_hpc.placement.roles import bind_alias_roles, roles_played_on_host
from nova_hpc.placement.solver.demand import MAX_NAMES
from nova_hpc_common import group_keys
from nova_hpc_common.level import AffinityPolicy, Level

TOP: Final = Path(__file__).parents[3]
FOLDER: Final = TOP / "docs/source/user/flavor"
METADEFS: Final = TOP / "etc/metadefs/nova-hpc.json"

_GPU: Final = (Want("0", "gpu", 4),)
_BOTH: Final = (*_GPU, Want("1", "vf", 4))
_ODD: Final = (Want("0", "gpu", 3),)
_PLAIN: Final = flavor.build_request({flavor.AFFINITY: "host"}, _GPU, ())

#: What holds without the key; read from the code if it is decided there.
DEFAULTS: Final[Mapping[str, str]] = {
    flavor.AFFINITY: "",
    flavor.AFFINITY_POLICY: _PLAIN.policy.value,
    flavor.GROUP: "one group for each NUMA cell",
    flavor.NVLINK: _PLAIN.nvlink.value,
    flavor.GUEST_TOPOLOGY: TopologyMode.FLAT.value,
    flavor.FABRIC: "anywhere",
    flavor.FABRIC_POLICY: flavor.Fabric("leaf").policy.value,
    flavor.SHARED_MEMORY: "none",
    flavor.SHARED_MEMORY_POLICY: flavor.SharedMemoryWish(2).policy.value,
    flavor.MOVABLE: "no",
    flavor.PREEMPTIBLE: "no",
}
_VALUES: Final[Mapping[str, str]] = {
    flavor.GROUP: "``name:count,name:count``",
    flavor.SHARED_MEMORY: (
        f"an even number of MiB, {group_keys.SHARED_LEAST} to {group_keys.SHARED_MOST}"
    ),
}
_LITERAL: Final = re.compile(r"\b(?:hpc:\w+|hw:\w+(?:=\w+)?|pci_passthrough:alias)|\bgpu:1,vf:1")


@attrs.frozen
class RefusedFlavor:
    """A flavor, or a server of one, that contradicts itself."""

    #: What the reader has written, as the page shows it.
    says: str
    specs: Mapping[str, str] = {}
    wants: Sequence[Want] = _GPU
    cells: int = 0
    roles: Mapping[str, str] = {}
    ports: Sequence[Ports] = ()
    port_roles: Sequence[str] = ()
    memory_mib: int | None = None
    unequal_cells: int = 0

    def text(self) -> str:
        """What its user reads."""
        cells = [WantedCell(number) for number in range(self.cells)]
        cells += [WantedCell(number, memory_kib=number) for number in range(self.unequal_cells)]
        for reader in self._readers(cells):
            try:
                reader()
            except grouping.FlavorError as error:
                return str(error)
        raise AssertionError(f"{self.says} is not refused")

    def _readers(self, cells: Sequence[WantedCell]) -> Sequence[Callable[[], object]]:
        def build() -> object:
            return flavor.build_request(
                self.specs,
                self.wants,
                cells,
                self.roles,
                ports=self.ports,
                port_roles=self.port_roles,
            )

        return (
            lambda: flavor.read_fabric(self.specs),
            lambda: flavor.read_shared_memory(self.specs, self.memory_mib),
            *([build] if flavor.has_hpc_keys(self.specs) else []),
        )


class TwoRoles(RefusedFlavor):
    """An alias for devices of two roles, which no key of the flavor shows."""

    def text(self) -> str:
        played = roles_played_on_host([(("0",), "gpu"), (("0",), "vf")])
        try:
            bind_alias_roles((Want("0", "accel", 4),), played)
        except grouping.FlavorError as error:
            return str(error)
        raise AssertionError("two roles are told apart")


def _case(says: str, wants: Sequence[Want] = _GPU, **more: object) -> RefusedFlavor:
    """A case whose text for the reader is its properties."""
    pairs = (term.split("=", 1) for term in says.split("; ")[0].split(" ") if "=" in term)
    specs = {name: value for name, value in pairs if name.startswith(("hpc:", "hw:", "accel:"))}
    return RefusedFlavor(says, specs, wants, **more)  # type: ignore[arg-type]


_HOST: Final = "hpc:affinity=host"
_MANY: Final = tuple(Want(str(number), f"alias{number}", 1) for number in range(MAX_NAMES + 1))
CASES: Final[Sequence[RefusedFlavor]] = (
    _case("hpc:numa=1"),
    _case("hpc:affinity=pod"),
    _case("hpc:nvlink=required"),
    _case(f"{_HOST}; no devices and no direct ports", ()),
    _case("hpc:affinity=switch; dedicated CPUs, no hw:pci_numa_affinity_policy", cells=1),
    _case(f"{_HOST} accel:device_profile=fpga"),
    _case("hpc:affinity=numa hw:pci_numa_affinity_policy=required; hw:numa_nodes=2, gpu:3",
          _ODD, cells=2),
    RefusedFlavor(f"{_HOST} hpc:group= (empty)", {flavor.AFFINITY: "host", flavor.GROUP: ""}),
    _case(f"{_HOST} hpc:group=gpu"),
    _case(f"{_HOST} hpc:group=gpu:0"),
    _case(f"{_HOST} hpc:group=gpu:1,gpu:1"),
    _case(f"{_HOST} hpc:group=nic:1; gpu:4, whose role is gpu", roles={"0": "gpu"}),
    _case(f"{_HOST} hpc:group=nic:1; gpu:4, whose role is not known yet"),
    _case(f"{_HOST} hpc:group=accel:1; aliases gpu and vf, both of the role accel", _BOTH,
          roles={"0": "accel", "1": "accel"}),
    _case(f"{_HOST} hpc:group=gpu:1,accel:1; alias gpu, of the role accel",
          roles={"0": "accel"}),
    _case(f"{_HOST} hpc:group=gpu:1; gpu:4,vf:4", _BOTH, roles={"0": "gpu", "1": "vf"}),
    _case(f"{_HOST} hpc:group=gpu:3; gpu:4"),
    _case(f"{_HOST} hpc:group=gpu:1,vf:2; gpu:4,vf:4", _BOTH),
    _case(f"{_HOST} hpc:group=gpu:1; direct ports alone, no device", (),
          ports=(Ports("2", "port", 1),)),
    _case(f"{_HOST} hpc:group=gpu:2,port:1; gpu:4 and 3 direct ports",
          ports=(Ports("2", "port", 3),)),
    _case(f"{_HOST}; gpu:2000", (Want("0", "gpu", 2000),)),
    _case(f"{_HOST}; gpu:600,gpu:600", (Want("0", "gpu", 600), Want("1", "gpu", 600))),
    _case(f"{_HOST}; {len(_MANY)} different aliases", _MANY),
    _case(f"{_HOST} hpc:group=" + ",".join(f"alias{n}:1" for n in range(MAX_NAMES))
          + ",rail:1; as many aliases and a direct port", _MANY[:-1],
          ports=(Ports("p", "rail", 1),), port_roles=("rail",)),
    _case(f"{_HOST}; {flavor.MAX_SIZES + 1} NUMA cells of different sizes",
          unequal_cells=flavor.MAX_SIZES + 1),
    TwoRoles(f"{_HOST}; an alias accel that two kinds of devices serve"),
    _case("hpc:fabric_policy=preferred; no hpc:fabric"),
    _case("hpc:shared_memory=5"),
    _case("hpc:shared_memory=4096; 8 GiB of memory", memory_mib=8192),
    _case("hpc:shared_memory_policy=required; no hpc:shared_memory"),
)  # fmt: skip


def write_table(heading: Sequence[str], rows: Sequence[Sequence[str]], widths: str) -> str:
    """Rows as a table of reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (heading, *rows):
        for number, cell in enumerate(row):
            lines.append(f"   {' ' if number else '*'} - {cell}".rstrip())
    return "\n".join(lines) + "\n"


def write_keys() -> str:
    """Each key, its values, its default and its meaning, which are Glance's."""
    properties = json.loads(METADEFS.read_text(encoding="utf-8"))["properties"]
    rows = []
    for key in flavor.KEYS:
        words = ", ".join(f"``{word}``" for word in flavor.WORDS.get(key, ()))
        default = DEFAULTS[key]
        if default in flavor.WORDS.get(key, ()):
            default = f"``{default}``"
        meaning = _LITERAL.sub(lambda found: f"``{found[0]}``", properties[key]["description"])
        rows.append((f"``{key}``", words or _VALUES[key], default or "(needed)", meaning))
    return write_table(("Key", "Values", "Without it", "Meaning"), rows, "20 22 14 44")


def write_numa_policies() -> str:
    """What goes with Nova's own key: words of one answer are one row."""
    rows: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for level in Level:
        answer = flavor.numa_policies(level, AffinityPolicy.REQUIRED)
        rows.setdefault(answer, []).append(f"``{level.word}``")
    preferred = flavor.numa_policies(Level.SWITCH, AffinityPolicy.PREFERRED)
    assert all(preferred == flavor.numa_policies(each, AffinityPolicy.PREFERRED) for each in Level)
    rows[preferred].append(f"any with ``{flavor.AFFINITY_POLICY}=preferred``")
    return write_table(
        (f"``{flavor.AFFINITY}``", f"needs ``{flavor.NUMA_POLICY}``", "never with"),
        [
            (", ".join(words), *(" or ".join(f"``{word}``" for word in side) for side in answer))
            for answer, words in rows.items()
        ],
        "40 36 24",
    )


def write_refusals() -> str:
    """Flavors that contradict themselves, with the text that the code gives."""
    rows = [(f"``{case.says}``", f"``{case.text()}``") for case in CASES]
    return write_table(("The flavor, or the server", "What you read"), rows, "36 64")


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "keys.inc": write_keys,
    "numa.inc": write_numa_policies,
    "refusals.inc": write_refusals,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, write in PARTS.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
