"""Equalized similarities in parts: the single pass of the same equalizer bit for bit; other equalizers are refused."""

import itertools
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import clusters
from isomargin.equalize import large_sets
from isomargin.equalize.parts import merge_neighbour_files
from isomargin.measure.pairs import neighbour_parts, neighbours, row_shifts, tiles
from isomargin.measure.pairs.neighbour_files import save_found
from isomargin.measure.pairs.neighbour_parts import PROGRAM, merge_found, plan_neighbours
from isomargin.measure.pairs.neighbours import add_triangle
from isomargin.measure.pairs.parts import finish_parts, merge_all, merge_counts
from isomargin.measure.pairs.stratified import draw_columns
from isomargin.measure.pairs.tiles import count_pairs
from measure.test_parts import FEW_PAIRS, K, assert_identical, drawn, limits, prepared, refusal, resident

FEW = {"neighbours": 10, "skip": 3}


def fitted(folder, **changes):
    return im.Equalizer(**FEW | changes).fit(folder.vectors)


# ----- counting


sets = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 150), st.integers(2, 30), st.just(False))


@settings(max_examples=25, deadline=None)
@given(sets, st.integers(1, 30), st.booleans(), st.sampled_from([4, 512]), st.randoms(use_true_random=False))
def test_merged_equalized_parts_are_the_single_pass_bit_for_bit_in_any_order(drawn_set, parts, listed, ranked, random):
    with (
        limits(LISTED_POSITIVES=tiles.LISTED_POSITIVES if listed else 0, RANKED_CLASS=ranked),
        prepared(*drawn(*drawn_set)) as folder,
    ):
        equalizer = fitted(folder)
        plan = im.plan_parts(folder, min(parts, im.plan_parts(folder).tiles), equalizer=equalizer)
        data = folder.data(equalizer.shifts(folder.vectors))
        whole = count_pairs(data, k=K, layout=plan.layout)
        counted = [im.count_part(plan, number) for number in plan.numbers]
        random.shuffle(counted)
        while len(counted) > 1:  # any tree of merges
            one, other = counted.pop(random.randrange(len(counted))), counted.pop(random.randrange(len(counted)))
            counted.append(merge_counts(plan, one, other))
        merged = merge_all(plan, counted)
        finished = finish_parts(plan, merged.superblocks.__getitem__, merged.large, K)
        assert_identical(finished, whole)
        assert finished.counts.positives.axis == finished.counts.negatives.axis == equalizer.axis


def test_equalized_negatives_are_what_plain_loops_count():
    rows, labels = clusters(120, 8, dimensions=6)
    with limits(), prepared(rows, labels) as folder:
        plan = im.plan_parts(folder, 7, equalizer=fitted(folder))
        merged = merge_all(plan, [im.count_part(plan, number) for number in plan.numbers])
        found = finish_parts(plan, merged.superblocks.__getitem__, merged.large, K)
        vectors, sizes = folder.vectors.astype(np.float64), folder.sizes
    cosines, classes = vectors @ vectors.T, np.repeat(np.arange(len(sizes)), sizes)
    offsets = np.array([np.sort(np.delete(row, i))[::-1][3:13].mean() for i, row in enumerate(cosines)])
    low, high = plan.layout.span
    at = (high - low) * np.arange(1, 512) / 512 + low  # the edges of bins, at some of which FARs are compared
    for i, edge in itertools.product(range(len(sizes)), at[::50]):
        squared = 2 - 2 * (cosines - 0.5 * (offsets[:, None] + offsets) + offsets.mean())
        distances = np.sign(squared) * np.sqrt(np.abs(squared))
        mine = distances[classes == i][:, classes != i]
        width = (high - low) / 512
        near = (np.abs(mine - edge) < 1e-5).sum()
        accepted = found.counts.negatives.counts[i, : round((edge - low) / width)].sum()
        assert abs(accepted - (mine < edge).sum()) <= near


