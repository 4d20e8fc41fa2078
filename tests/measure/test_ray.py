"""Counting on a Ray cluster: bad input is refused. What is counted is in test_ray_counts.py."""

import importlib.util
import socket

import pytest

import isomargin as im
from compare import clusters

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


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
        (["--ray", "local", "--gallery", "gallery.npz"], "gallery: gallery.npz is not a shard"),
        (["--ray", "local", "--equalizer", "local.json"], "--equalizer cannot be used with shards"),
        (["--ray", "local", "--part", "1/4"], "--part counts one part here and --ray all parts on a cluster"),
        (["--parts", "4"], "--parts is for --ray"),
    ],
)
def test_options_that_do_not_go_with_ray_are_refused(options, expected, shard, run):
    assert expected in refusal(run, shard, *options)


def test_parts_without_a_cluster_are_refused(shard):
    with pytest.raises(im.InputError, match="parts is 4, but all parts are counted in this process"):
        im.evaluate_shards(shard, parts=4)
