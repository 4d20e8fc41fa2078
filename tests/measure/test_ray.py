"""Counting on a Ray cluster: the single pass bit for bit, although a worker is killed; bad input is refused."""

import importlib.util
import signal
import socket

import numpy as np
import pytest

import isomargin as im
from compare import clusters
from isomargin.cli.running import telling_what_ray_repeats
from isomargin.measure import parts
from isomargin.measure.gallery_parts import merge_gallery_files
from isomargin.measure.pairs.gallery_pass import GalleryPass, ProbeScores
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles
from isomargin.measure.pairs.part_plan import plan_for
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.parts import merge_files
from isomargin.measure.settings import Settings
from measure import ray_faults
from measure.test_gallery_parts import assert_identical as assert_identical_passes
from measure.test_gallery_parts import draw, save
from measure.test_parts import FEW_PAIRS, assert_identical, limits

pytestmark = pytest.mark.xdist_group("Ray")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

SMALL = {"MOST_BINS": 512, "TILE_ROWS": 32}
"""Limits of the pass, here and in workers."""


def refusal(run, *arguments):
    code, _, errors = run("evaluate", *arguments)
    assert code == 2
    (sentence,) = errors.splitlines()
    return sentence


@pytest.fixture
def shard(tmp_path):
    rows, labels = clusters(60, 6, dimensions=4)
    im.EmbeddingSet(rows, labels).save(tmp_path / "items.npy")
    return tmp_path / "items.npy"


@needs_ray
def test_an_address_without_a_cluster_is_refused_at_once(shard, run, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in refusal(run, shard, "--ray", f"127.0.0.1:{port}")
    assert "auto, local or an address such as" in refusal(run, shard, "--ray", "everywhere")
    assert "the address of a Ray client" in refusal(run, shard, "--ray", "ray://head:10001")
    assert not (shard.parent / "prepared").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--ray", "local", "--gallery", "gallery.npz"], "gallery: gallery.npz does not exist: check the path"),
        (["--ray", "local", "--new-classes"], "--new-classes cannot be used with shards"),
        (["--ray", "local", "--part", "1/4"], "--part counts one part here and --ray all parts on a cluster"),
        (["--parts", "4"], "--parts is for --ray"),
    ],
)
def test_options_that_do_not_go_with_ray_are_refused(options, expected, shard, run):
    assert expected in refusal(run, shard, *options)


def test_parts_without_a_cluster_are_refused(shard):
    with pytest.raises(im.InputError, match="parts is 4, but all parts are counted in this process"):
        im.evaluate_shards(shard, parts=4)


@needs_ray
def test_settings_that_do_not_go_with_a_cluster_are_refused_before_it_starts():
    rows, labels = clusters(60, 6, dimensions=4)
    for settings, expected in [
        ({"exact": True}, "exact needs all embeddings in memory"),
        ({"device": "cpu"}, "parts are counted on the CPU"),
        ({"pairs": "sampled"}, "parts count all pairs"),
        ({"cluster": "everywhere"}, "auto, local or an address such as"),
        ({"cluster": 2}, "auto, local or an address such as"),
        ({"far": (1e-9, 0.1)}, "far asks for a false accept rate"),
    ]:
        with pytest.raises(im.InputError, match=expected):
            im.evaluate(rows, labels, **{"cluster": "local", **settings})


@needs_ray
@pytest.mark.parametrize("room", [1, 4, 100])
def test_a_gallery_of_uneven_classes_is_planned_for_any_number_of_workers(room, tmp_path):
    from isomargin.measure.on_cluster import gallery_plan_on

    sizes = [20_000, *[10] * 10]  # fewer sections than blocks of 512 rows
    rows, enrolled = np.random.default_rng(0).normal(size=(20_100, 32)), np.repeat(np.arange(11), sizes)
    sets = rows, rows[-100:], enrolled, enrolled[-100:]
    prepared = im.prepare_gallery(*save(tmp_path, *sets), tmp_path / "prepared", template="each")
    plan = gallery_plan_on(prepared, 2 << 30, None, room)
    assert 1 < plan.parts <= plan.gallery_sections * plan.probe_sections
    with pytest.raises(im.InputError, match="this plan needs at least"):
        gallery_plan_on(prepared, 270_000_000, None, room)


@needs_ray
@pytest.mark.parametrize(
    ("address", "remedy"), [("auto", "start one with ray start --head"), ("10.0.0.1:6379", "set RAY_AUTH_MODE=token")]
)
def test_a_cluster_that_lets_no_one_in_is_refused_with_what_to_do(address, remedy, monkeypatch):
    import ray

    from isomargin.measure.on_cluster import connected

    def refuse(*_, **__):
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(im.InputError, match=remedy), connected(address):
        pass


@needs_ray
@pytest.mark.parametrize("own", [signal.SIG_DFL, lambda *_: None])
def test_a_cluster_does_not_change_how_a_command_takes_sigterm(own, monkeypatch):
    """Ray's handler stays where there was none, because it stops what Ray has started."""
    import ray

    from isomargin.measure.on_cluster import connected

    def of_ray(*_):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, own)
    try:
        monkeypatch.setattr(ray, "init", lambda *_, **__: signal.signal(signal.SIGTERM, of_ray))
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        with connected("local"):
            assert signal.getsignal(signal.SIGTERM) is (own if callable(own) else of_ray)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_of_what_ray_prints_about_a_failed_task_the_reason_is_told_without_a_traceback(capsys):
    with telling_what_ray_repeats():
        print("(raylet) Task failed. There are 3 retries. Error:\n  File 'a.py', line 1\n    b\nOSError: disk full")
        print("(raylet) A worker died.")
    assert capsys.readouterr() == (
        "",
        "(raylet) Task failed. There are 3 retries. Error: OSError: disk full\n(raylet) A worker died.\n",
    )