@pytest.fixture
def files(tmp_path):
    """A shuffled set in a file and as shards, and an equalizer fitted on its rows in the order of the file."""
    rows, labels = clusters(300, 12, dimensions=8)
    order = np.random.default_rng(1).permutation(300)
    rows, labels = rows[order].astype(np.float32), labels[order]
    (tmp_path / "shards").mkdir()
    for number, part in enumerate(np.array_split(np.arange(300), 3)):
        im.EmbeddingSet(rows[part], labels[part]).save(tmp_path / "shards" / f"{number}.npy")
    equalizer = im.Equalizer(**FEW).fit(rows)
    equalizer.save(tmp_path / "equalizer.json")
    return tmp_path, rows, labels, equalizer


def test_shards_are_evaluated_with_an_equalizer_as_one_file_is(files, monkeypatch):
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 0)  # not exactly, although the set is small
    folder, rows, labels, equalizer = files
    whole = im.evaluate(rows, labels, equalizer=equalizer, **FEW_PAIRS)
    shards = im.evaluate_shards(folder / "shards", equalizer=equalizer, **FEW_PAIRS)
    assert shards.equalizer == whole.equalizer
    assert shards.equalizer["own_class"] == "in_reference"
    assert_identical(shards, whole)
    assert shards.scores() == whole.scores()
    assert shards.notes == whole.notes


def test_rows_are_recognised_in_any_order_although_some_are_equal():
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(5000, 4)).astype(np.float32)
    reference[::10] = reference[0]
    rows = reference[generator.permutation(5000)]
    places = large_sets.places_in_reference(rows, reference)
    np.testing.assert_array_equal(np.sort(places), np.arange(5000))
    np.testing.assert_array_equal(reference[places], rows)
    rows[17] = rows[18]  # one row less, another one twice
    assert large_sets.places_in_reference(rows, reference) is None


def test_rows_that_the_reference_does_not_have_are_compared_with_all_of_it(files, monkeypatch):
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 0)
    folder, rows, labels, _ = files
    other = im.Equalizer(**FEW).fit(rows[::2] + 0.5)
    with pytest.warns(UserWarning, match="no row is in the reference"):
        whole = im.evaluate(rows, labels, equalizer=other, **FEW_PAIRS)
    shards = im.evaluate_shards(folder / "shards", equalizer=other, **FEW_PAIRS)
    assert shards.equalizer["own_class"] == "outside"
    assert shards.notes == whole.notes
    assert shards.opis == pytest.approx(whole.opis, rel=1e-6)  # other tiles round otherwise
    halves = im.evaluate_shards(folder / "shards", equalizer=im.Equalizer(**FEW).fit(rows[::2]), **FEW_PAIRS)
    assert halves.equalizer["own_class"] == "own_neighbours"
    assert "150 of 300 rows have an exact copy in the reference" in halves.notes[-1]


def test_sampled_negatives_are_equalized(files, small_tiles):
    ready, equalizer = im.prepare(files[0] / "shards", files[0] / "ready"), files[-1]
    plan = im.plan_parts(ready, 3, columns=60, equalizer=equalizer)
    merged = merge_all(plan, [im.count_part(plan, number) for number in plan.numbers])
    counts = finish_parts(plan, merged.superblocks.__getitem__, merged.large, ()).counts.negatives.counts
    vectors, shifts = ready.vectors.astype(np.float64), equalizer.shifts_of_rows(ready.vectors).values
    low, high = plan.layout.span
    classes, edges = np.repeat(np.arange(12), ready.sizes), np.linspace(low, high, 513)[100:400:20]
    accepted, near = np.zeros((2, 12, len(edges)), int)
    for block, (first, end) in enumerate(itertools.pairwise(plan.layout.edges)):
        columns = draw_columns(300, 60, 0, block)
        for row in range(first, end):
            squared = 2 - 2 * (vectors[row] @ vectors[columns].T + shifts[row] + shifts[columns])
            distances = (np.sign(squared) * np.sqrt(np.abs(squared)))[classes[columns] != classes[row]]
            accepted[classes[row]] += (distances[:, None] < edges).sum(axis=0)
            near[classes[row]] += (np.abs(distances[:, None] - edges) < 1e-5).sum(axis=0)
    found = np.cumsum(counts, axis=1)[:, 99:399:20]
    assert (np.abs(found - accepted) <= near).all()
    assert near.sum() < 20


