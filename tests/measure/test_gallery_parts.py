"""Galleries in parts: merged parts are the single pass bit for bit, and what does not belong together is refused."""

import numpy as np
import pytest

import isomargin as im
from isomargin.measure.pairs import gallery_prepare
from isomargin.measure.pairs.gallery_inputs import read_gallery

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