# ----- on a cluster, last: it stays connected until the end of the file

ON_CLUSTER = {"memory": "700MB", "cluster": "auto"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A prepared set on a cluster of two workers, of which one is killed with part 3 of the counts."""
    import ray

    folder = tmp_path_factory.mktemp("cluster")
    rows, labels = clusters(900, 30, dimensions=8)
    im.EmbeddingSet(rows, labels).save(folder / "items.npy")
    with pytest.MonkeyPatch.context() as patch, limits(**SMALL):
        for name, value in ray_faults.LOCAL.items():
            patch.setenv(name, value)
        prepared = im.prepare(folder / "items.npy", folder / "prepared")
        faults = ray_faults.environment(folder, limits=SMALL, killed_once=[3])
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=faults)
        try:
            yield prepared
        finally:
            ray.shutdown()


@needs_ray
def test_counts_on_ray_are_the_single_pass_bit_for_bit_although_a_worker_is_killed(cluster):
    plan = plan_for(cluster, 8, "700MB", Settings())
    single = count_pairs(cluster.data(), k=Settings().k, layout=plan.layout)  # compiles for the workers too
    shares: list[float] = []
    evaluation = im.evaluate_shards(cluster.folder, parts=8, progress=shares.append, **ON_CLUSTER, **FEW_PAIRS)
    assert (cluster.folder.parent / "killed-3").exists()
    assert ray_faults.counted(cluster.folder.parent) == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert_identical(evaluation, single)
    assert shares == sorted(shares)
    assert shares[-1] == 1


@needs_ray
def test_an_equalizer_is_fitted_and_its_scores_are_counted_on_ray_bit_for_bit(cluster, tmp_path):
    settings = {"neighbours": 20, "skip": 10}
    rows, labels = clusters(900, 30, dimensions=8)
    in_memory = im.Equalizer(**settings).fit(rows[np.argsort(labels, kind="stable")])
    work = tmp_path / "work"
    for _ in range(2):  # the second time, all parts are there
        fitted = im.fit_equalizer(
            cluster.folder, tmp_path / "equalizer.json", work=work, parts=5, **ON_CLUSTER, **settings
        )
        np.testing.assert_array_equal(fitted.nearest_, in_memory.nearest_)
    assert len(list(work.glob("neighbours-?-of-5.npz"))) == 5
    evaluation = im.evaluate_shards(
        cluster.folder, parts=4, work=tmp_path / "counts", equalizer=fitted, **ON_CLUSTER, **FEW_PAIRS
    )
    plan = im.plan_parts(cluster, 4, memory="700MB", equalizer=fitted)
    single = count_pairs(cluster.data(fitted.shifts_of_rows(cluster.vectors)), k=Settings().k, layout=plan.layout)
    assert_identical(evaluation, single)
    assert evaluation.equalizer == fitted.record()
    assert_identical(merge_files(tmp_path / "counts"), single)


@needs_ray
def test_a_gallery_on_ray_is_the_single_pass_bit_for_bit(cluster, tmp_path):
    prepared = im.prepare_gallery(*save(tmp_path, *draw(items=900, classes=300, probes=700)), tmp_path / "prepared")
    plan = im.plan_gallery(prepared, 5, memory=ON_CLUSTER["memory"])
    single = compare_in_tiles(prepared.data(), layout=plan.layout)
    folder, notes = tmp_path / "work", cluster.folder.parent
    evaluation = im.evaluate_gallery_shards(prepared.folder, work=folder, parts=5, **ON_CLUSTER)
    counted = ray_faults.counted(notes)
    again = im.evaluate_gallery_shards(prepared.folder, work=folder, **ON_CLUSTER)  # from the files of the parts
    assert ray_faults.counted(notes) == counted
    for found in (evaluation, again, merge_gallery_files(folder)):
        scores = ProbeScores(*(getattr(found.gallery, name) for name in ProbeScores._fields))
        assert_identical_passes(GalleryPass(found.counts, found.gallery.by_probe, scores), single)


@needs_ray
def test_embeddings_in_memory_are_evaluated_on_ray_like_those_in_files(cluster, monkeypatch):
    monkeypatch.setattr(parts, "MEMORY", ON_CLUSTER["memory"])
    rows, labels = clusters(900, 30, dimensions=8)
    evaluation = im.evaluate(rows, labels, cluster="auto", **FEW_PAIRS)
    plan = plan_for(cluster, 6, ON_CLUSTER["memory"], Settings())
    single = count_pairs(cluster.data(), k=Settings().k, layout=plan.layout)
    assert_identical(evaluation, single)


@needs_ray
def test_new_classes_are_equalized_on_ray_as_in_memory(cluster, monkeypatch):
    monkeypatch.setattr(parts, "MEMORY", ON_CLUSTER["memory"])
    rows, labels = clusters(900, 30, dimensions=8)
    ids = np.arange(900)
    equalizer = im.Equalizer(neighbours=20, skip=10).fit(rows, ids=ids)
    settings = {"equalizer": equalizer, "ids": ids[::-1], "new_classes": True, **FEW_PAIRS}
    found, expected = (im.evaluate(rows[::-1], labels[::-1], cluster=where, **settings) for where in ("auto", None))
    assert found.equalizer == expected.equalizer
    assert found.equalizer["own_class"]
    for name in ("opis", "mean_utility", "eer", "recall@1", "map_at_r"):
        assert found.scalars()[name] == pytest.approx(expected.scalars()[name], abs=1e-4), name
