"""Galleries in parts: merged parts are the single pass bit for bit, and what does not belong together is refused."""

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from isomargin.measure.pairs import gallery_inputs, gallery_pass, gallery_plan, gallery_prepare, gallery_tiles
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.gallery_inputs import read_gallery
from isomargin.measure.pairs.gallery_parts import finish_gallery, merge_all_gallery_parts, merge_gallery_counts
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles

TEMPLATES = ("mean", "max", "each")


def draw(seed=0, classes=12, unknown=5, items=60, probes=150, dimensions=8, binary=False):
    """A gallery and probes, some of them unknown; with ``binary``, many similarities are equal."""
    generator = np.random.default_rng(seed)
    enrolled = np.concatenate([np.arange(classes), generator.integers(0, classes, items - classes)])
    labels = np.concatenate([[0, 1, classes], generator.integers(0, classes + unknown, probes - 3)])
    generator.shuffle(enrolled)
    if binary:
        return *(generator.choice([-0.25, 0.25], (len(of), 16)) for of in (enrolled, labels)), enrolled, labels
    centres = generator.normal(size=(classes + unknown, dimensions))
    return *(centres[of] + generator.normal(size=(len(of), dimensions)) for of in (enrolled, labels)), enrolled, labels


def save(folder, items, probes, enrolled, labels, shards=3):
    """The same as shards, in the folders ``gallery`` and ``probes``."""
    for name, rows, of in (("gallery", items, enrolled), ("probes", probes, labels)):
        (folder / name).mkdir(parents=True)
        for number, part in enumerate(np.array_split(np.arange(len(of)), shards)):
            im.EmbeddingSet(rows[part], of[part]).save(folder / name / f"{number}.npy")
    return folder / "gallery", folder / "probes"


def assert_same_data(found, expected):
    for name in ("names", "enrolled", "rows", "row_class", "probes", "probe_class", "unknown_names"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    for name in ("own_row", "sums"):
        if expected.own_row is not None:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert found.rows.dtype == expected.rows.dtype
    assert found.notes == expected.notes


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("bucket_bytes", [64, 10**9])
def test_a_gallery_is_sorted_on_disk_as_in_memory(template, leave_one_out, bucket_bytes, tmp_path, monkeypatch):
    items, probes, enrolled, labels = draw()
    items[:, 0] *= 3  # not of length one
    enrolled[enrolled == 11] = np.arange((enrolled == 11).sum()) + 90  # classes of one item
    gallery, others = save(tmp_path, items.astype(np.float32), probes.astype(np.float32), enrolled, labels)
    monkeypatch.setattr(gallery_prepare, "room_for_buckets", lambda rows, budget: bucket_bytes)
    given = None if leave_one_out else others
    found = im.prepare_gallery(
        gallery, given, tmp_path / "prepared", template=template, leave_one_out=leave_one_out
    ).data()
    sets = (None, None) if leave_one_out else (probes.astype(np.float32), labels)
    assert_same_data(found, read_gallery(items.astype(np.float32), enrolled, *sets, template, leave_one_out))


def test_unknown_probes_of_one_label_are_prepared_as_classes_of_their_own(tmp_path):
    items, probes, enrolled, labels = draw()
    names = np.array([f"class {number}" for number in range(12)] + ["unknown"])
    enrolled, labels = names[enrolled], names[np.minimum(labels, 12)]
    found = im.prepare_gallery(*save(tmp_path, items, probes, enrolled, labels), tmp_path / "prepared").data()
    assert_same_data(found, read_gallery(items, enrolled, probes, labels, "mean", False))
    assert len(found.unknown_names) == (labels == "unknown").sum() > 1


@contextmanager
def limits(listed=True, sections=1):
    """Smaller tiles and pieces, and more sections of the gallery than memory asks for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery_tiles, "TILE_ROWS", 16)
        patch.setattr(gallery_tiles, "FEWEST_ROWS", 8)
        patch.setattr(gallery_tiles, "MOST_BINS", 512)
        patch.setattr(gallery_inputs, "OWN_PROBES", 7)
        if not listed:
            patch.setattr(gallery_pass, "LISTED_POSITIVES", 0)
        cut = gallery_plan.gallery_sections
        patch.setattr(
            gallery_plan, "gallery_sections", lambda *sizes, wanted: cut(*sizes, wanted=max(wanted, sections))
        )
        yield


@contextmanager
def prepared(sets, template="mean", leave_one_out=False):
    with TemporaryDirectory() as name:
        gallery, probes = save(Path(name), *sets)
        given = None if leave_one_out else probes
        yield im.prepare_gallery(gallery, given, f"{name}/prepared", template=template, leave_one_out=leave_one_out)


def assert_identical(one, other):
    """The counts of two passes over a gallery are equal to the last bit, in value and type."""
    pairs = [
        (one.counts.positives, other.counts.positives),
        (one.counts.negatives, other.counts.negatives),
        (one.by_probe, other.by_probe),
    ]
    arrays = list(zip(one.scores, other.scores, strict=True))
    for a, b in pairs:
        arrays += [(a.counts, b.counts)] if isinstance(a, BinnedDistances) else [(a.distances, b.distances)]
        arrays += [(np.array(a.totals), np.array(b.totals))]
    for a, b in arrays:
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


ways = st.tuples(st.sampled_from(TEMPLATES), st.booleans(), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    ways,
    st.integers(1, 20),
    st.integers(1, 5),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_merged_parts_are_the_single_pass_bit_for_bit_in_any_order(seed, way, parts, sections, listed, random):
    template, leave_one_out, binary = way
    sets = draw(seed, binary=binary and template != "mean")
    with limits(listed, sections), prepared(sets, template, leave_one_out) as folder:
        plan = im.plan_gallery(folder, parts)
        assert plan.gallery_sections >= sections
        whole = compare_in_tiles(folder.data(), 2, layout=plan.layout)
        counted = [im.count_gallery_part(plan, number, threads=2) for number in plan.numbers]
        random.shuffle(counted)
        while len(counted) > 1:  # any tree of merges
            one, other = counted.pop(random.randrange(len(counted))), counted.pop(random.randrange(len(counted)))
            counted.append(merge_gallery_counts(plan, one, other))
        merged = merge_all_gallery_parts(plan, counted)
        assert_identical(finish_gallery(plan, merged.superblocks.__getitem__), whole)
