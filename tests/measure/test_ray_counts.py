"""Counting on a Ray cluster: the single pass bit for bit, although workers are killed."""

import importlib.util
from collections import Counter

import pytest

import isomargin as im
from compare import clusters
from isomargin.measure.gallery_parts import merge_gallery_files
from isomargin.measure.pairs.gallery_pass import GalleryPass, ProbeScores
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles
from isomargin.measure.pairs.part_plan import plan_for
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.settings import Settings
from measure import ray_faults
from measure.test_gallery_parts import assert_identical as assert_identical_passes
from measure.test_gallery_parts import draw, save
from measure.test_parts import FEW_PAIRS, assert_identical, limits

pytestmark = [
    pytest.mark.xdist_group("cluster"),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

SMALL = {"MOST_BINS": 512, "TILE_ROWS": 32}
"""Limits of the pass, here and in workers."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of two workers for the tests of this file; gives the folder of their notes."""
    import ray

    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_faults.LOCAL.items():
            patch.setenv(name, value)
        faults = ray_faults.environment(folder, limits=SMALL, killed_once=[3, 9])
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=faults)
        yield folder
        ray.shutdown()


def begun(folder):
    """How often workers have begun to count each part."""
    return Counter(ray_faults.counted(folder))


def test_counts_on_ray_are_the_single_pass_bit_for_bit_although_a_worker_is_killed(tmp_path, cluster):
    rows, labels = clusters(900, 30, dimensions=8)
    im.EmbeddingSet(rows, labels).save(tmp_path / "items.npy")
    with limits(**SMALL):
        prepared = im.prepare(tmp_path / "items.npy", tmp_path / "prepared")
        plan = plan_for(prepared, 8, "700MB", Settings())
        single = count_pairs(prepared.data(), k=Settings().k, layout=plan.layout)  # compiles for the workers too
        shares: list[float] = []
        evaluation = im.evaluate_shards(
            prepared.folder, memory="700MB", cluster="auto", parts=8, progress=shares.append, **FEW_PAIRS
        )
    assert (cluster / "killed-3").exists()
    assert begun(cluster) == Counter([1, 2, 3, 3, 4, 5, 6, 7, 8])
    assert_identical(evaluation, single)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_gallery_on_ray_is_the_single_pass_bit_for_bit_although_a_worker_is_killed(tmp_path, cluster):
    prepared = im.prepare_gallery(*save(tmp_path, *draw(items=900, classes=300, probes=700)), tmp_path / "prepared")
    plan = im.plan_gallery(prepared, 9, memory="700MB")
    single = compare_in_tiles(prepared.data(), layout=plan.layout)
    before = begun(cluster)
    folder, how = tmp_path / "work", {"cluster": "auto", "memory": "700MB", "parts": 9}
    evaluation = im.evaluate_gallery_shards(prepared.folder, work=folder, **how)
    counted = begun(cluster) - before
    assert (cluster / "killed-9").exists()
    assert set(counted) == set(range(1, 10))
    assert counted[9] == 2
    again = im.evaluate_gallery_shards(prepared.folder, work=folder, **how)  # from the files of the parts
    assert begun(cluster) - before == counted
    for found in (evaluation, again, merge_gallery_files(folder)):
        scores = ProbeScores(*(getattr(found.gallery, name) for name in ProbeScores._fields))
        assert_identical_passes(GalleryPass(found.counts, found.gallery.by_probe, scores), single)
