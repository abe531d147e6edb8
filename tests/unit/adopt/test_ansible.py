# SPDX-License-Identifier: Apache-2.0
"""The Ansible collection, run by the real ansible-playbook on a node of files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nova_hpc_tools.adopt import host_files
from tests.unit.node_files import put

pytestmark = pytest.mark.long

ROLES = Path(__file__).parents[3] / "ansible" / "roles"
PLAYBOOK = """\
- name: A node of files
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Configure
      ansible.builtin.include_role:
        name: configure
    - name: Prepare
      ansible.builtin.include_role:
        name: prepare
    - name: Look
      ansible.builtin.include_role:
        name: doctor
      when: look | default(false)
    - name: What the roles say
      ansible.builtin.copy:
        content: >-
          {{ {'restart': nova_hpc_restart_needed, 'reboot': nova_hpc_reboot_needed} | to_json }}
        dest: "{{ said }}"
        mode: "0644"
      check_mode: false
"""


@pytest.fixture
def play(machine, tmp_path, monkeypatch):
    """Runs the roles, and returns (status, what they say, output)."""
    put(machine, "/proc/sys/kernel/hostname", "node17")
    for name in ("etc/initramfs-tools", "etc/default/grub.d"):
        (machine / name).mkdir(parents=True)
    (machine / "etc/default/grub").touch()
    home = tmp_path / "home"
    (home / ".nova").mkdir(parents=True)
    (home / ".nova" / "nova.conf").write_text("[DEFAULT]\nhost = node17\n", encoding="ascii")
    command = tmp_path / "nova-hpc"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m nova_hpc_tools.main "$@"\n')
    command.chmod(0o755)
    playbook = tmp_path / "node.yml"
    playbook.write_text(PLAYBOOK, encoding="utf-8")
    place = ["--root", str(machine), "--declaration", str(tmp_path / "node.yaml")]

    def run(*words, **more):
        said = tmp_path / "said.json"
        said.unlink(missing_ok=True)
        values = {
            "ansible_python_interpreter": sys.executable,
            "nova_hpc_command": str(command),
            "nova_hpc_config_dir": str(home / ".nova" / "nova.conf.d"),
            "nova_hpc_declaration": {"vfs": {"pf": 1}, "hugepages": {"1G": 2}},
            "nova_hpc_declaration_file": str(tmp_path / "node.yaml"),
            "nova_hpc_configure_options": place[:2],
            "nova_hpc_host_root": str(machine),
            "nova_hpc_prepare_options": place,
            "nova_hpc_prepare_run": False,
            "nova_hpc_doctor_options": place,
            "said": str(said),
            **more,
        }
        done = subprocess.run(
            [
                *(Path(sys.prefix, "bin", "ansible-playbook"), "-i", "localhost,", "-c", "local"),
                *("-e", json.dumps(values), *words, playbook),
            ],
            env={
                **os.environ,
                "HOME": str(home),
                "ANSIBLE_ROLES_PATH": str(ROLES),
                "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
                "ANSIBLE_LOCALHOST_WARNING": "false",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        told = json.loads(said.read_text()) if said.exists() else None
        return done.returncode, told, done.stdout + done.stderr

    run.folder = home / ".nova" / "nova.conf.d"
    run.machine = machine
    return run


def test_check_changes_nothing_then_done_then_nothing_to_do(play):
    (play.folder).mkdir()
    # The declaration is not there yet; on a host it is where the command looks by itself.
    place = ["--root", str(play.machine)]
    status, told, out = play("--check", "--diff", nova_hpc_prepare_options=place)
    assert (status, told) == (0, {"restart": True, "reboot": True}), out
    assert "device_spec" in out
    assert "driver_override" in out
    assert not list(play.folder.iterdir())
    assert not (play.machine / host_files.UDEV).exists()
    status, told, out = play()
    assert (status, told) == (0, {"restart": True, "reboot": True}), out
    assert (play.folder / "nova-hpc-compute.conf").is_file()
    assert 'sriov_numvfs}="1"' in (play.machine / host_files.UDEV).read_text()
    status, told, out = play()
    assert (status, told) == (0, {"restart": False, "reboot": False}), out
    assert "changed=1 " in out  # the file that this test reads


def test_what_is_wrong_stops_the_play_with_its_cure(play):
    status, _, out = play(look=True)
    assert status == 2
    assert "iommu-off" in out
    assert "Switch VT-d or AMD-Vi on" in out


def test_check_mode_is_possible_before_the_first_install(tmp_path):
    """pip installs nothing then, so the command of the next task is missing."""
    playbook = tmp_path / "install.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "roles": ["install"]}]))
    values = {
        "ansible_python_interpreter": sys.executable,
        "nova_hpc_venv": str(tmp_path / "none"),
        "nova_hpc_packages": [str(tmp_path / "nova_hpc-0.1.0-py3-none-any.whl")],
    }
    done = subprocess.run(
        [
            *(Path(sys.prefix, "bin", "ansible-playbook"), "-i", "localhost,", "-c", "local"),
            *("-e", json.dumps(values), "--check", "--diff", playbook),
        ],
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "ANSIBLE_ROLES_PATH": str(ROLES),
            "ANSIBLE_LOCAL_TEMP": str(tmp_path / "ansible"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=1 " in done.stdout
    assert not (tmp_path / "none").exists()


def test_every_role_is_described():
    for role in ROLES.iterdir():
        defaults = yaml.safe_load((role / "defaults" / "main.yml").read_text())
        tasks = (role / "tasks" / "main.yml").read_text()
        assert defaults
        for name in defaults:
            assert name in tasks, (role.name, name)
        assert yaml.safe_load((role / "meta" / "main.yml").read_text())["galaxy_info"]


def test_the_page_and_the_playbook_name_the_collection() -> None:
    """Its name looks like a package of the project, and is none."""
    top = Path(__file__).parents[3]
    galaxy = yaml.safe_load((top / "ansible/galaxy.yml").read_text())
    name = f"{galaxy['namespace']}.{galaxy['name']}"
    page = (top / "docs/source/admin/deployment-tools.rst").read_text()
    assert f"a collection, ``{name}``," in page
    roles = yaml.safe_load((top / "ansible/playbooks/node.yml").read_text())[0]["roles"]
    assert {each["role"].rpartition(".")[0] for each in roles} == {name}
