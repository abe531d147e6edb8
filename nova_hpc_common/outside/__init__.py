# SPDX-License-Identifier: Apache-2.0
"""Text from other people and programs: its printable form, and valid names of hosts. Pure."""
