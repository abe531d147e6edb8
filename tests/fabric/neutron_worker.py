# SPDX-License-Identifier: Apache-2.0
"""One process of Neutron with the real ML2 plug-in: its API over HTTP, the driver's RPC by hand.

``python -m tests.fabric.neutron_worker CONF``. Writes its port, then answers one JSON line each:
what an agent would call by RPC, and what ``neutron-rpc-server`` does by itself. There is no broker,
and roles come from headers instead of Keystone.
"""

# Before all of oslo's: it chooses threads instead of eventlet.
import neutron  # noqa: F401, I001

import functools
import json
import os
import sys
import threading
import time

import waitress
from neutron_lib.plugins import directory


def main():
    """Serve until standard input ends."""
    conf = sys.argv[1]
    folder, name = os.path.split(conf)
    os.environ.update(OS_NEUTRON_CONFIG_DIR=folder, OS_NEUTRON_CONFIG_FILES=name)
    # What is printed by others goes to the log.
    answers, sys.stdout = sys.stdout, sys.stderr
    sys.argv = ["neutron-api"]
    from neutron.wsgi import api

    from neutron_drivers import agent_endpoint, member_watch, owner_waits
    from neutron_drivers.said_once import SaidOnce

    server = waitress.create_server(api.application, host="127.0.0.1", port=0, threads=16)
    threading.Thread(target=server.run, daemon=True).start()
    driver = directory.get_plugin().mechanism_manager.mech_drivers["hpc_partitions"].obj
    endpoint = agent_endpoint.FabricAgentEndpoint(driver._read_settings)
    calls = {
        "read_desired": lambda **words: endpoint.read_desired({}, **words),
        "report_members": lambda **words: endpoint.report_members({}, **words),
        "fail_overdue_ports": lambda: member_watch.fail_overdue_ports(driver._settings),
        "look_at_members": lambda: member_watch.look_at_members(
            driver._settings, driver._agents.wake
        ),
        "release_next_server": lambda after: owner_waits.release_next_server(
            driver._nova, after, SaidOnce()
        ),
        "begin_deletes_early": _begin_deletes_early,
        "count_waiting": _count_waiting,
        "heartbeat": _take_heartbeat,
    }
    print(server.effective_port, file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"result": calls[asked.pop("call")](**asked)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Threads of Neutron's would be waited for; what they hold is in the database.
    os._exit(0)


def _begin_deletes_early(seconds):
    """Have time pass between Neutron's first look at a port that it deletes and the delete."""
    plugin = directory.get_plugin().__class__
    whole = getattr(plugin._pre_delete_port, "__wrapped__", plugin._pre_delete_port)

    @functools.wraps(whole)
    def wait_first(*arguments, **named):
        time.sleep(seconds)
        return whole(*arguments, **named)

    plugin._pre_delete_port = wait_first if seconds else whole


def _count_waiting():
    """How many threads wait for the fabric, by what they are at: no counter of the product's."""
    found = 0
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code.co_name in ("_wait_for_membership", "wait_for_last_owner"):
                found += "sleep" in frame.f_code.co_names
                break
            frame = frame.f_back
    return found


def _take_heartbeat(time, state):
    """As Neutron's own ``report_state`` does it; *time* in the form of ISO 8601."""
    from neutron.db import agents_db
    from neutron_lib import context

    callback = agents_db.AgentExtRpcCallback(directory.get_plugin())
    callback.report_state(
        context.get_admin_context(), agent_state={"agent_state": state}, time=time
    )


if __name__ == "__main__":
    main()
