# SPDX-License-Identifier: Apache-2.0
"""Settings in the layout of a deployment tool, which merges them into one file a service. Pure.

Kolla-Ansible takes files below its folder of custom configuration, and OpenStack-Ansible takes
variables. In both an option that may be given several times is replaced as a whole
(merge_configs of kolla-ansible, ``OverrideConfigParser.parse``; config_template of
OpenStack-Ansible, ``_option_write``). So what others have said of it is said again, before what
this project adds: nothing of theirs gets lost, and nothing lies in a directory that a container
does not keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import yaml

from nova_hpc_tools.adopt import settings

PLAIN: Final = "plain"
KOLLA: Final = "kolla"
OSA: Final = "osa"
NAMES: Final = (PLAIN, KOLLA, OSA)

#: Options that may be given several times.
SEVERAL: Final = ("alias", "device_spec", "available_filters", "device_role")

#: Begins a line with what others have said, which the file says again: the next run has to
#: tell it from what is this project's.
_REPEATED: Final = "# Said by others, and repeated: "

#: Services that read what is for the controllers.
_CONTROLLERS: Final = ("nova-api", "nova-scheduler", "nova-conductor")

#: Group -> option -> values.
Sections = Mapping[str, Mapping[str, Sequence[str]]]


@attrs.frozen
class Override:
    """What one file of a layout says; it is made of these parts, in this order."""

    path: str
    parts: tuple[str, ...]
    #: Of OpenStack-Ansible: the variable that holds it.
    variable: str = ""


def overrides(layout: str, hostname: str) -> tuple[Override, ...]:
    """The files of a layout, below the folder that the tool reads."""
    common, controller = settings.COMMON, settings.CONTROLLER
    if layout == KOLLA:
        return (
            Override(f"nova/{hostname}/nova-compute.conf", (common, settings.COMPUTE)),
            *(Override(f"nova/{name}.conf", (common, controller)) for name in _CONTROLLERS),
            Override("placement.conf", (settings.PLACEMENT,)),
        )
    nova = "nova_nova_conf_overrides"
    return (
        Override(f"host_vars/{hostname}/nova-hpc.yml", (common, settings.COMPUTE), nova),
        Override("group_vars/nova_all/nova-hpc.yml", (common, controller), nova),
        Override(
            "group_vars/placement_all/nova-hpc.yml",
            (settings.PLACEMENT,),
            "placement_placement_conf_overrides",
        ),
    )


def render(override: Override, parts: Mapping[str, Sections], others: Sections) -> str:
    """The text of one file.

    :param parts: part -> what it says, as :func:`nova_hpc_tools.adopt.settings.render` has made it.
    :param others: what is said now of the options in :data:`SEVERAL` by others.
    """
    merged: dict[str, dict[str, list[str]]] = {}
    repeated: dict[str, dict[str, list[str]]] = {}
    for part in override.parts:
        for group, options in parts[part].items():
            for name, values in options.items():
                here = merged.setdefault(group, {}).setdefault(name, [])
                theirs = others.get(group, {}).get(name, ()) if name in SEVERAL else ()
                # As it is written: oslo.config substitutes what follows a $. What both say
                # stays in their order, too.
                theirs = [each.replace("$", "$$") for each in theirs]
                if override.variable:
                    theirs.sort()  # as config_template does (_write_check)
                here += dict.fromkeys((*theirs, *values))
                if theirs:
                    repeated.setdefault(group, {})[name] = theirs
    head = f"{_REPEATED}{json.dumps(repeated)}\n" if repeated else ""
    if override.variable:
        return head + _variables(override.variable, merged)
    return head + "".join(_lines(merged))


def ours(text: str, override: Override) -> str:
    """What a file says of this project's own, as oslo.config reads it; "" where it is broken."""
    try:
        theirs = _repeated(text)
        if override.variable:
            said = yaml.safe_load(text)[override.variable]
            sections = {
                str(group): {
                    str(name): [*map(str, value)] if isinstance(value, dict) else [str(value)]
                    for name, value in options.items()
                }
                for group, options in said.items()
            }
        else:
            sections = _read(text)
        return "".join(
            _lines(
                {
                    group: {
                        name: [each for each in values if each not in theirs.get((group, name), ())]
                        for name, values in options.items()
                    }
                    for group, options in sections.items()
                }
            )
        )
    except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
        return ""


def _repeated(text: str) -> dict[tuple[str, str], list[str]]:
    for line in text.splitlines():
        if line.startswith(_REPEATED):
            found = json.loads(line.removeprefix(_REPEATED))
            return {
                (group, name): values
                for group, options in found.items()
                for name, values in options.items()
            }
    return {}


def _read(text: str) -> dict[str, dict[str, list[str]]]:
    """The lines that :func:`_lines` writes."""
    sections: dict[str, dict[str, list[str]]] = {}
    here: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            here = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            here.setdefault(name, []).append(value)
    return sections


def _lines(sections: Sections) -> Iterator[str]:
    for number, (group, options) in enumerate(sections.items()):
        yield f"{chr(10) if number else ''}[{group}]\n"
        for name, values in options.items():
            yield from (f"{name} = {each}\n" for each in values)


def _variables(variable: str, sections: Sections) -> str:
    """A value that is given several times is a mapping to nothing: that is how
    config_template knows it from a list, which it would join by commas."""
    body: dict[str, Any] = {
        group: {
            name: dict.fromkeys(values) if name in SEVERAL else values[-1]
            for name, values in options.items()
        }
        for group, options in sections.items()
    }
    return yaml.safe_dump({variable: body}, sort_keys=False, width=10_000, allow_unicode=True)
