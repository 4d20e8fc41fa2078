"""Counting in parts: merged parts are the single pass bit for bit, and what does not belong together is refused."""

import functools
import itertools
import json
import pickle
import zipfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isomargin as im
from compare import clusters
from isomargin.measure.pairs import prepare as prepare_module
from isomargin.measure.pairs import tiles
from isomargin.measure.pairs.distances import BinnedDistances
from isomargin.measure.pairs.part_files import PartFile, save_part
from isomargin.measure.pairs.part_plan import cut_classes
from isomargin.measure.pairs.parts import finish_parts, merge_all, merge_counts
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.parts import merge_files
from isomargin.measure.settings import Settings

K = (1, 2, 5)
FEW_PAIRS = {"far": (0.05, 0.2), "target_far": 0.05}


TAKE_LIMITS = ("gallery_pass", "gallery_tiles", "sampled", "stratified", "torch_tiles")
"""Modules that take limits from the pass when they are imported: not for the first time while others are set."""


@contextmanager
def limits(**values):
    """Other limits of the pass: fewer bins, smaller tiles and so on."""
    for name in TAKE_LIMITS:
        import_module(f"isomargin.measure.pairs.{name}")
    import_module("isomargin.measure.statistics.intervals")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MOST_BINS": 512, "TILE_ROWS": 16, **values}.items():
            patch.setattr(tiles, name, value)
        yield


@contextmanager
def prepared(rows, labels):
    with TemporaryDirectory() as folder:
        im.EmbeddingSet(rows, labels).save(f"{folder}/items.npy")
        yield im.prepare(f"{folder}/items.npy", f"{folder}/prepared")


def assert_identical(one, other):
    """All counts of two passes are equal to the last bit, in value and type."""
    for name in ("positives", "negatives"):
        a, b = getattr(one.counts, name), getattr(other.counts, name)
        pairs = [(a.counts, b.counts)] if isinstance(a, BinnedDistances) else [(a.distances, b.distances)]
        for x, y in [*pairs, (np.array(a.totals), np.array(b.totals))]:
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)
    for name in ("queries", "hits", "r_precision", "average_precision"):
        np.testing.assert_array_equal(getattr(one.ranks, name), getattr(other.ranks, name))


