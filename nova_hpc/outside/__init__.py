# SPDX-License-Identifier: Apache-2.0
"""Text that others wrote: what of it may be printed, and what may name a host. Pure."""
