# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc simulate`` with the policies of research.

::

    python -m benchmarks.simulate --nodes FILE --requests FILE [--policy NAME] ...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nova_hpc_tools.simulate.command import SimulatePolicies

if TYPE_CHECKING:
    from nova_hpc_tools.simulate.policies import NamedPolicy


class ResearchSimulation(SimulatePolicies):
    """Replay requests over nodes with policies of research, too."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Declare the same options; other policies."""
        from benchmarks.simulate.policies import ABLATION, DEFAULT, NOVA

        parser = super().get_parser(prog_name)
        parser.epilog = (
            f"Policies: {', '.join(DEFAULT)}, {NOVA}ram=N,cpu=N,pci=N,subset=N; only if named "
            f"(as {NOVA}... is), ours with one thing changed: {', '.join(ABLATION)}."
        )
        return parser

    def choose_policies(self, names: Iterable[str]) -> dict[str, NamedPolicy]:
        """All policies that there are."""
        from benchmarks.simulate.policies import choose_policies

        return choose_policies(names)


def main() -> int:
    """Simulate what the words say."""
    command = ResearchSimulation(None, None)
    status: int = command.run(command.get_parser("benchmarks.simulate").parse_args())
    return status


if __name__ == "__main__":
    sys.exit(main())
