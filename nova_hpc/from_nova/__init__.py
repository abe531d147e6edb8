# SPDX-License-Identifier: Apache-2.0
"""Nova's objects turned into ours, once: the only room of the core that imports nova."""
