# SPDX-License-Identifier: Apache-2.0
"""Settings in the layout of a deployment tool, which merges them into one file a service. Pure.

Kolla-Ansible reads files below its folder of custom configuration, and OpenStack-Ansible reads
variables. Both replace an option that may be given several times as a whole
(merge_configs of kolla-ansible, ``OverrideConfigParser.parse``; config_template of
OpenStack-Ansible, ``_option_write``). So a file repeats the values of others before the values of
this project. No value of others gets lost, and no file is in a directory that a container does not
keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import yaml

from nova_hpc_tools.site import settings
from nova_hpc_tools.site.layout_names import KOLLA

#: Options that may be given several times.
SEVERAL: Final = ("alias", "device_spec", "available_filters", "device_role")

#: Begins a line with the values of others that the file repeats, so that the next run can
#: distinguish them from this project's values.
_REPEATED: Final = "# Said by others, and repeated: "

#: Services that read the settings of the controllers.
_CONTROLLERS: Final = ("nova-api", "nova-scheduler", "nova-conductor")

#: Group -> option -> values.
Sections = Mapping[str, Mapping[str, Sequence[str]]]


@attrs.frozen
class LayoutFile:
    """A file of a deployment tool, with the parts of the settings that it contains."""

    path: str
    parts: tuple[str, ...]
    #: The variable that holds the content, with OpenStack-Ansible.
    variable: str = ""


def overrides_of_layout(layout: str, hostname: str) -> tuple[LayoutFile, ...]:
    """Return the files of a deployment tool, below the directory that the tool reads."""
    common, controller = settings.COMMON, settings.CONTROLLER
    if layout == KOLLA:
        return (
            LayoutFile(f"nova/{hostname}/nova-compute.conf", (common, settings.COMPUTE)),
            *(LayoutFile(f"nova/{name}.conf", (common, controller)) for name in _CONTROLLERS),
            LayoutFile("placement.conf", (settings.PLACEMENT,)),
        )
    nova = "nova_nova_conf_overrides"
    return (
        LayoutFile(f"host_vars/{hostname}/nova-hpc.yml", (common, settings.COMPUTE), nova),
        LayoutFile("group_vars/nova_all/nova-hpc.yml", (common, controller), nova),
        LayoutFile(
            "group_vars/placement_all/nova-hpc.yml",
            (settings.PLACEMENT,),
            "placement_placement_conf_overrides",
        ),
    )


def render_override(override: LayoutFile, parts: Mapping[str, Sections], others: Sections) -> str:
    """Render one file of a deployment tool.

    :param parts: part -> its options, made by
        :func:`nova_hpc_tools.site.settings.render_settings`.
    :param others: the present values of others for the options in :data:`SEVERAL`.
    """
    merged: dict[str, dict[str, list[str]]] = {}
    repeated: dict[str, dict[str, list[str]]] = {}
    for part in override.parts:
        for group, options in parts[part].items():
            for name, values in options.items():
                merged_values = merged.setdefault(group, {}).setdefault(name, [])
                theirs = others.get(group, {}).get(name, ()) if name in SEVERAL else ()
                # Escaped, because oslo.config substitutes the name after a $. Values that both
                # have stay at their position among the values of others.
                theirs = [value.replace("$", "$$") for value in theirs]
                if override.variable:
                    theirs.sort()  # as config_template does (_write_check)
                merged_values += dict.fromkeys((*theirs, *values))
                if theirs:
                    repeated.setdefault(group, {})[name] = theirs
    head = f"{_REPEATED}{json.dumps(repeated)}\n" if repeated else ""
    if override.variable:
        return head + _format_variables(override.variable, merged)
    return head + "".join(_format_sections(merged))


def own_lines_of(text: str, override: LayoutFile) -> str:
    """Return the options that ``configure`` wrote to a file, in oslo.config's format.

    "" if the file is broken.
    """
    try:
        theirs = _read_repeated(text)
        if override.variable:
            groups = yaml.safe_load(text)[override.variable]
            sections = {
                str(group): {
                    str(name): [*map(str, value)] if isinstance(value, dict) else [str(value)]
                    for name, value in options.items()
                }
                for group, options in groups.items()
            }
        else:
            sections = _read_sections(text)
        return "".join(
            _format_sections(
                {
                    group: {
                        name: [
                            value for value in values if value not in theirs.get((group, name), ())
                        ]
                        for name, values in options.items()
                    }
                    for group, options in sections.items()
                }
            )
        )
    except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
        return ""


def _read_repeated(text: str) -> dict[tuple[str, str], list[str]]:
    for line in text.splitlines():
        if line.startswith(_REPEATED):
            repeated = json.loads(line.removeprefix(_REPEATED))
            return {
                (group, name): values
                for group, options in repeated.items()
                for name, values in options.items()
            }
    return {}


def _read_sections(text: str) -> dict[str, dict[str, list[str]]]:
    """Parse the lines that :func:`_format_sections` writes: group -> option -> values."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            section.setdefault(name, []).append(value)
    return sections


def _format_sections(sections: Sections) -> Iterator[str]:
    for number, (group, options) in enumerate(sections.items()):
        yield f"{chr(10) if number else ''}[{group}]\n"
        for name, values in options.items():
            yield from (f"{name} = {value}\n" for value in values)


def _format_variables(variable: str, sections: Sections) -> str:
    """Format options as the YAML of one Ansible variable.

    An option with several values becomes a mapping to null: config_template would join a list by
    commas.
    """
    body: dict[str, Any] = {
        group: {
            name: dict.fromkeys(values) if name in SEVERAL else values[-1]
            for name, values in options.items()
        }
        for group, options in sections.items()
    }
    return yaml.safe_dump({variable: body}, sort_keys=False, width=10_000, allow_unicode=True)
