"""What the supervisor of a node has to run."""

from __future__ import annotations

import json
from pathlib import Path

import attrs

from nova_hpc_lab.state import write


@attrs.frozen
class Plan:
    """What a supervisor has to run; ``plan.json`` in the node's folder."""

    argv: tuple[str, ...]
    disk: str
    backing: str
    heartbeat: str
    qmp: str
    ssh_port: int
    #: What the node's kernel says; "" in the plan of an earlier release.
    serial: str = ""

    def save(self, folder: Path) -> None:
        """Write the plan for the supervisor to read."""
        write(folder / "plan.json", json.dumps(attrs.asdict(self), indent=1), mode=0o600)

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read the plan.

        :raises OSError, ValueError, TypeError, KeyError: there is none, or a broken one.
        """
        document = json.loads((folder / "plan.json").read_text())
        return cls(**{**document, "argv": tuple(document["argv"])})
