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
exec tox run ${1:+-e "$1"}
