# SPDX-License-Identifier: Apache-2.0
"""pbr reads setup.cfg.

Nothing of the package ``nova`` is said there: it is Nova's own, and a second folder of that name
would make it a namespace. ``nova-hpc install-shim`` places the one file beside Nova's drivers.
"""

import setuptools

setuptools.setup(setup_requires=["pbr>=6.0.0"], pbr=True)
