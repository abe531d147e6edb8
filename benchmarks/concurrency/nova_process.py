# SPDX-License-Identifier: Apache-2.0
"""The start of a process of Nova in a race: configuration, logs, threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Environment of every process that a race starts: native threads, the
#: default of the scheduler of release 34.
ENVIRONMENT = {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"}


def begin(
    nova_conf: str,
    log: str,
    options: Mapping[tuple[str, str], object],
    more: Sequence[str] = (),
) -> Any:
    """Read the configuration; return an administrator's context.

    :param more: further files, which are read before *nova_conf*.
    """
    assert all(os.environ.get(name) == value for name, value in ENVIRONMENT.items())
    from nova import config, context, objects
    from nova.conf import CONF

    from nova_hpc import conf as hpc_conf

    hpc_conf.register_all_options(CONF)
    files = [f"--config-file={each}" for each in (nova_conf, *more)]
    config.parse_args(["nova", *files])
    for (group, name), value in options.items():
        CONF.set_override(name, value, group=group or None)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        filename=log,
        level=os.environ.get("NOVA_HPC_RACE_LOG", "WARNING"),
        format="%(asctime)s %(process)d %(threadName)s %(levelname)s %(name)s %(message)s",
        force=True,
    )
    objects.register_all()
    return context.get_admin_context()