def test_parts_of_other_equalizers_are_refused_by_name(files):
    folder, rows, _, equalizer = files
    ready = im.prepare(folder / "shards", folder / "ready")
    other = im.Equalizer(neighbours=20, skip=3).fit(rows)
    with limits():
        plans = [im.plan_parts(ready, 3, equalizer=found) for found in (equalizer, other, None)]
        found = plans[0].equalizer
        renamed = replace(found, record=found.record | {"digest": "of another"})  # although its shifts are the same
        assert len({plan.digest for plan in [*plans, im.plan_parts(ready, 3, equalizer=renamed)]}) == 4
        counts = [im.count_part(plan, number) for plan, number in zip(plans, (1, 2, 3), strict=True)]
        mine = [im.count_part(plans[0], number) for number in (1, 2, 3)]
        assert "part 2 belongs to another plan" in refusal(im.merge_parts, plans[0], [mine[0], counts[1], mine[2]])
        assert "of another equalizer" in refusal(im.merge_parts, plans[0], [*mine[:2], counts[2]])
        assert "part 2 of 3 is missing" in refusal(im.merge_parts, plans[0], mine[::2])
        assert "part 1 was given twice" in refusal(im.merge_parts, plans[0], [*mine, mine[0]])
    assert "a fitted isomargin.Equalizer is needed" in refusal(im.plan_parts, ready, equalizer=rows)
    assert "a fitted isomargin.Equalizer is needed" in refusal(im.evaluate_shards, "nowhere", equalizer=rows)


def test_shifts_are_complete_as_soon_as_other_parts_see_them(files, monkeypatch):
    ready, folder = im.prepare(files[0] / "shards", files[0] / "ready"), files[0]
    shifts, replace_file, complete = row_shifts.row_shifts(ready, files[-1]), os.replace, []

    def replaced(*paths):
        replace_file(*paths)
        if row_shifts.has_shifts(folder):
            complete.append(row_shifts.RowShifts.open(folder).digest == shifts.digest)

    monkeypatch.setattr("isomargin.core.files.os.replace", replaced)
    shifts.save(folder)
    assert complete == [True]


@pytest.fixture
def small_tiles():
    with limits():
        yield


def test_the_command_counts_equalized_parts_and_merges_them(files, run, small_tiles):
    folder, rows, _, _ = files
    rates = ["--far", "0.05", "0.2", "--target-far", "0.05"]
    options = [*rates, "--equalizer", folder / "equalizer.json"]
    for number in (2, 1):
        code, _, err = run("evaluate", folder / "shards", *options, "--part", f"{number}/2", "-o", folder / "parts")
        assert (code, err) == (0, "")
    assert run("merge", folder / "parts", "-o", folder / "merged.json")[0] == 0
    assert run("evaluate", folder / "shards", *options, "-o", folder / "whole.json")[0] == 0
    merged, whole = im.Evaluation.load(folder / "merged.json"), im.Evaluation.load(folder / "whole.json")
    assert merged.equalizer == whole.equalizer
    assert (merged.opis, merged.auc) == pytest.approx((whole.opis, whole.auc), rel=1e-6)  # other tiles
    im.Equalizer(neighbours=20, skip=3).fit(rows).save(folder / "other.json")
    part = ["evaluate", folder / "shards", *rates, "--part", "1/2", "-o", folder / "parts"]
    code, _, err = run(*part, "--equalizer", folder / "other.json")
    assert (code, "parts has parts of another equalizer" in err) == (2, True)
    code, _, err = run(*part)
    assert (code, "part-1-of-2.npz belongs to another plan" in err) == (2, True)
    (folder / "parts" / "shifts.json").unlink()
    code, _, err = run("merge", folder / "parts")
    assert (code, "has no shifts.json" in err) == (2, True)


# ----- fitting


