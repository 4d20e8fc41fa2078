"""Galleries in parts: merged parts are the single pass bit for bit, and what does not belong together is refused."""

import functools
import json
import pickle
import tracemalloc
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gallery_reference as definition
import isomargin as im
from isomargin.measure.gallery_parts import merge_gallery_files, prepare_gallery_once
from isomargin.measure.pairs import gallery_inputs, gallery_pass, gallery_plan, gallery_prepare, gallery_tiles
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.gallery_inputs import read_gallery
from isomargin.measure.pairs.gallery_part_files import counts_in, save_gallery_part
from isomargin.measure.pairs.gallery_parts import finish_gallery, merge_all_gallery_parts, merge_gallery_counts
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles
from isomargin.measure.pairs.part_files import PartFile, save_part
from isomargin.measure.pairs.prepare import WORKING
from isomargin.measure.parts import merge_files
from isomargin.measure.settings import Settings

RATES = {"far": (0.05, 0.4), "target_far": 0.1, "target_fpir": 0.2, "grid": 21}
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


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("leave_one_out", [False, True])
def test_merged_parts_agree_with_the_definition(template, leave_one_out):
    items, probes, enrolled, labels = draw(seed=4, items=90)
    with limits(sections=2), prepared((items, probes, enrolled, labels), template, leave_one_out) as folder:
        plan = im.plan_gallery(folder, 4)
        counts = [im.count_gallery_part(plan, number) for number in plan.numbers]
        evaluation = im.merge_gallery_parts(plan, counts, **RATES)
    rows = (None, None) if leave_one_out else (probes, labels.tolist())
    classes, found = definition.compare(items, enrolled.tolist(), *rows, template, leave_one_out)
    negatives = [[v for label, of in found for v in of.get(name, ()) if label != name] for name in classes]
    positives = sorted(v for label, of in found for v in of.get(label, ()))
    np.testing.assert_allclose(np.sort(evaluation.counts.positives.distances), positives, atol=1e-6)
    binned = evaluation.counts.negatives
    for values, counts in zip(negatives, binned.counts, strict=True):
        values = np.array(values)
        clear = [at for at, edge in enumerate(binned.edges) if np.abs(values - edge).min() > 1e-6]  # beyond float32
        within = np.concatenate([[0], np.cumsum(counts)])
        assert within[-1] == len(values)
        assert within[clear].tolist() == [(values < binned.edges[at]).sum() for at in clear]
    gallery = evaluation.gallery
    for distance in np.quantile(gallery.own_distance, [0.3, 0.7]) + 1e-4:  # beside a distance, not at it
        point, by_loops = gallery.at(float(distance)), definition.identification(classes, found, float(distance))
        for name in ("fpir", "fnir", "misidentified", "class_fnir", "false_positive_share"):
            np.testing.assert_allclose(getattr(point, name), getattr(by_loops, name), atol=1e-9, err_msg=name)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_gallery_of_shards_is_evaluated_as_one_in_memory(template, tmp_path, monkeypatch):
    monkeypatch.setattr("isomargin.measure.gallery.LISTED", 0)  # not exactly, although the gallery is small
    sets = draw(seed=5)
    items, probes, enrolled, labels = sets
    options = {"template": template, "margin": 0.02, "threads": 1, **RATES}
    whole = im.evaluate_gallery(items, enrolled, probes, labels, **options)
    found = im.evaluate_gallery_shards(*save(tmp_path, *sets), **options)
    assert found.method == whole.method == "binned"
    assert found.scores() == whole.scores()
    assert found.notes == whole.notes
    np.testing.assert_array_equal(found.gallery.class_share, whole.gallery.class_share)
    np.testing.assert_equal(found.scalars(), whole.scalars())
    again = im.evaluate_gallery_shards(tmp_path / "gallery", tmp_path / "probes", work=tmp_path / "work", **options)
    np.testing.assert_equal(again.scalars(), whole.scalars())
    del options["template"]
    prepared_before = im.evaluate_gallery_shards(tmp_path / "work", **options)  # its templates are known
    np.testing.assert_equal(prepared_before.scalars(), whole.scalars())