def drawn(seed, items, classes, binary):
    """Rows of few classes; with ``binary`` their similarities are exact in float32, and many are equal."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, items)
    labels[:4] = [0, 0, 1, 1]
    if binary:
        return generator.choice(np.array([-0.25, 0.25], np.float32), (items, 16)), labels
    return generator.normal(size=(classes, 8))[labels] + generator.normal(size=(items, 8)), labels


sets = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 150), st.integers(2, 30), st.booleans())


@settings(max_examples=40, deadline=None)
@given(sets, st.integers(1, 30), st.booleans(), st.sampled_from([4, 512]), st.randoms(use_true_random=False))
def test_merged_parts_are_the_single_pass_bit_for_bit_in_any_order(drawn_set, parts, listed, ranked, random):
    with (
        limits(LISTED_POSITIVES=tiles.LISTED_POSITIVES if listed else 0, RANKED_CLASS=ranked),
        prepared(*drawn(*drawn_set)) as folder,
    ):
        plan = im.plan_parts(folder, min(parts, im.plan_parts(folder).tiles))
        whole = count_pairs(folder.data(), k=K, layout=plan.layout)
        counted = [im.count_part(plan, number) for number in plan.numbers]
        random.shuffle(counted)
        while len(counted) > 1:  # any tree of merges
            one, other = counted.pop(random.randrange(len(counted))), counted.pop(random.randrange(len(counted)))
            counted.append(merge_counts(plan, one, other))
        merged = merge_all(plan, counted)
        assert_identical(finish_parts(plan, merged.superblocks.__getitem__, merged.large, K), whole)


def plain_loops(rows, labels, bins, reach):
    """Negatives by class and bin, and hits, R-precision and average precision by class, pair by pair."""
    names, n = np.unique(labels), len(rows)
    distance = np.sqrt(np.maximum(2 - 2 * rows.astype(np.float64) @ rows.astype(np.float64).T, 0))
    negatives, scores = np.zeros((len(names), bins), np.int64), np.zeros((len(names), len(K) + 2))
    for i, j in itertools.permutations(range(n), 2):
        if labels[i] != labels[j]:
            place = np.float32(distance[i, j]) * np.float32(bins / reach)
            negatives[np.searchsorted(names, labels[i]), min(int(place), bins - 1)] += 1
    for i in range(n):
        others = [j for j in range(n) if j != i]
        relevant = [
            labels[j] == labels[i] for j in sorted(others, key=lambda j: (distance[i, j], labels[j] != labels[i]))
        ]
        possible = sum(relevant)
        if possible:
            precisions = [sum(relevant[:at]) / at for at in range(1, possible + 1) if relevant[at - 1]]
            hits = [any(relevant[:k]) for k in K]
            scores[np.searchsorted(names, labels[i])] += [
                *hits,
                sum(relevant[:possible]) / possible,
                sum(precisions) / possible,
            ]
    return negatives, scores


@pytest.mark.parametrize("seed", [1, 2])
def test_merged_parts_are_what_plain_loops_count(seed):
    rows, labels = drawn(seed, 90, 12, True)
    with limits(), prepared(rows, labels) as folder:
        plan = im.plan_parts(folder, 7)
        merged = merge_all(plan, [im.count_part(plan, number) for number in plan.numbers])
        found = finish_parts(plan, merged.superblocks.__getitem__, merged.large, K)
        negatives, scores = plain_loops(rows, labels, plan.layout.bins, folder.reach)
    np.testing.assert_array_equal(found.counts.negatives.counts, negatives)
    np.testing.assert_array_equal(found.ranks.hits, scores[:, : len(K)])
    np.testing.assert_allclose(found.ranks.r_precision, scores[:, -2], rtol=1e-12)
    np.testing.assert_allclose(found.ranks.average_precision, scores[:, -1], rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=40), st.integers(1, 40))
def test_the_parts_of_a_plan_have_every_tile_once(sizes, parts):
    if max(sizes) < 2:
        sizes[0] = 2
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.random.default_rng(0).normal(size=(len(labels), 4))
    with limits(), prepared(rows, labels) as folder:
        plan = im.plan_parts(folder, min(parts, im.plan_parts(folder).tiles))
        starts = set(np.cumsum([0, *sizes]).tolist())
        assert set(plan.row_edges.tolist()) <= starts  # superblocks end where classes end
        assert set(plan.row_edges.tolist()) <= set(plan.layout.edges.tolist())
        lengths = np.diff(plan.part_ends)
        assert lengths.min() >= 1
        assert (
            np.abs(plan.part_ends - plan.tiles * np.arange(plan.parts + 1) / plan.parts).max() < plan.tiles / plan.parts
        )
        found = []
        for number in plan.numbers:
            assert lengths[number - 1] == sum(cell.end - cell.first for cell in plan.cells(number))
            for cell in plan.cells(number):
                first = [int(plan.block_edges[i]) for i in (cell.one, cell.other)]
                rows_there = int(plan.block_edges[cell.one + 1]) - first[0]
                for one, other in plan.tiles_of(cell):
                    column = other + first[0] if cell.one == cell.other else other - rows_there + first[1]
                    found.append((one + first[0], column))
        blocks = len(plan.layout.edges) - 1
        assert sorted(found) == list(itertools.combinations_with_replacement(range(blocks), 2))


def test_superblocks_stay_within_the_memory_of_a_part():
    sizes = np.random.default_rng(0).integers(1, 50, 500)
    taken = sizes * 100
    edges = cut_classes(sizes, taken, limit=10_000, wanted=1)
    assert edges[0] == 0
    assert edges[-1] == 500
    assert max(taken[a:b].sum() for a, b in itertools.pairwise(edges)) <= 10_000


@pytest.mark.parametrize("bucket_bytes", [1, 3000, 10**9])
def test_rows_are_sorted_on_disk_as_in_memory(bucket_bytes, tmp_path, monkeypatch):
    from isomargin.io.shards import open_shards
    from isomargin.measure.pairs.inputs import sort_by_class

    monkeypatch.setattr(prepare_module, "BLOCK_VALUES", 200)
    rows, labels = clusters(500, 20, dimensions=8)
    rows = rows * np.linspace(0.5, 2, 500)[:, None]
    for number, part in enumerate(np.array_split(np.arange(500), 3)):
        im.EmbeddingSet(rows[part].astype(np.float32), labels[part]).save(tmp_path / f"{number}.npy")
    (tmp_path / "out").mkdir()
    prepare_module.write_prepared(open_shards(tmp_path), tmp_path / "out", max(bucket_bytes, 64))
    found, expected = prepare_module.Prepared.open(tmp_path / "out"), sort_by_class(rows.astype(np.float32), labels)
    np.testing.assert_array_equal(found.vectors, expected.vectors)
    np.testing.assert_array_equal(found.sizes, expected.sizes)
    np.testing.assert_array_equal(found.names, expected.names)
    assert found.reach == expected.reach
    assert found.notes == expected.notes
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["classes.npz", "prepared.json", "vectors.npy"]


def resident(file):
    """Bytes of a file that this process maps and holds in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    found = 0
    for line in lines:
        if line.endswith(str(file)):
            found += next(int(text.split()[1]) for text in lines if text.startswith("Rss:"))
    return 1024 * found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells which pages are in memory")