def in_class_order(rows, labels):
    return rows[np.argsort(labels, kind="stable")]


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 150), st.integers(2, 30), st.booleans()),
    st.integers(1, 30),
    st.integers(0, 30),
    st.randoms(use_true_random=False),
)
@pytest.mark.filterwarnings("ignore:the reference has")
def test_neighbours_of_merged_parts_are_those_of_one_search_bit_for_bit_in_any_order(drawn_set, parts, skip, random):
    rows, labels = drawn(*drawn_set)
    with limits(), prepared(rows, labels) as folder:
        sizes = {"neighbours": 12, "skip": skip}
        plan = plan_neighbours(folder, min(parts, plan_neighbours(folder).tiles), **sizes)
        found = [im.find_neighbours(plan, number) for number in plan.numbers]
        random.shuffle(found)
        while len(found) > 1:  # any tree of merges
            one, other = found.pop(random.randrange(len(found))), found.pop(random.randrange(len(found)))
            found.append(merge_found(plan, one, other))
        equalizer = im.merge_neighbours(plan, found, folder.folder / "equalizer.json", **sizes)
        whole = im.Equalizer(**sizes).fit(in_class_order(rows, labels))
        for name in ("vectors_", "nearest_", "offsets_"):
            np.testing.assert_array_equal(getattr(equalizer, name), getattr(whole, name))
        assert (equalizer.offset_, equalizer.digest_) == (whole.offset_, whole.digest_)


@pytest.mark.parametrize("parts", [1, 4, 9])
def test_neighbours_of_parts_are_the_largest_cosines_in_float64(parts, small_tiles):
    rows, labels = clusters(200, 9, dimensions=7)
    rows[10:14] = rows[3]  # equal similarities, and copies
    with prepared(rows, labels) as folder:
        plan = plan_neighbours(folder, parts, neighbours=20, skip=5)
        found = [im.find_neighbours(plan, number) for number in plan.numbers]
        equalizer = im.merge_neighbours(plan, found, folder.folder / "equalizer.json", neighbours=20, skip=5)
    ordered = in_class_order(rows, labels).astype(np.float64)
    unit = ordered / np.linalg.norm(ordered, axis=1, keepdims=True)
    for i, cosines in enumerate(unit @ unit.T):
        largest = np.sort(np.delete(cosines, i))[::-1][:25]
        np.testing.assert_allclose(equalizer.nearest_[i], largest, atol=1e-6)
        assert equalizer.offsets_[i] == pytest.approx(largest[5:].mean(), abs=1e-6)


def test_an_equalizer_fitted_on_disk_is_that_of_memory_and_is_recognised(files, small_tiles):
    folder, rows, labels, in_file_order = files
    ready, memory = im.prepare(folder / "shards", folder / "ready"), PROGRAM + 100_000
    assert plan_neighbours(ready, memory=memory, on_disk=True, **FEW).superblocks > 2
    equalizer = im.fit_equalizer(folder / "ready", folder / "fitted.json", memory=memory, **FEW)
    whole = im.Equalizer(**FEW).fit(in_class_order(rows, labels))
    assert equalizer.digest_ == whole.digest_
    np.testing.assert_array_equal(equalizer.offsets_, whole.offsets_)
    assert isinstance(equalizer.vectors_, np.memmap)
    assert equalizer.offset_ == pytest.approx(in_file_order.offset_, rel=1e-6)
    evaluation = im.evaluate_shards(folder / "ready", equalizer=equalizer, **FEW_PAIRS)
    assert evaluation.equalizer == whole.record()
    assert im.Equalizer.load(folder / "fitted.json").digest_ == whole.digest_
    assert not list(folder.glob(".neighbours-*"))


