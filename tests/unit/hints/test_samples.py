"""Every sample error gives its category, its key and its facts, in one short line."""

from __future__ import annotations

import pytest
from tests.support.error_samples import ErrorSample, error_samples

from agenttx_server.engine.hints import clean
from agenttx_server.engine.hints.rules import DEFAULT_RULES

SAMPLES = error_samples()


@pytest.mark.parametrize("sample", SAMPLES, ids=[f"{sample.family}-{sample.id}" for sample in SAMPLES])
def test_hint_of_sample(sample: ErrorSample) -> None:
    hint = clean(sample.raw)

    assert hint.category.value in sample.categories, hint
    assert (hint.keys[0] if hint.keys else None) in sample.keys, hint
    assert [fact for fact in sample.must_mention if fact not in hint.text] == [], hint
    assert [secret for secret in sample.must_not_mention if secret in hint.text] == [], hint
    assert hint.rule == sample.rule
    assert hint.text.startswith("Hint: ")
    assert len(hint.text) <= 240
    assert hint.text.isprintable()
    assert 'File "' not in hint.text
    assert "\tat " not in hint.text


def test_sample_ids_are_unique() -> None:
    ids = [sample.id for sample in SAMPLES]

    assert len(ids) == len(set(ids))


def test_every_rule_has_a_sample() -> None:
    sampled = {sample.rule for sample in SAMPLES}

    assert [rule.name for rule in DEFAULT_RULES if rule.name not in sampled] == []


def test_keys_are_precise() -> None:
    given = [sample for sample in SAMPLES if clean(sample.raw).keys]
    right = [sample for sample in given if clean(sample.raw).keys[0] in sample.keys]

    assert len(given) > 150
    assert len(right) / len(given) >= 0.98
