"""Training on two nodes, as torchrun starts it: equal to one process, stopped by a kill, and resumed."""

import pytest

from training.nodes import ended, free_port, largest_difference, parameters, sentences, start, train_on_nodes
from training.runs import run, tiny

pytestmark = pytest.mark.cluster

LOSSES = {
    "rank-based": {"base": {"name": "recall_at_k", "k": [1, 2, 4], "simix": True}, "regularizer": None},
    "proxy": {"base": {"name": "proxy_anchor"}, "regularizer": None},
    "tcm and alignment": {
        "base": {"name": "smooth_ap"},
        "regularizer": [{"name": "tcm"}, {"name": "class_alignment", "share": 0.3}],
    },
}


def recipe_of(loss, precision="64-true"):
    """20 steps, evaluated and saved after 6, 12, 18 and 20."""
    return tiny(
        model={"backbone": "tiny_conv", "freeze_batch_norm": "statistics"},
        loss=LOSSES[loss],
        precision=precision,  # with 64 bits, rounding is far below what a wrong gradient would do
        epochs=20 / 18,
    )


@pytest.fixture
def recipe_file(tmp_path):
    def save(recipe):
        recipe.save(tmp_path / "recipe.yaml")
        return tmp_path / "recipe.yaml"

    return save


@pytest.mark.parametrize("loss", LOSSES)
def test_two_nodes_of_two_processes_train_as_one_process_does(loss, recipe_file, tmp_path):
    recipe = recipe_of(loss)
    codes, errors, seconds = train_on_nodes((recipe_file(recipe), "--output", tmp_path / "nodes"))
    assert codes == [0, 0], errors
    run(tmp_path / "one", recipe)
    assert parameters(tmp_path / "one")[0] == 20
    difference = largest_difference(tmp_path / "one", tmp_path / "nodes")
    print(f"{loss}: largest difference {difference:.1e}, {seconds:.1f} s")
    assert difference < 1e-6


@pytest.mark.parametrize("victim", [0, 3])
def test_a_kill_stops_all_with_one_sentence_and_the_run_resumes_bit_for_bit(victim, recipe_file, tmp_path):
    source = recipe_file(recipe_of("tcm and alignment", "32-true"))
    codes, errors, _ = train_on_nodes((source, "--output", tmp_path / "whole"))
    assert codes == [0, 0], errors
    folder = tmp_path / "parts"
    codes, errors, seconds = train_on_nodes((source, "--output", folder), killed=(victim, 9))
    print(f"process {victim} killed: ended after {seconds:.1f} s, start included")
    assert 0 not in codes
    assert seconds < 60
    (sentence,) = sentences(errors)
    assert "one of the 4 processes has ended" in sentence
    assert f"`isomargin train {folder} --resume`, started as before, goes on after step 6" in sentence
    assert not [text for text in errors if "isomargin/training" in text], "a traceback was printed"
    codes, errors, _ = train_on_nodes((folder, "--resume"))
    assert codes == [0, 0], errors
    assert (folder / "metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    assert largest_difference(tmp_path / "whole", folder) == 0


def test_a_killed_run_resumes_with_another_number_of_processes(recipe_file, tmp_path):
    recipe = recipe_of("rank-based")
    folder = tmp_path / "parts"
    codes, _, _ = train_on_nodes((recipe_file(recipe), "--output", folder), killed=(2, 9))
    assert 0 not in codes
    codes, errors, _ = train_on_nodes((folder, "--resume"), processes=(2, 1))
    assert codes == [0, 0], errors
    run(tmp_path / "one", recipe)
    difference = largest_difference(tmp_path / "one", folder)
    print(f"from 4 processes to 3: largest difference {difference:.1e}")
    assert difference < 1e-6


def test_where_a_node_is_gone_torchrun_goes_on_with_the_other(recipe_file, tmp_path):
    recipe = recipe_of("proxy")
    elastic = ("--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 3, "--rdzv-backend", "c10d")
    meeting = ("--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test")
    folder = tmp_path / "elastic"
    arguments = ("train", recipe_file(recipe), "--output", folder, "--resume-or-start", "--accelerator", "cpu")
    agents = []
    for host, killed in ((1, None), (0, ("all", 9))):  # the node where they meet must stay
        last_call = f"is_host={host},last_call_timeout=10"  # seconds for further nodes to join
        agents.append(start([*elastic, *meeting, "--rdzv-conf", last_call], arguments, killed))
    codes, errors = ended(agents)
    assert codes == [0, -9], errors
    (sentence,) = sentences(errors)
    assert "one of the 4 processes has ended" in sentence
    assert "goes on after step 6" in sentence
    run(tmp_path / "one", recipe)
    difference = largest_difference(tmp_path / "one", folder)
    print(f"from two nodes to one: largest difference {difference:.1e}")
    assert difference < 1e-6
