# SPDX-License-Identifier: Apache-2.0
"""The validators that nova-api loads."""

from __future__ import annotations

from nova import exception, test
from nova.api.validation.extra_specs import base

from nova_hpc.placement import flavor
from scheduler_filters import validators


class ValidatorsTest(test.NoDBTestCase):
    """One validator a key, and the words of the engine."""

    def setUp(self) -> None:
        super().setUp()
        self.known = {each.name: each for each in validators.register()}

    def test_every_key_has_one(self) -> None:
        self.assertEqual(sorted(flavor.KEYS), sorted(each.name for each in validators.register()))
        for each in self.known.values():
            self.assertIsInstance(each, base.ExtraSpecValidator)

    def test_words(self) -> None:
        for key, words in flavor.WORDS.items():
            self.assertEqual(list(words), self.known[key].value["enum"])
            for word in words:
                self.known[key].validate(key, word)
            error = self.assertRaises(
                exception.ValidationError, self.known[key].validate, key, words[0].upper()
            )
            self.assertIn(f"{key} is {words[0].upper()!r}", str(error))

    def test_group(self) -> None:
        validator = self.known[flavor.GROUP]
        validator.validate(flavor.GROUP, "gpu:1,vf:2")
        for wrong in ("", "gpu", "gpu:0", "gpu:x", "gpu:1,gpu:1", "gpu:1:2"):
            self.assertRaises(exception.ValidationError, validator.validate, flavor.GROUP, wrong)
