# SPDX-License-Identifier: Apache-2.0
"""Runs the agent, which stands still between its reading and its writing while a file is there."""

import functools
import os
import time
from pathlib import Path


def main():
    import neutron  # noqa: F401  # before oslo's libraries: it decides on their threads

    from neutron_drivers import fabric_agent
    from nova_hpc.fabric.partitions.backends.opensm import OpensmSubnetManager

    pause = Path(os.environ["NOVA_HPC_AGENT_PAUSE"])
    enforce = OpensmSubnetManager.enforce

    @functools.wraps(enforce)
    def wait_and_enforce(self, desired):
        while pause.exists():
            time.sleep(0.02)
        return enforce(self, desired)

    OpensmSubnetManager.enforce = wait_and_enforce
    # As its console script: threads of oslo's would keep the process otherwise.
    fabric_agent.run_agent()


if __name__ == "__main__":
    main()
