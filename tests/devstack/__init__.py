# SPDX-License-Identifier: Apache-2.0
"""An unmodified devstack with the plug-in, in a container, from package registries alone."""
