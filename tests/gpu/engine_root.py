# SPDX-License-Identifier: Apache-2.0
"""A Debian 13 root with PoCL-R, client and server, built from Debian's own source package.

Debian's package ``pocld`` is an empty dummy. Three flags are in no documentation: ``pocld`` alone
does not configure (``config.h`` is missing), GCC 14 wants ``<algorithm>``, and without LLVM the
client needs ``-fPIC`` by name. About two minutes of a CPU; the root is kept in the cache and is
never part of a repository. ``python -m tests.gpu.engine_root`` makes it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from nova_hpc_lab.node import cache, debian
from nova_hpc_lab.state import Paths

SUITE: Final = "trixie"
#: Where the engine is in the root.
PREFIX: Final = "/opt/pocl-remote"
_PACKAGES: Final = (
    "ca-certificates",
    "clinfo",
    "cmake",
    "dpkg-dev",
    "g++",
    "iproute2",
    "libhwloc-dev",
    "make",
    "ocl-icd-dev",
    "ocl-icd-opencl-dev",
    "patch",
    "pkg-config",
    "pocl-opencl-icd",
    "procps",
    "python3",
    "wireguard-go",
    "wireguard-tools",
)
_BUILD: Final = f"""
sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > /etc/apt/sources.list.d/source.list
apt-get update -q
mkdir -p /opt/src/b
cd /opt/src
apt-get source -q pocl
cd b
cmake "-DCMAKE_CXX_FLAGS=-include algorithm" -DCMAKE_POSITION_INDEPENDENT_CODE=ON \\
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX={PREFIX} -DENABLE_HOST_CPU_DEVICES=0 \\
  -DENABLE_LLVM=0 -DENABLE_LOADABLE_DRIVERS=0 -DENABLE_ICD=1 -DENABLE_REMOTE_CLIENT=1 \\
  -DENABLE_REMOTE_SERVER=1 -DENABLE_TESTS=0 -DENABLE_EXAMPLES=0 -DENABLE_POCLCC=0 /opt/src/pocl-*/
make -j "${{JOBS:-1}}"
make install
cd /
rm -rf /opt/src
mkdir -p /opt/icd-remote /opt/icd-cpu
ls {PREFIX}/lib/libpocl.so.*.*.* > /opt/icd-remote/pocl.icd
cp /etc/OpenCL/vendors/pocl.icd /opt/icd-cpu/pocl.icd
"""


def prepare_engine_root(folder: Path | None = None) -> Path:
    """The root, built unless it is in the cache.

    :param folder: of the cache.
    """
    folder = folder or Paths.from_environment().cache / "gpu"
    name = f"pocl-{cache.key_of('1', SUITE, _BUILD, *_PACKAGES)}"

    def build(target: Path) -> None:
        script = target / "build.sh"
        script.write_text(_BUILD)
        options = [
            "--variant=apt",
            "--mode=root",
            f"--include={','.join(_PACKAGES)}",
            f'--customize-hook=cp "{script}" "$1/opt/build.sh"',
            '--customize-hook=chroot "$1" sh -ex /opt/build.sh',
        ]
        log = folder / "build.log"
        debian.mmdebstrap(options, SUITE, (SUITE,), str(target / "root"), log)

    cache.entry(folder, name, build)
    cache.remove_others(folder, "pocl-", name)
    return folder / name / "root"


if __name__ == "__main__":
    os.nice(int(os.environ.get("NICE", "0")))
    print(prepare_engine_root(), file=sys.stdout)
