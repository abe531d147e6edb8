# SPDX-License-Identifier: Apache-2.0
"""Options of ``[hpc]``: the settings of virtual functions around a tenancy."""

from __future__ import annotations

from typing import Final

from oslo_config import cfg

OPTS: Final[list[cfg.Opt]] = [
    cfg.StrOpt(
        "set_adapters",
        choices=[
            ("off", "Virtual functions are left as they are."),
            ("keep", "Set where it is possible; addresses that were there before stay."),
            ("own", "Always set, to addresses of this cloud's prefix, or the start is refused."),
        ],
        default="keep",
        help="""
Whether the compute node sets the virtual functions of network adapters before a server
starts, and puts them back after it: GUIDs on InfiniBand; MAC, spoof check, trust and link
state on Ethernet. It concerns functions with an ``hpc_role`` tag that a server gets by an
alias. With ``own``, the functions of direct ports get a spoof check, no trust and a link
that follows the adapter's before their owners (Neutron, Nova, libvirt) set them;
otherwise only the owners set them.

With ``keep``, a MAC or GUIDs that an operator has set stay. An adapter that nova-compute cannot
set works as without this option, which is logged. VLAN and rates of such functions always stay
unchanged.

Related options:

* ``[hpc]address_prefix``
* ``[hpc]ledger_file``
""",
    ),
    cfg.StrOpt(
        "address_prefix",
        default="0e",
        help="""
The first octets, one to three, of the MAC addresses and GUIDs that this project gives to virtual
functions, for example ``0e`` or ``0e:5a``. The second digit has to be 2, 6, a or e (locally
administered, of one interface). The rest is computed from the server's UUID. It has to be the
same on all nodes of a cloud, and different for clouds that share a fabric. No other program may
give addresses that begin with it. A longer prefix leaves less room, so that two addresses are the
same more easily. A running server keeps its addresses until it moves.
""",
    ),
]
