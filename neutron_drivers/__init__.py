# SPDX-License-Identifier: Apache-2.0
"""What Neutron's server and the host of a subnet manager load: networks as partitions."""
