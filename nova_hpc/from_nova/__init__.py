# SPDX-License-Identifier: Apache-2.0
"""Nova's objects translated into ours, once: the only room of the core that imports nova."""
