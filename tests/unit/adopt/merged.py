# SPDX-License-Identifier: Apache-2.0
"""What a service is told by several sources, by the code of who merges them.

The plug-ins of Kolla-Ansible and OpenStack-Ansible are data files of what they have on
PyPI, so they are loaded from there.
"""

import importlib.util
import io
import sys
from pathlib import Path

from oslo_config import cfg

#: Options that may be given several times.
SEVERAL = ("alias", "device_spec", "available_filters", "device_role")


def plugin(path):
    found = Path(sys.prefix, "share", path)
    assert found.is_file(), f"install tests/requirements.txt: {found} is not there"
    spec = importlib.util.spec_from_file_location(found.stem, found)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kolla(sources):
    """merge_configs of kolla-ansible over these texts."""
    parser = plugin("kolla-ansible/ansible/action_plugins/merge_configs.py").OverrideConfigParser()
    for text in sources:
        parser.parse(io.StringIO(text))
    out = io.StringIO()
    parser.write(out)
    return out.getvalue()


def osa(template, overrides):
    """config_template of OpenStack-Ansible over a template."""
    module = plugin("ansible/plugins/action/config_template.py").ActionModule
    merge = module.return_config_overrides_ini
    self = type("Module", (), {"_option_write": staticmethod(module._option_write)})()
    text, _ = merge(self, config_overrides=overrides, resultant=template)
    return text


def told(text, tmp_path):
    """What a service is told by a file: (group, option) -> values."""
    path = tmp_path / "read.conf"
    path.write_text(text, encoding="utf-8")
    found = {}
    cfg.ConfigParser(str(path), found).parse()
    return {
        (group, name): values for group, pairs in found.items() for name, values in pairs.items()
    }
