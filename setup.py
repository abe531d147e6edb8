# SPDX-License-Identifier: Apache-2.0
"""pbr reads setup.cfg; only the home of the one-file shim is said here.

Nova resolves ``compute_driver`` below ``nova.virt`` and ``nova.virt`` is no
namespace package, so the wheel places one file beside Nova's own drivers.
"""

import setuptools

setuptools.setup(
    setup_requires=["pbr>=6.0.0"],
    pbr=True,
    package_dir={"nova.virt": "virt_driver_patches/shim"},
)