@pytest.fixture
def part_folder(tmp_path):
    """A folder with the files of four parts of a gallery, the plan, and the counts."""
    gallery, probes = save(tmp_path, *draw(seed=6))
    with limits(sections=2):
        plan = im.plan_gallery(im.prepare_gallery(gallery, probes, tmp_path / "prepared"), 4)
        counts = [im.count_gallery_part(plan, number) for number in plan.numbers]
        (tmp_path / "parts").mkdir()
        for found in counts:
            save_gallery_part(tmp_path / "parts", plan, Settings(**RATES), 0.05, found)
        yield tmp_path / "parts", plan, counts


def test_files_of_parts_merge_to_what_their_counts_do(part_folder):
    folder, plan, counts = part_folder
    by_files = merge_gallery_files(folder)
    by_counts = im.merge_gallery_parts(plan, reversed(counts), margin=0.05, **{"k": Settings().k, **RATES})
    np.testing.assert_equal(by_files.scalars(), by_counts.scalars())
    assert by_files.gallery.margin == 0.05
    np.testing.assert_array_equal(by_files.counts.negatives.counts, by_counts.counts.negatives.counts)
    for file in folder.iterdir():
        with np.load(file, allow_pickle=False) as arrays:
            assert {arrays[name].dtype.kind for name in arrays.files if name != "header.json"} <= set("iuf")