@pytest.mark.parametrize(("name", "columns"), [("items.npy", None), ("items.parquet", 500)])
def test_no_more_of_a_file_is_held_in_memory_than_is_read_at_a_time(name, columns, tmp_path, monkeypatch):
    """Otherwise a part would grow to the size of the set, whatever its budget."""
    rows, labels = clusters(12_000, 1200, dimensions=128)  # 6 MB
    im.EmbeddingSet(rows.astype(np.float32), labels).save(tmp_path / name)
    seen = []
    data_digest, unit_block = prepare_module.data_digest, prepare_module.unit_block

    def digest_seen(vectors, *others):
        seen.append(resident("vectors.npy"))
        return data_digest(vectors, *others)

    def block_seen(*arguments):
        seen.append(resident(name))
        return unit_block(*arguments)

    monkeypatch.setattr(prepare_module, "data_digest", digest_seen)
    monkeypatch.setattr(prepare_module, "unit_block", block_seen)
    monkeypatch.setattr(prepare_module, "BLOCK_VALUES", 64_000)
    folder = im.prepare(tmp_path / name, tmp_path / "prepared")
    assert len(seen) == 25
    plan = im.plan_parts(folder, 6, columns=columns)
    im.count_part(plan, 2)
    seen.append(resident("vectors.npy"))
    whole = im.plan_parts(folder, 1)
    im.merge_parts(whole, [im.count_part(whole, 1)])  # with the noise of items
    seen.append(resident("vectors.npy"))
    assert max(seen) < 2e6
    assert folder.vectors[:].sum() != 0
    assert resident("vectors.npy") > 5e6  # this is how it would show


@functools.cache
def small_set():
    return clusters(300, 12, dimensions=8)


@pytest.fixture
def part_folder(tmp_path):
    """A folder with the files of four parts, the plan, and the counts."""
    rows, labels = small_set()
    im.EmbeddingSet(rows, labels).save(tmp_path / "items.npy")
    with limits():
        plan = im.plan_parts(im.prepare(tmp_path / "items.npy", tmp_path / "prepared"), 4)
        counts = [im.count_part(plan, number) for number in plan.numbers]
        (tmp_path / "parts").mkdir()
        chosen = Settings(**FEW_PAIRS)
        for found in counts:
            save_part(tmp_path / "parts", plan, chosen, found)
        yield tmp_path / "parts", plan, counts


def test_files_of_parts_merge_to_what_their_counts_do(part_folder):
    folder, plan, counts = part_folder
    by_files, by_counts = merge_files(folder), im.merge_parts(plan, reversed(counts), **FEW_PAIRS)
    assert_identical(by_files, by_counts)
    assert by_files.scores() == by_counts.scores()


def test_the_evaluation_of_shards_in_one_superblock_is_that_of_one_file(monkeypatch, tmp_path):
    monkeypatch.setattr("isomargin.measure.evaluate.SMALL", 0)  # not exactly, although the set is small
    rows, labels = small_set()
    for number, part in enumerate(np.array_split(np.arange(300), 3)):
        im.EmbeddingSet(rows[part], labels[part]).save(tmp_path / f"{number}.safetensors")
    whole = im.evaluate(rows, labels, **FEW_PAIRS)
    assert whole.method == "binned"
    shards = im.evaluate_shards(tmp_path, **FEW_PAIRS)
    assert_identical(shards, whole)
    assert shards.scores() == whole.scores()
    assert shards.notes == whole.notes
    np.testing.assert_array_equal(shards.item_noise.false_accepts, whole.item_noise.false_accepts)


def test_a_plan_is_sent_to_another_process_without_the_vectors(part_folder):
    _, plan, counts = part_folder
    sent = pickle.dumps(plan)
    assert len(sent) < plan.prepared.vectors.nbytes
    received = pickle.loads(sent)
    assert received.digest == plan.digest
    found = im.count_part(received, 2).superblocks
    for superblock, expected in counts[1].superblocks.items():
        np.testing.assert_array_equal(found[superblock].negatives, expected.negatives)


