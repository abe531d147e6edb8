#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job in one command: a real OpenStack cloud with a virtual HPC node,
# and a server from an HPC flavor whose guest proves its devices.
#
#   bash tools/lab.sh          set up, start the cloud, run the demonstration
#   bash tools/lab.sh down     stop it all
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tools/setup.sh
. "$top/tools/setup.sh"
if [ $# -gt 0 ]; then
    exec nova-hpc lab "$@"
fi
nova-hpc lab up
exec nova-hpc lab demo
