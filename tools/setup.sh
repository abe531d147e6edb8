#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install what the lab and the tests need on Debian 12: packages, and one
# virtual environment in the user's cache. Idempotent; run as root.
#
#   . tools/setup.sh        exports NOVA_HPC_VENV and puts it first on PATH
set -euo pipefail

_top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
_cache=${XDG_CACHE_HOME:-$HOME/.cache}/nova-hpc
export NOVA_HPC_VENV=${NOVA_HPC_VENV:-$_cache/venv}
export DEBIAN_FRONTEND=noninteractive

# bindep.txt is the list; those of its profile "backports" are too old in Debian 12 itself.
mapfile -t _packages < <(sed -n 's/ *#.*//; /\<backports\>/d; s/ .*platform:dpkg.*//p' "$_top/bindep.txt")
mapfile -t _backports < <(sed -n 's/ *#.*//; s/ .*\<backports\>.*//p' "$_top/bindep.txt")

die() { printf 'setup: %s\n' "$*" >&2; exit 2; }
say() { printf '\033[1m%s\033[0m\n' "$*"; }

[ "$(id -u)" = 0 ] || die "needs root (packages, and the lab's own services run as root)"
# shellcheck disable=SC1091
. /etc/os-release
[ "${VERSION_CODENAME:-}" = bookworm ] || die "needs Debian 12 (bookworm), this is ${PRETTY_NAME:-unknown}"

# The mirror that this machine already uses, whatever it is.
debian_mirror() {
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(CREATED_BY)' 2>/dev/null |
        awk '$2 == "bookworm" && $3 == "Packages" { print $1; exit }'
}

# A service that a package starts on install would take the lab's place.
policy_on=
no_services() {
    [ -e /usr/sbin/policy-rc.d ] && return
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    policy_on=1
}
services_again() { [ -z "$policy_on" ] || rm -f /usr/sbin/policy-rc.d; policy_on=; }

missing=()
for package in "${_packages[@]}" "${_backports[@]}"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
        missing+=("$package")
done
qemu=$(dpkg-query -W -f '${Version}' qemu-system-x86 2>/dev/null || true)
if [ ${#missing[@]} -gt 0 ] || dpkg --compare-versions "${qemu:-0}" lt 1:10; then
    say "Installing Debian packages: ${missing[*]:-qemu-system-x86}"
    trap services_again EXIT
    no_services
    apt-get update -q
    if ! apt-cache policy | grep -q 'n=bookworm-backports'; then
        mirror=$(debian_mirror)
        [ -n "$mirror" ] || die "no Debian mirror in this machine's apt configuration"
        printf '%s\n' "Types: deb" "URIs: $mirror" "Suites: bookworm-backports" "Components: main" \
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg" \
            >/etc/apt/sources.list.d/nova-hpc-backports.sources
        apt-get update -q
    fi
    apt-get install -y -q --no-install-recommends "${_packages[@]}"
    apt-get install -y -q --no-install-recommends -t bookworm-backports "${_backports[@]}"
    services_again
    trap - EXIT
fi

# uv installs in a third of pip's time. It reads no setting of pip's, so a mirror that is set there is told.
tell_uv() {
    local pip_says index extra links
    pip_says=$("$NOVA_HPC_VENV/bin/pip" config list)
    of_pip() { sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" <<<"$pip_says" | tail -n 1 | sed 's/\\n/ /g; s/^ *//'; }
    index=$(of_pip index-url) extra=$(of_pip extra-index-url) links=$(of_pip find-links)
    export UV_SYSTEM_CERTS=1 UV_INDEX_STRATEGY=unsafe-best-match UV_PYTHON_DOWNLOADS=never
    [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
    [ -z "$extra" ] || export UV_INDEX=${UV_INDEX:-$extra}
    [ -z "$links" ] || export UV_FIND_LINKS=${UV_FIND_LINKS:-${links// /,}}
}

# One environment for the cloud's services, the command and the tests' driver.
# Debian's own interpreter: a copy of this environment runs inside the node.
_want=$(cat "$_top"/{tools/setup.sh,setup.cfg,requirements.txt,wheels.txt,*/pyproject.toml,extras/*/pyproject.toml,constraints.txt} | sha256sum)
if [ "$(cat "$NOVA_HPC_VENV/.nova-hpc" 2>/dev/null)" != "$_want" ]; then
    say "Making the Python environment in $NOVA_HPC_VENV"
    /usr/bin/python3 -m venv --clear "$NOVA_HPC_VENV"
    _tools=(wheel "setuptools<80" pbr tox pytest "pytest-rerunfailures>=16.7" pytest-timeout)
    "$NOVA_HPC_VENV/bin/pip" install -q -c "$_top/constraints.txt" uv
    tell_uv
    _uv=("$NOVA_HPC_VENV/bin/uv" pip install -q -p "$NOVA_HPC_VENV/bin/python" --compile-bytecode)
    if "${_uv[@]}" -c "$_top/constraints.txt" "${_tools[@]}" tox-uv; then
        (cd "$_top" && "${_uv[@]}" -c constraints.txt -r wheels.txt -e .)
    else
        say "uv does not reach the packages here; pip installs them"
        "$NOVA_HPC_VENV/bin/pip" install -q -c "$_top/constraints.txt" "${_tools[@]}"
        (cd "$_top" && "$NOVA_HPC_VENV/bin/pip" install -q -c constraints.txt -r wheels.txt -e .)
    fi
    printf '%s\n' "$_want" >"$NOVA_HPC_VENV/.nova-hpc"
else
    tell_uv
fi
# The checkout may have moved since. Asked from elsewhere: the folder that one is in always counts.
_where="import nova_hpc, nova_hpc_lab, nova_hpc_ufm as ufm; print(*(m.__path__[0] for m in (nova_hpc, nova_hpc_lab, ufm)))"
[ "$(cd / && "$NOVA_HPC_VENV/bin/python" -c "$_where" 2>/dev/null)" = "$_top/nova_hpc $_top/lab/nova_hpc_lab $_top/extras/nova_hpc_ufm" ] ||
    (cd "$_top" && "$NOVA_HPC_VENV/bin/pip" install -q --no-deps -r wheels.txt -e .)
# uv takes the first interpreter that is no virtual environment's, and virtualenv Debian's own. That
# is built with optimisation by profile; one of a version manager may need half as much CPU again.
export PATH=$NOVA_HPC_VENV/bin:/usr/bin:$PATH
