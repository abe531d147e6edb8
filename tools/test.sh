#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All tests in one command, the lab's included. Sets up what they need, and
# prints at the end what took how long.
#
#   bash tools/test.sh              the standard set: all that guards a release
#   bash tools/test.sh quick        style, types, unit tests
#   bash tools/test.sh full         a night: every release, slow tests, races, kills
#   bash tools/test.sh --list       the jobs of the sets; --only JOB runs some
#   bash tools/test.sh ENV[,ENV]    some of tox.ini's environments
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=tools/setup.sh
. "$top/tools/setup.sh"
cd "$top"
case ${1:-standard} in
    quick | standard | full | -*) exec python3 tools/test_sets.py "$@" ;;
    *) exec tox run -e "$1" ;;
esac