def refusal(function, *arguments, **options):
    with pytest.raises(im.InputError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_doubled_and_foreign_parts_are_refused_by_name(part_folder):
    folder, plan, counts = part_folder
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"part-{number}-of-4.npz" for number in range(1, 5)]
    assert "parts 2 and 3 of 4 are missing" in refusal(im.merge_gallery_parts, plan, [counts[0], counts[3]])
    assert "part 1 was given twice" in refusal(im.merge_gallery_parts, plan, [*counts, counts[0]])
    kept = files[2].read_bytes()
    (folder / "part-9-of-4.npz").write_bytes(kept)
    assert "part 3 is there twice (part-3-of-4.npz, part-9-of-4.npz" in refusal(merge_gallery_files, folder)
    (folder / "part-9-of-4.npz").unlink()
    files[2].unlink()
    assert "part 3 of 4 is missing" in refusal(merge_gallery_files, folder)
    save_gallery_part(folder, plan, Settings(**RATES), 0.0, counts[2])  # another margin
    assert "part-3-of-4.npz in" in refusal(merge_gallery_files, folder)
    assert "other settings" in refusal(merge_gallery_files, folder)
    files[2].write_bytes(kept[: len(kept) // 2])
    assert "part-3-of-4.npz could not be read" in refusal(merge_gallery_files, folder)


def test_parts_of_all_pairs_and_of_a_gallery_are_not_merged(part_folder, tmp_path):
    folder, gallery_plan_, _ = part_folder
    im.EmbeddingSet(np.eye(8)[np.arange(80) % 8], np.arange(80) % 8).save(tmp_path / "items.npy")
    plan = im.plan_parts(im.prepare(tmp_path / "items.npy", tmp_path / "items"), 1)
    counts = im.count_part(plan, 1)
    save_part(folder, plan, Settings(), counts)
    assert "part-1-of-1.npz in" in refusal(merge_gallery_files, folder)
    (tmp_path / "alone").mkdir()
    save_part(tmp_path / "alone", plan, Settings(), counts)
    assert "has parts of all pairs and not of a gallery" in refusal(merge_gallery_files, tmp_path / "alone")
    (folder / "part-1-of-1.npz").unlink()
    assert "has parts of a gallery and not of all pairs" in refusal(merge_files, folder)
    assert "belongs to another plan" in refusal(im.merge_gallery_parts, gallery_plan_, [counts])


def test_parts_of_another_gallery_are_refused(part_folder, tmp_path):
    folder, plan, counts = part_folder
    gallery, probes = save(tmp_path / "other", *draw(seed=7))
    other = im.plan_gallery(im.prepare_gallery(gallery, probes, tmp_path / "moved"), 2)
    assert "part 1 belongs to another plan" in refusal(
        im.merge_gallery_parts, plan, [im.count_gallery_part(other, 1), *counts[1:]]
    )
    assert "has another gallery or other probes" in refusal(merge_gallery_files, folder, tmp_path / "moved")
    assert "has no prepared gallery any more" in refusal(merge_gallery_files, folder, tmp_path / "gone")


def test_parts_with_altered_counts_are_refused(part_folder):
    folder, plan, counts = part_folder
    kept = counts[0].superblocks[0].negatives[0, 0]
    counts[0].superblocks[0].negatives[0, 0] += 1
    assert "do not add up to all comparisons" in refusal(im.merge_gallery_parts, plan, counts)
    counts[0].superblocks[0].negatives[0, 0] = kept
    counts[0].superblocks[plan.gallery_sections].by_probe[0, 0] += 1
    assert "do not add up to all comparisons" in refusal(im.merge_gallery_parts, plan, counts)
    path = folder / "part-1-of-4.npz"
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("0/negatives.npy").header_offset
    content[place + 200] ^= 1
    path.write_bytes(bytes(content))
    assert "part-1-of-4.npz could not be read" in refusal(merge_gallery_files, folder)


def test_counts_that_need_64_bits_are_assembled():
    with limits(), prepared(draw(seed=8)) as folder:
        plan = im.plan_gallery(folder, 2)
        counts = [im.count_gallery_part(plan, number) for number in plan.numbers]
        expected = im.merge_gallery_parts(plan, counts).gallery.by_probe.counts
        vars(plan)["probe_counter"] = np.int64
        for found in counts:  # as the file of a part holds counts of 2³² and more
            for section in range(plan.gallery_sections, plan.superblocks):
                if (of := found.superblocks.get(section)) is not None:
                    found.superblocks[section] = replace(of, by_probe=of.by_probe.astype(np.uint64))
        np.testing.assert_array_equal(im.merge_gallery_parts(plan, counts).gallery.by_probe.counts, expected)


def test_a_plan_is_sent_to_another_process_without_the_vectors(part_folder):
    folder, plan, counts = part_folder
    assert plan.data.rows.shape == (12, 8)  # known already
    sent = pickle.dumps(plan)
    assert len(sent) < plan.prepared.probes.nbytes
    received = pickle.loads(sent)
    assert received.digest == plan.digest
    loaded = counts_in(PartFile.open(folder / "part-2-of-4.npz"))
    for section, expected in im.count_gallery_part(received, 2).superblocks.items():
        for name, array in vars(expected).items():
            for found in (counts[1], loaded):
                np.testing.assert_array_equal(getattr(found.superblocks[section], name), array)


@pytest.mark.parametrize("template", ["mean", "each"])
def test_a_part_stays_within_its_memory_where_neither_the_gallery_nor_the_counts_would(template, tmp_path):
    sets = draw(classes=4_000, unknown=500, items=12_000, probes=9_000, dimensions=256)
    prepared = im.prepare_gallery(*save(tmp_path, *sets, shards=1), tmp_path / "prepared", template=template)
    room = 48 << 20  # beside what the program itself and its tiles need
    plan = im.plan_gallery(prepared, 60, memory=WORKING + room)
    assert plan.gallery_sections > 5
    assert plan.data.classes * plan.layout.bins * 4 > 4 * room
    im.count_gallery_part(plan, 30, threads=1)  # compiles
    tracemalloc.start()
    im.count_gallery_part(plan, 31, threads=1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < room
    message = refusal(im.plan_gallery, prepared, 2, memory=WORKING + room)
    assert "this plan needs at least" in message
    assert message.endswith("use more memory, or more parts")
    assert "one process holds the counts" in refusal(im.plan_gallery, prepared, memory=WORKING + room)


def test_what_is_not_a_prepared_gallery_is_refused(part_folder, tmp_path):
    folder, plan, _ = part_folder
    prepared_folder = plan.prepared.folder
    assert "is not a folder of a prepared gallery" in refusal(im.plan_gallery, tmp_path)
    assert "not a folder of prepared embeddings" in refusal(im.plan_parts, prepared_folder)
    assert "has no parts" in refusal(merge_gallery_files, tmp_path)
    evaluate = im.evaluate_gallery_shards
    assert "leave out probes and leave_one_out" in refusal(evaluate, prepared_folder, leave_one_out=True)
    assert "was prepared for 'mean'" in refusal(evaluate, prepared_folder, template="max")
    assert "probes are needed" in refusal(evaluate, tmp_path / "gallery")
    assert "leave out probes" in refusal(evaluate, tmp_path / "gallery", tmp_path / "probes", leave_one_out=True)
    assert "exact needs all embeddings" in refusal(evaluate, prepared_folder, exact=True)
    assert "a gallery has no pairs of items" in refusal(evaluate, prepared_folder, pairs="stratified")
    assert "parts is 4, but all parts are counted" in refusal(evaluate, prepared_folder, parts=4)
    assert "number is 5: a whole number from 1 to 4" in refusal(im.count_gallery_part, plan, 5)
    assert "already exists" in refusal(im.prepare_gallery, tmp_path / "gallery", tmp_path / "probes", folder)


@pytest.mark.parametrize("kind", ["gallery.json", "prepared.json"])
def test_a_prepared_folder_whose_description_lacks_something_is_refused(kind, part_folder, tmp_path):
    _, plan, _ = part_folder
    folder, opened = plan.prepared.folder, im.plan_gallery
    if kind == "prepared.json":
        folder, opened = im.prepare(tmp_path / "probes", tmp_path / "pairs").folder, im.plan_parts
    description = json.loads((folder / kind).read_text())
    for name in sorted(set(description) - {"format", "version", "classes"}):
        (folder / kind).write_text(json.dumps({key: description[key] for key in description if key != name}))
        assert f"{kind} could not be read (KeyError: '{name}')" in refusal(opened, folder)


def test_a_prepared_gallery_whose_classes_lack_something_is_refused(part_folder):
    _, plan, _ = part_folder
    path = plan.prepared.folder / "classes.npz"
    arrays = dict(np.load(path))
    for name in arrays:
        np.savez(path, **{key: arrays[key] for key in arrays if key != name})
        assert "classes.npz could not be read (KeyError" in refusal(im.plan_gallery, plan.prepared.folder)


def test_the_folder_of_parts_keeps_the_gallery_that_it_was_prepared_from(tmp_path):
    gallery, probes = save(tmp_path, *draw())
    once = functools.partial(prepare_gallery_once, gallery, probes, folder=tmp_path / "parts")
    first = once()
    assert once().digest == first.digest
    assert once(template="mean").folder == first.folder == tmp_path / "parts" / "prepared"
    assert "prepared from other files or for other templates" in refusal(once, template="max")
    im.EmbeddingSet(np.ones((2, 8)), [0, 1]).save(gallery / "more.npy")
    assert "prepared from other files or for other templates" in refusal(once)


def test_a_class_whose_mean_does_not_fit_into_memory_is_refused(tmp_path):
    im.EmbeddingSet(np.ones((90_000, 64), np.float32), np.arange(90_000) > 88_000).save(tmp_path / "items.npy")
    prepare = functools.partial(im.prepare_gallery, tmp_path / "items.npy", None, leave_one_out=True, memory="330MB")
    assert "the mean of a class of 88,001 items needs at least 0.359 GB" in refusal(prepare, tmp_path / "mean")
    assert prepare(tmp_path / "max", template="max").enrolled.tolist() == [88_001, 1_999]
