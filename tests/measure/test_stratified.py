"""Sampled negatives with a known error: the stated error holds, and parts, seeds and intervals reckon with it."""

from dataclasses import fields, replace
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import isomargin as im
from compare import clusters
from isomargin.measure.evaluation import Evaluation
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.inputs import sort_by_class
from isomargin.measure.pairs.parts import finish_parts, merge_all
from isomargin.measure.pairs.stratified import columns_for, draw_columns

ERROR = 0.3
TARGET = 0.05
CHOICES = {"far": (0.05, 0.2), "target_far": TARGET, "pairs": "stratified", "relative_error": ERROR}


@pytest.fixture(scope="module")
def folder():
    """Prepared clusters whose classes differ, all pairs counted, and the rows."""
    rows, labels = clusters(3000, 40, dimensions=8, noise=0.7)
    with TemporaryDirectory() as name:
        im.EmbeddingSet(rows, labels).save(f"{name}/items.npy")
        yield im.prepare(f"{name}/items.npy", f"{name}/prepared"), rows, labels


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(tiles, "MOST_BINS", 1024)


def stratified(folder, seed=0, parts=1, **changes):
    choices = {**CHOICES, "seed": seed, **changes}
    columns = columns_for(choices["target_far"], choices["relative_error"])
    plan = im.plan_parts(folder[0], parts, columns=columns, seed=seed)
    return im.merge_parts(plan, [im.count_part(plan, number) for number in reversed(plan.numbers)], **choices)


def class_far(rows, labels, distance):
    """FAR of each class by definition, from all pairs."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = np.sqrt(np.maximum(2 - 2 * unit @ unit.T, 0)) <= distance
    names = np.unique(labels)
    return np.array([near[np.ix_(labels == name, labels != name)].mean() for name in names])


def test_the_far_of_every_class_has_the_stated_relative_error(folder):
    _, rows, labels = folder
    distance = im.evaluate_shards(folder[0].folder, far=(0.05, 0.2), target_far=TARGET).target.distance
    exact = class_far(rows, labels, distance)
    assert exact.min() < TARGET / 1.5 < 1.5 * TARGET < exact.max()  # classes differ
    drawn = np.array([stratified(folder, seed).at(distance).class_far for seed in range(30)])
    bound = ERROR * np.sqrt(TARGET / exact)  # the stated error holds at the target, and grows as 1 / sqrt(FAR)
    spread = np.sqrt(np.square(drawn / exact - 1).mean(axis=0))
    assert (spread < 1.3 * bound).all()  # 30 seeds determine a standard deviation within 13%
    assert np.median(spread / bound) > 0.1  # and the sample is not needlessly large
    assert np.abs(drawn.mean(axis=0) / exact - 1).max() < 4 * bound.max() / np.sqrt(30)  # without bias


def test_the_sample_depends_on_the_seed_and_not_on_who_counts_it(folder):
    counts = {}
    for name, seed, parts in (("together", 0, 1), ("apart", 0, 4), ("other seed", 1, 4)):
        plan = replace(im.plan_parts(folder[0], 4, columns=212, seed=seed), parts=parts)  # the same blocks
        merged = merge_all(plan, [im.count_part(plan, number) for number in reversed(plan.numbers)])
        counts[name] = finish_parts(plan, merged.superblocks.__getitem__, merged.large, ()).counts
    np.testing.assert_array_equal(counts["together"].negatives.counts, counts["apart"].negatives.counts)
    np.testing.assert_array_equal(counts["together"].positives.distances, counts["apart"].positives.distances)
    assert (counts["together"].negatives.counts != counts["other seed"].negatives.counts).any()


def test_counts_are_those_of_the_drawn_pairs(folder):
    prepared, rows, labels = folder
    found = stratified(folder).counts.negatives
    data, columns = sort_by_class(rows, labels), columns_for(TARGET, ERROR)
    expected = np.zeros(found.counts.shape, np.int64)
    vectors = data.vectors.astype(np.float64)
    for block, first in enumerate(range(0, len(vectors), 512)):
        own = slice(first, first + 512)
        chosen = draw_columns(len(vectors), columns, 0, block)
        distance = np.sqrt(np.maximum(2 - 2 * vectors[own] @ vectors[chosen].T, 0))
        for row, of_row in zip(data.class_of[own], distance, strict=True):
            others = of_row[data.class_of[chosen] != row]
            expected[row] += np.histogram(others, np.linspace(0, prepared.reach, found.counts.shape[1] + 1))[0]
    assert found.totals.tolist() == expected.sum(axis=1).tolist()
    assert np.abs(np.cumsum(found.counts.astype(np.int64) - expected, axis=1)).max() <= 5  # float32 at a bin's edge


def test_each_row_is_drawn_equally_often():
    drawn = np.concatenate([draw_columns(70, 20, seed=0, block=block) for block in range(4000)])
    assert (np.diff(drawn.reshape(4000, 20), axis=1) >= 0).all()
    times = np.bincount(drawn, minlength=70)
    expected = 4000 * 20 / 70
    assert np.abs(times - expected).max() < 5 * np.sqrt(expected)


def test_intervals_notes_and_cards_say_that_negatives_are_a_sample(folder, tmp_path):
    found = stratified(folder)
    assert any("each class is compared with 212 random items" in note for note in found.notes)
    assert found.recall_at_k == {}
    assert np.isnan(found.map_at_r)
    plain = Evaluation(**{**vars_of(found), "settings": im.Settings(far=(0.05, 0.2), target_far=TARGET)})
    wide, narrow = found.intervals()["far"], plain.intervals()["far"]
    assert wide.low < narrow.low
    assert wide.high > narrow.high
    card = im.make_card(im.choose_threshold(found, far=TARGET), found)
    text = " ".join(card.summary().split())
    assert "sampled negative pairs" in text
    assert "relative standard error of at most 0.3 at FAR 0.05" in text
    found.save(tmp_path / "found.json")
    loaded = Evaluation.load(tmp_path / "found.json")
    assert loaded.settings == found.settings
    assert loaded.scores() == found.scores()


def vars_of(evaluation):
    return {field.name: getattr(evaluation, field.name) for field in fields(evaluation)}


def test_the_noise_of_a_class_has_that_of_its_sampled_items(folder):
    """Items of a class share their sample, so its size counts, not the number of pairs."""
    found = stratified(folder)
    at = found.target.distance
    far_variance, _ = found.item_noise.of_rates(at, found)
    by_items = found.item_noise.between_levels(found.item_noise.false_accepts, np.array([at]))[:, 0]
    far = found.at(at).class_far[found.item_noise.classes]
    columns = found.counts.negatives.totals[found.item_noise.classes] / found.sizes[found.item_noise.classes]
    np.testing.assert_allclose(far_variance - by_items, far * (1 - far) / columns, rtol=1e-6)


def test_samples_that_do_not_help_or_fit_are_refused(folder):
    def refusal(function, *arguments, **options):
        with pytest.raises(im.InputError) as caught:
            function(*arguments, **options)
        return str(caught.value)

    assert "needs 190,000 sampled items" in refusal(
        im.evaluate_shards, folder[0].folder, **{**CHOICES, "relative_error": 0.01}
    )
    assert "which is counted in parts" in refusal(im.evaluate, *folder[1:], pairs="stratified")
    plan = im.plan_parts(folder[0], columns=212)
    assert "is not that of the plan" in refusal(im.merge_parts, plan, [], **CHOICES, seed=1)