def test_parts_of_other_searches_and_missing_and_doubled_ones_are_refused(files, small_tiles):
    folder, *_ = files
    ready = im.prepare(folder / "shards", folder / "ready")
    plan, other = plan_neighbours(ready, 3, **FEW), plan_neighbours(ready, 3, neighbours=20, skip=3)
    found = [im.find_neighbours(plan, number) for number in plan.numbers]
    output = folder / "fitted.json"
    merge = im.merge_neighbours
    assert "part 2 of 3 is missing" in refusal(merge, plan, found[::2], output, **FEW)
    assert "part 1 was given twice" in refusal(merge, plan, [*found, found[0]], output, **FEW)
    foreign = [*found[:2], im.find_neighbours(other, 3)]
    assert "part 3 belongs to another plan" in refusal(merge, plan, foreign, output, **FEW)
    assert "neighbours or skip is not that of the plan" in refusal(merge, plan, found, output, neighbours=20, skip=3)
    assert "number is 4: a whole number from 1 to 3" in refusal(im.find_neighbours, plan, 4)
    assert "so use at most as many parts" in refusal(plan_neighbours, ready, 10_000)
    assert "needs at least" in refusal(plan_neighbours, ready, 2, memory="256MB")
    assert "k is not a setting of an equalizer" in refusal(im.fit_equalizer, ready.folder, output, k=3)
    assert "should end in .json" in refusal(im.fit_equalizer, ready.folder, folder / "fitted.npz")
    for one in found:
        one.lists.get(0, np.zeros((9, 1)))[5] = neighbours.NOTHING
    assert "the lists of the parts are incomplete" in refusal(merge, plan, found, output, **FEW)
    assert not output.exists()


def test_files_of_neighbours_are_refused_by_name(files, small_tiles):
    folder, *_ = files
    plan = plan_neighbours(im.prepare(folder / "shards", folder / "ready"), 3, **FEW)
    chosen = FEW | {"weight": 0.5, "method": "local"}
    (folder / "parts").mkdir()
    for number in (1, 2):
        save_found(folder / "parts", plan, chosen, im.find_neighbours(plan, number))
    output = folder / "fitted.json"
    assert "part 3 of 3 is missing" in refusal(merge_neighbour_files, folder / "parts", output)
    save_found(folder / "parts", plan, chosen | {"weight": 0.7}, im.find_neighbours(plan, 3))
    assert "neighbours-3-of-3.npz in" in refusal(merge_neighbour_files, folder / "parts", output)
    path = save_found(folder / "parts", plan, chosen, im.find_neighbours(plan, 3))
    merged = merge_neighbour_files(folder / "parts", output)
    content = path.read_bytes()
    (folder / "parts" / "neighbours-4-of-3.npz").write_bytes(content)
    assert "part 3 is there twice" in refusal(merge_neighbour_files, folder / "parts", output)
    (folder / "parts" / "neighbours-4-of-3.npz").unlink()
    path.write_bytes(content[:-2000] + bytes([content[-2000] ^ 1]) + content[-1999:])
    assert "neighbours-3-of-3.npz could not be read" in refusal(merge_neighbour_files, folder / "parts", output)
    assert im.Equalizer.load(output).digest_ == merged.digest_


def test_the_command_fits_an_equalizer_in_parts_and_merges_them(files, run, small_tiles):
    folder, rows, labels, _ = files
    settings = ["--neighbours", "10", "--skip", "3"]
    for number in (2, 1):
        code, out, _ = run("equalize", folder / "shards", *settings, "--part", f"{number}/2", "-o", folder / "parts")
        assert (code, out.startswith(f"part {number} of 2: ")) == (0, True)
    again = ["equalize", folder / "parts" / "prepared", "--part", "2/2", "-o", folder / "parts"]
    code, out, err = run(*again, *settings)
    assert (code, out, "is there already and was not searched again" in err) == (0, "", True)
    code, _, err = run(*again, "--neighbours", "20")
    assert (code, "neighbours-2-of-2.npz belongs to another plan" in err) == (2, True)
    code, _, err = run("merge", folder / "parts")
    assert (code, "say where to write it with --output" in err) == (2, True)
    code, out, _ = run("merge", folder / "parts", "-o", folder / "merged.json")
    assert (code, "neighbours 4 to 13, weight 0.5. In parts nothing is chosen" in out) == (0, True)
    code, out, _ = run("equalize", folder / "shards", *settings, "-o", folder / "whole.json", "--json")
    assert (code, '"verdict": null' in out) == (0, True)
    whole = im.Equalizer(**FEW).fit(in_class_order(rows, labels))
    assert {im.Equalizer.load(folder / f"{name}.json").digest_ for name in ("merged", "whole")} == {whole.digest_}
    (folder / "parts" / "part-1-of-2.npz").touch()
    code, _, err = run("merge", folder / "parts", "-o", folder / "merged.json")
    assert (code, "has parts of an evaluation and of an equalizer" in err) == (2, True)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--objective", "opis"], "--objective cannot be used with shards"),
        (["--part", "1/2"], "equalizer.json is not a folder: with --part, --output is the folder of the parts"),
        (["--part", "1/2", "--json"], "--json needs all parts"),
        (["--weight", "3", "--part", "1/2", "-o", "parts"], "weight is 3.0"),
        (["--memory", "1MB"], "sorting 300 rows needs at least"),
        (["-o", "nowhere/new.json"], "the folder nowhere does not exist"),
        (["--part", "2/900", "-o", "parts"], "so use at most as many parts"),
    ],
)
def test_what_cannot_be_fitted_in_parts_is_refused(options, expected, files, run, monkeypatch):
    monkeypatch.chdir(files[0])
    code, _, err = run("equalize", "shards", *options)
    assert (code, len(err.splitlines()), expected in err) == (2, 1, True)
    assert not list(files[0].glob("new*"))


