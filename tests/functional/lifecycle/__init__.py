# SPDX-License-Identifier: Apache-2.0
"""What every action of a server's life does to its devices, observed and tabled."""
