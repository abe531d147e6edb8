# SPDX-License-Identifier: Apache-2.0
"""Server groups on a whole Nova: API, conductor and schedulers as processes of their own.

Placement and MariaDB and RabbitMQ are real, and so is every process of Nova's control plane. The
hosts share a process: a real ``ComputeManager`` each, with Nova's fake driver. Glance and Neutron
are missing; servers have no network, and no process reads their image.

python -m benchmarks.group_cloud
python -m benchmarks.group_cloud.kills
"""