def test_without_the_set_itself_no_equalizer_is_fitted_to_a_reference_of_shards(files, run, monkeypatch):
    monkeypatch.chdir(files[0])
    code, _, err = run("equalize", "nowhere.npz", "--reference", "shards", "-o", "new.json")
    assert (code, err) == (2, "isomargin: nowhere.npz does not exist: check the path\n")
    assert run("equalize", "shards", "--reference", "shards", "-o", "new.json")[0] == 0


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are in memory")
def test_no_more_of_a_reference_is_held_in_memory_than_is_read_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(large_sets, "CHUNK", 500)
    monkeypatch.setattr(large_sets, "SEARCHED", 512)
    monkeypatch.setattr("isomargin.core.json_values.HASHED", 1 << 18)
    monkeypatch.setattr("isomargin.equalize.tensor_files.WRITTEN", 1 << 18)
    rows, labels = clusters(6000, 300, dimensions=128)
    im.EmbeddingSet(rows.astype(np.float32), labels).save(tmp_path / "items.npy")
    ready, memory = im.prepare(tmp_path / "items.npy", tmp_path / "ready"), PROGRAM + 6_000_000
    seen = []

    def look(function):
        def looking(*arguments):
            seen.append(max(resident("vectors.npy"), resident("nearest.npy"), resident("equalizer.safetensors")))
            return function(*arguments)

        return looking

    for name in ("are_same", "add_rectangle"):
        monkeypatch.setattr(large_sets, name, look(getattr(large_sets, name)))
    monkeypatch.setattr("isomargin.measure.pairs.neighbour_parts.add_triangle", look(add_triangle))
    equalizer = im.fit_equalizer(ready.folder, tmp_path / "equalizer.json", memory=memory, **FEW)
    seen.append(resident("equalizer.safetensors"))
    equalizer.shifts_of_rows(ready.vectors)
    equalizer.shifts_of_rows(ready.vectors[:1000])
    seen.append(max(resident("vectors.npy"), resident("equalizer.safetensors")))
    assert len(seen) > 30
    assert max(seen) < 1e6
    assert equalizer.vectors_[:].sum() != 0
    assert resident("equalizer.safetensors") > 3e6  # this is how it would show


def test_ended_by_a_batch_system_it_leaves_nothing_behind(run, tmp_path, monkeypatch):
    vectors, labels = clusters(600, 20, 8)
    im.EmbeddingSet(vectors, labels).save(tmp_path / "items.npy")
    before = sorted(tmp_path.iterdir())

    def ended(*_):
        assert list(tmp_path.glob(".neighbours-*"))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(neighbour_parts, "add_triangle", ended)
    handler = signal.getsignal(signal.SIGTERM)
    code, out, err = run("equalize", tmp_path / "items.npy", "--memory", "400MB", "-o", tmp_path / "equalizer.json")
    assert (code, out, err) == (130, "", "\nisomargin: stopped\n")
    assert sorted(tmp_path.iterdir()) == before
    assert signal.getsignal(signal.SIGTERM) is handler