def refusal(function, *arguments, **options):
    with pytest.raises(im.InputError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_doubled_and_foreign_parts_are_refused_by_name(part_folder):
    folder, plan, counts = part_folder
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [f"part-{number}-of-4.npz" for number in range(1, 5)]
    assert "parts 2 and 3 of 4 are missing" in refusal(im.merge_parts, plan, [counts[0], counts[3]])
    assert "part 1 was given twice" in refusal(im.merge_parts, plan, [*counts, counts[0]])
    kept = files[2].read_bytes()
    (folder / "part-9-of-4.npz").write_bytes(kept)
    assert "part 3 is there twice (part-3-of-4.npz, part-9-of-4.npz" in refusal(merge_files, folder)
    (folder / "part-9-of-4.npz").unlink()
    files[2].unlink()
    assert "part 3 of 4 is missing" in refusal(merge_files, folder)
    save_part(folder, plan, Settings(**FEW_PAIRS, grid=55), counts[2])
    assert "part-3-of-4.npz in" in refusal(merge_files, folder)
    assert "other settings" in refusal(merge_files, folder)
    for damaged, expected in [
        (kept[: len(kept) // 2], "part-3-of-4.npz could not be read"),
        (b"", "part-3-of-4.npz is empty (0 bytes)"),
    ]:
        files[2].write_bytes(damaged)
        sentence = refusal(merge_files, folder)
        assert expected in sentence
        assert sentence.endswith("remove it, and count the part again")  # it would not be counted while it is there
    files[2].unlink()
    other = im.plan_parts(plan.prepared, 5)
    save_part(folder, other, Settings(**FEW_PAIRS), im.count_part(other, 3))
    assert "part-3-of-5.npz in" in refusal(merge_files, folder)
    assert "of another number of parts" in refusal(merge_files, folder)


def test_parts_of_other_embeddings_are_refused(part_folder, tmp_path):
    folder, plan, counts = part_folder
    rows, labels = small_set()
    im.EmbeddingSet(rows + 0.01, labels).save(tmp_path / "other.npy")
    other = im.plan_parts(im.prepare(tmp_path / "other.npy", tmp_path / "other"), 4)
    assert "part 1 belongs to another plan" in refusal(im.merge_parts, plan, [im.count_part(other, 1), *counts[1:]])
    assert "has other embeddings than those of the parts" in refusal(merge_files, folder, prepared=tmp_path / "other")
    assert "has no prepared embeddings any more" in refusal(merge_files, folder, prepared=tmp_path / "gone")


def test_a_part_with_altered_counts_is_refused(part_folder):
    folder, plan, counts = part_folder
    first = next(iter(counts[0].superblocks.values()))
    first.negatives[0, 0] += 1
    assert "do not add up to all pairs" in refusal(im.merge_parts, plan, counts)
    path = folder / "part-1-of-4.npz"
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("header.json"))["plan"] == plan.digest
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert "part-1-of-4.npz could not be read" in refusal(merge_files, folder)


def test_what_parts_cannot_do_is_refused(part_folder, tmp_path):
    folder, plan, _ = part_folder
    source = folder.parent / "items.npy"
    assert "exact needs all embeddings" in refusal(im.evaluate_shards, source, exact=True)
    assert "parts are counted on the CPU" in refusal(im.evaluate_shards, source, device="cpu")
    assert "parts count all pairs" in refusal(im.evaluate_shards, source, pairs="sampled")
    assert "needs at least" in refusal(im.plan_parts, plan.prepared, memory="260MB")
    assert "sorting 300 rows needs at least" in refusal(im.prepare, source, tmp_path / "new", memory="100MB")
    assert "so use at most as many parts" in refusal(im.plan_parts, plan.prepared, 10_000)
    assert "number is 5: a whole number from 1 to 4" in refusal(im.count_part, plan, 5)
    assert "not a folder of prepared embeddings" in refusal(im.plan_parts, tmp_path)
    assert "already exists" in refusal(im.prepare, source, folder)
    assert "has no parts" in refusal(merge_files, tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_part_file_holds_no_pickle(part_folder):
    folder, _, counts = part_folder
    loaded = PartFile.open(Path(folder) / "part-2-of-4.npz").counts()
    assert loaded.numbers == (2,)
    for superblock, found in counts[1].superblocks.items():
        np.testing.assert_array_equal(loaded.superblocks[superblock].between, found.between)
    for file in folder.iterdir():
        with np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                if name != "header.json":
                    assert arrays[name].dtype.kind in "iuf"
