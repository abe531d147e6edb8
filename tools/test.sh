#!/usr/bin/env bash
# All tests in one command, the lab's included. Sets up what they need.
#
#   bash tools/test.sh              everything
#   bash tools/test.sh ENV[,ENV]    some of tox.ini's environments
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tools/setup.sh
. "$top/tools/setup.sh"
cd "$top"
if [ $# -gt 0 ]; then
    exec tox run -e "$1"
fi
# One process each, so two at a time use two cores. The lab emulates a whole
# machine and gets them to itself.
status=0
tox run-parallel --parallel 2 --parallel-no-spinner || status=$?
tox run -e lab || status=$?
exit "$status"
