# SPDX-License-Identifier: Apache-2.0
"""No text of others makes a label that is long, that hides something, or that is another's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_tools.metrics import catalogue, exposition, samples
from nova_hpc_tools.metrics.catalogue import MetricKind
from nova_hpc_tools.metrics.samples import LONGEST, MetricSample, bound_label, label_roles
from tests.unit import hostile
from tests.unit.metrics.texts import values

ANY = st.text(st.characters(exclude_categories=()), max_size=90)


@given(ANY, ANY)
def test_labels_are_short_printable_and_different(first, second):
    one, other = bound_label(first), bound_label(second)
    assert one.isprintable()
    assert len(one) <= LONGEST
    assert (one == other) == (first == second)


@given(ANY)
def test_who_imitates_a_label_that_was_changed_gets_another(text):
    assert bound_label(bound_label(text)) == bound_label(text) or bound_label(text) != text
    imitated = bound_label("x" * 100)
    assert bound_label(imitated) != imitated


def test_hostile_texts_come_out_of_the_parser_as_they_went_in():
    texts = sorted(set(hostile.texts()))
    given_samples = [
        MetricSample(catalogue.FLAVOR_FIT, number, (text,)) for number, text in enumerate(texts)
    ]
    text = exposition.write_exposition(given_samples).decode()
    found = values(text, catalogue.FLAVOR_FIT.name, "flavor")
    assert found == {bound_label(each): number for number, each in enumerate(texts)}
    assert hostile.obeyed(text) == []


def test_of_many_roles_the_frequent_ones_have_a_name():
    amounts = {f"role{number}": number for number in range(1000)}
    labels = label_roles(amounts)
    assert labels["role999"] == "role999"
    assert labels["role0"] == samples.OTHER
    assert len(set(labels.values())) == samples.MOST_ROLES + 1


def test_a_sample_has_the_labels_of_its_metric():
    with pytest.raises(ValueError, match="nova_hpc_cloud_servers_fit has the labels"):
        MetricSample(catalogue.FLAVOR_FIT, 1)


def test_names_are_unique_and_as_prometheus_wants_them():
    names = [kind.name for kind in catalogue.ALL]
    assert len(set(names)) == len(names)
    declared = {value for value in vars(catalogue).values() if isinstance(value, MetricKind)}
    declared |= {*catalogue.UP.values(), *catalogue.LAST_SUCCESS.values()}
    assert declared == set(catalogue.ALL)
