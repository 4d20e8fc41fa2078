"""Counting on a Ray cluster: the single pass bit for bit, although a worker is killed; bad input is refused."""

import importlib.util
import socket

import pytest

import isomargin as im
from compare import clusters
from isomargin.measure.pairs.part_plan import plan_for
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.settings import Settings
from measure import ray_faults
from measure.test_parts import FEW_PAIRS, assert_identical, limits

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

SMALL = {"MOST_BINS": 512, "TILE_ROWS": 32}
"""Limits of the pass, here and in workers."""


@needs_ray
def test_counts_on_ray_are_the_single_pass_bit_for_bit_although_a_worker_is_killed(tmp_path, monkeypatch):
    import ray

    for name, value in ray_faults.LOCAL.items():
        monkeypatch.setenv(name, value)
    rows, labels = clusters(900, 30, dimensions=8)
    im.EmbeddingSet(rows, labels).save(tmp_path / "items.npy")
    with limits(**SMALL):
        prepared = im.prepare(tmp_path / "items.npy", tmp_path / "prepared")
        plan = plan_for(prepared, 8, "700MB", Settings())
        single = count_pairs(prepared.data(), k=Settings().k, layout=plan.layout)  # compiles for the workers too
        faults = ray_faults.environment(tmp_path, limits=SMALL, killed_once=[3])
        shares: list[float] = []
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=faults)
        try:
            evaluation = im.evaluate_shards(
                prepared.folder, memory="700MB", cluster="auto", parts=8, progress=shares.append, **FEW_PAIRS
            )
        finally:
            ray.shutdown()
    assert (tmp_path / "killed-3").exists()
    assert ray_faults.counted(tmp_path) == [1, 2, 3, 3, 4, 5, 6, 7, 8]
    assert_identical(evaluation, single)
    assert shares == sorted(shares)
    assert shares[-1] == 1


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
        (
            ["--ray", "local", "--gallery", "gallery.npz"],
            "--gallery cannot be used with shards, --memory, --part or --ray",
        ),
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
