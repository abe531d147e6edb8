# SPDX-License-Identifier: Apache-2.0
"""What the lab reads in Placement while nova-compute changes it."""

import json
import types

import pytest
import requests

from nova_hpc_lab import observe

ROOT = "00000000-0000-0000-0000-000000000000"
STAYS, GOES = ("11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222")


class Placement:
    """Answers as Placement does; the provider GOES is deleted after some requests for it."""

    def __init__(self, answers, status=404):
        self.answers = answers
        self.status = status

    def get(self, path, headers):
        assert headers
        answer = requests.Response()
        answer.url = path
        answer.status_code = 200
        if GOES in path:
            self.answers -= 1
            if self.answers < 0:
                answer.status_code = self.status
        answer._content = json.dumps(self._document(path)).encode()
        return answer

    def _document(self, path):
        if path == "/resource_providers":
            providers = [
                {"uuid": ROOT, "name": "hpc1", "parent_provider_uuid": None},
                {"uuid": STAYS, "name": "hpc1_0000:41:00.0", "parent_provider_uuid": ROOT},
                {"uuid": GOES, "name": "hpc1_0000:21:00.0", "parent_provider_uuid": ROOT},
            ]
            return {"resource_providers": providers}
        if path.endswith("/usages"):
            return {"usages": {"CUSTOM_GPU": 1}}
        return {"inventories": {"CUSTOM_GPU": {"total": 1, "reserved": 0}}}


def _addresses(placement):
    cloud = types.SimpleNamespace(placement=placement)
    return [one.address for one in observe.providers(cloud)]


def test_every_provider_is_read():
    assert _addresses(Placement(answers=2)) == ["0000:21:00.0", "0000:41:00.0"]


@pytest.mark.parametrize("answers", [0, 1])
def test_a_provider_that_goes_meanwhile_is_not_there(answers):
    """Before its inventory is read, and between its inventory and its usage."""
    assert _addresses(Placement(answers)) == ["0000:41:00.0"]


def test_any_other_failure_is_told():
    with pytest.raises(requests.HTTPError, match="500"):
        _addresses(Placement(answers=0, status=500))
