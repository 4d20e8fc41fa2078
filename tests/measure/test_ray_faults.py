"""Two nodes of a Ray cluster with little memory: workers, nodes and drivers die, parts fail, storage is not shared."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import numpy as np
import pytest

import isomargin as im
from compare import clusters
from isomargin.measure.pairs.gallery_tiles import compare_in_tiles
from isomargin.measure.pairs.part_plan import plan_for
from isomargin.measure.pairs.tiles import count_pairs
from isomargin.measure.parts import merge_files
from isomargin.measure.settings import Settings
from measure import ray_faults
from measure.ray_faults import LOCAL
from measure.test_parts import FEW_PAIRS, assert_identical, limits

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

MEMORY = "600MB"
SMALL = {"MOST_BINS": 1 << 15, "TILE_ROWS": 32}  # results of a part are then in the object store of its node
NODE = {"num_cpus": 1, "memory": 700_000_000, "object_store_memory": 80 << 20}
PARTS = 12
SECONDS = 300


def head_node(**choices):
    """A cluster of one node."""
    from ray.cluster_utils import Cluster

    os.environ.update(LOCAL)
    return Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **NODE, **choices})


@contextmanager
def two_nodes():
    """A cluster of two nodes, each with room for one part at a time; gives it and its second node."""
    import ray

    cluster = head_node()
    try:
        yield cluster, cluster.add_node(**NODE)
    finally:
        ray.shutdown()
        cluster.shutdown()


@contextmanager
def driver(cluster, folder, **faults):
    """Connect this process, as the driver, with workers that have these faults."""
    import ray

    environment = ray_faults.environment(folder, limits=SMALL, **faults)
    ray.init(cluster.address, log_to_driver=False, runtime_env=environment)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.fixture
def small(tmp_path):
    """A prepared set, and the counts of the single pass with the tiles of its plan."""
    rows, labels = clusters(900, 30, dimensions=8)
    im.EmbeddingSet(rows, labels).save(tmp_path / "items.npy")
    with limits(**SMALL):
        prepared = im.prepare(tmp_path / "items.npy", tmp_path / "prepared")
        plan = plan_for(prepared, PARTS, MEMORY, Settings())
        yield prepared, count_pairs(prepared.data(), k=Settings().k, layout=plan.layout)


def evaluate(prepared, work=None, parts=PARTS, progress=None):
    options = {"memory": MEMORY, "cluster": "auto", "parts": parts, "work": work, "progress": progress}
    return im.evaluate_shards(prepared.folder, **options, **FEW_PAIRS)


def nodes():
    import ray

    return ray.nodes()


def until(what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_a_killed_worker_a_removed_node_and_a_new_one_leave_the_counts_as_they_are(small, tmp_path):
    prepared, single = small
    with two_nodes() as (cluster, second), driver(cluster, tmp_path, killed_once=[2], waiting=[*range(5, PARTS + 1)]):
        changed = []

        def change_nodes(share):  # while the first parts are done, and others run on both nodes
            if not changed and len(ray_faults.counted(tmp_path)) >= 6:
                changed.append(share)
                cluster.remove_node(second, allow_graceful=False)
                cluster.add_node(**NODE)
                (tmp_path / "gate").touch()

        evaluation = evaluate(prepared, progress=change_nodes)
        assert 0 < changed[0] < 1
        until(lambda: sorted(node["Alive"] for node in nodes()) == [False, True, True])  # Ray notices it after a while
    begun = ray_faults.counted(tmp_path)
    print(f"parts begun: {begun}")
    assert set(begun) == set(range(1, PARTS + 1))
    assert begun.count(2) >= 2
    assert len(begun) > PARTS + 1  # what the removed node counted or held was counted again
    assert_identical(evaluation, single)


def test_a_part_that_always_fails_ends_with_one_sentence_and_the_others_are_kept(small, tmp_path):
    prepared, single = small
    work = tmp_path / "work"
    with two_nodes() as (cluster, _):
        with driver(cluster, tmp_path, always_killed=[4]), pytest.raises(im.InputError) as caught:
            evaluate(prepared, work)
        begun = ray_faults.counted(tmp_path)
        assert begun == sorted([*range(1, PARTS + 1), 4, 4, 4])
        print(caught.value)
        assert f"part 4 of {PARTS} failed 4 times (its worker died): what is done is kept in {work}" in str(
            caught.value
        )
        assert "\n" not in str(caught.value)
        assert len(list(work.glob("part-*.npz"))) == PARTS - 1
        with driver(cluster, tmp_path), pytest.raises(im.InputError, match=r"parts is 5, but .* has parts of 12"):
            evaluate(prepared, work, parts=5)
        with driver(cluster, tmp_path):
            evaluation = evaluate(prepared, work, parts=None)
    assert ray_faults.counted(tmp_path) == sorted([*begun, 4])
    assert_identical(evaluation, single)
    with limits(**SMALL):
        assert_identical(merge_files(work), single)  # the journal holds plain part files


COMMAND = """
import json
import sys
from isomargin.measure.pairs import tiles
tiles.MOST_BINS, tiles.TILE_ROWS = 1 << 15, 32
import ray
from measure import ray_faults
address, folder, faults = (sys.argv.pop(1) for _ in range(3))
ray.init(address, log_to_driver=False, runtime_env=ray_faults.environment(folder, **json.loads(faults)))
from isomargin.cli.app import main
main()
"""


def start_driver(cluster, folder, prepared, work, output, **faults):
    faults = json.dumps({"limits": SMALL, **faults})
    options = ["--memory", MEMORY, "--parts", PARTS, "--work", work, "--far", 0.05, 0.2, "--target-far", 0.05]
    arguments = [cluster.address, folder, faults, "evaluate", prepared.folder, "--ray", "auto", *options, "-o", output]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_driver_that_was_killed_goes_on_where_it_was(small, tmp_path):
    prepared, single = small
    work, output = tmp_path / "work", tmp_path / "evaluation.json"
    with two_nodes() as (cluster, _):
        first = start_driver(cluster, tmp_path, prepared, work, output, waiting=[*range(6, PARTS + 1)])
        until(lambda: len(list(work.glob("part-*.npz"))) >= 5 or first.poll() is not None)
        first.send_signal(signal.SIGKILL)
        assert first.wait() == -signal.SIGKILL, first.communicate()
        kept = {path: path.stat().st_mtime_ns for path in work.glob("part-*.npz")}
        assert len(kept) == 5
        begun = ray_faults.counted(tmp_path)
        second = start_driver(cluster, tmp_path, prepared, work, output)
        _, errors = second.communicate(timeout=SECONDS)
        assert second.returncode == 0, errors
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    again = ray_faults.counted(tmp_path)
    assert [again.count(number) - begun.count(number) for number in range(1, PARTS + 1)] == [0] * 5 + [1] * 7
    assert_identical(im.Evaluation.load(output), single)


def hidden_node(cluster, hidden):
    """Start a node in a mount namespace of its own in which a folder is empty, as it is without shared storage."""
    options = ["--num-cpus=1", f"--memory={NODE['memory'] * 4}", f"--object-store-memory={NODE['object_store_memory']}"]
    start = f"ray start --address={cluster.address} --block --disable-usage-stats {' '.join(options)}"
    ray_command = os.path.join(os.path.dirname(sys.executable), "ray")
    script = f"mount -t tmpfs none '{hidden}' && exec {ray_command}{start.removeprefix('ray')}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    log = open(hidden.parent / "hidden-node.log", "w")  # noqa: SIM115
    return subprocess.Popen(["unshare", "--mount", "sh", "-c", script], env=environment, stdout=log, stderr=log)


def may_mount():
    tried = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


def test_a_set_larger_than_the_object_store_reaches_nodes_without_shared_storage(tmp_path):
    import ray

    if not may_mount():
        pytest.skip("a node without shared storage needs the right to mount")
    shared = tmp_path / "shared"
    shared.mkdir()
    rows, labels = clusters(2_700, 60, dimensions=8192)
    im.EmbeddingSet(rows.astype(np.float32), labels).save(shared / "items.npy")
    prepared = im.prepare(shared / "items.npy", shared / "prepared")
    assert prepared.vectors.nbytes > NODE["object_store_memory"]
    plan = plan_for(prepared, 3, "2GB", Settings())
    single = count_pairs(prepared.data(), k=Settings().k, layout=plan.layout)
    gallery = im.prepare_gallery(shared / "items.npy", None, shared / "gallery", leave_one_out=True)
    gallery_counts = compare_in_tiles(gallery.data(), layout=im.plan_gallery(gallery, 3, memory="2GB").layout).counts
    cluster = head_node(num_cpus=0)  # parts are counted on the other node alone
    node = hidden_node(cluster, shared)
    try:
        ray.init(cluster.address, log_to_driver=False)
        until(lambda: ray.cluster_resources().get("CPU", 0) == 1)
        evaluation = im.evaluate_shards(
            prepared.folder, memory="2GB", cluster="auto", parts=3, work=shared / "work", **FEW_PAIRS
        )
        assert_identical(evaluation, single)
        assert len(list((shared / "work").glob("part-*.npz"))) == 3
        assert_identical(merge_files(shared / "work"), single)
        found = im.evaluate_gallery_shards(gallery.folder, memory="2GB", cluster="auto", parts=3, work=shared / "kept")
        np.testing.assert_array_equal(found.counts.negatives.counts, gallery_counts.negatives.counts)
        np.testing.assert_array_equal(found.counts.positives.distances, gallery_counts.positives.distances)
        assert len(list((shared / "kept").glob("part-*.npz"))) == 3
    finally:
        ray.shutdown()
        node.terminate()
        node.wait()
        cluster.shutdown()
