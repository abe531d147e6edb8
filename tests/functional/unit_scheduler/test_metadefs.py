# SPDX-License-Identifier: Apache-2.0
"""Glance's metadata definitions of the ``hpc:`` keys are what the validators say.

``python -m tests.functional.unit_scheduler.test_metadefs`` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nova_hpc.placement import flavor
from scheduler_filters import validators

FILE = Path(__file__).resolve().parents[3] / "etc/metadefs/nova-hpc.json"


def _title_of(name: str) -> str:
    """E.g. ``Guest topology`` for ``hpc:guest_topology``."""
    return name.removeprefix("hpc:").replace("_", " ").capitalize().replace("Nvlink", "NVLink")


def build_metadefs() -> dict[str, Any]:
    """The document that ``glance-manage db_load_metadefs`` reads."""
    properties = {}
    for validator in validators.register():
        value = validator.value
        entry = {
            "title": _title_of(validator.name),
            "description": validator.description.replace("``", ""),
            "type": "string",
        }
        entry |= {key: value[key] for key in ("enum", "pattern") if key in value}
        properties[validator.name] = entry
    return {
        "namespace": "OS::Compute::HPC",
        "display_name": "Placement of HPC devices",
        "description": (
            "How the devices of a server sit together, and near the other members of its server "
            "group. The number of devices is in pci_passthrough:alias; hw:cpu_policy, "
            "hw:mem_page_size and hw:pci_numa_affinity_policy belong to the same flavor."
        ),
        "visibility": "public",
        "protected": True,
        "resource_type_associations": [{"name": "OS::Nova::Flavor"}],
        "properties": properties,
    }


def dump_metadefs() -> str:
    """The file's text."""
    return json.dumps(build_metadefs(), indent=4) + "\n"


def test_the_file_is_what_the_validators_say() -> None:
    assert FILE.read_text(encoding="utf-8") == dump_metadefs()


def test_every_key_is_there_with_its_words() -> None:
    properties = json.loads(FILE.read_text(encoding="utf-8"))["properties"]
    for name, words in flavor.WORDS.items():
        assert properties[name]["enum"] == list(words)
    for entry in properties.values():
        # Glance's table has 80 characters for a name; Horizon shows a title in a list.
        assert 0 < len(entry["title"]) <= 40
        assert entry["description"].endswith(".")


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(dump_metadefs(), encoding="utf-8")
