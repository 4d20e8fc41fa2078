"""Paths on the command line: each is opened as what it is, with the same options in every command."""

import numpy as np
import pytest

import isomargin as im


@pytest.fixture
def folder(tmp_path):
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(12), 8)
    vectors = generator.normal(size=(12, 16))[labels] + generator.normal(size=(96, 16))
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", features=vectors, names=labels)
        np.save(tmp_path / f"{name}.npy", vectors)
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "short.npy", labels[:-1])
    evaluation = im.evaluate(vectors, labels)
    evaluation.save(tmp_path / "evaluation.json")
    im.make_card(im.choose_threshold(evaluation, far=0.05), evaluation).save(tmp_path / "card.json")
    return tmp_path


COMMANDS = {
    "evaluate": "evaluate {a}",
    "threshold": "threshold {a} --far 0.05",
    "transfer": "transfer {a} {b} --far 0.05",
    "compare": "compare {a} {b}",
    "report": "report {a} {b} -o {folder}/report.html",
    "figure": "figure utility_curves {a} {b} -o {folder}/curves.svg",
}


def line_of(command, folder, suffix):
    return COMMANDS[command].format(a=folder / f"a{suffix}", b=folder / f"b{suffix}", folder=folder).split()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_embeddings_takes_the_same_options(folder, run, command):
    keys = ("--embeddings-key", "features", "--labels-key", "names")
    assert run(*line_of(command, folder, ".npz"), *keys)[0] == 0
    assert run(*line_of(command, folder, ".npy"), "--labels", folder / "labels.npy")[0] == 0
    code, _, error = run(*line_of(command, folder, ".npz"))
    assert code == 2
    assert "--embeddings-key" in error


def test_labels_go_to_all_files_of_embeddings_or_to_each_in_order(folder, run):
    files = (folder / "a.npy", folder / "b.npy")
    right, short = folder / "labels.npy", folder / "short.npy"
    assert run("compare", *files, "--labels", right, "--labels", right)[0] == 0
    code, _, error = run("compare", *files, "--labels", right, "--labels", short)
    assert code == 2
    assert "b.npy: labels has 95 entries" in error
    assert "was given 3 times for 2 files" in run("compare", *files, *["--labels", right] * 3)[2]
    assert "contains its own labels" in run("threshold", folder / "evaluation.json", "--labels", right)[2]


@pytest.mark.parametrize("command", ["threshold", "compare", "report"])
def test_a_card_is_not_taken_for_an_evaluation(folder, run, command):
    other = [folder / "evaluation.json"] if command == "compare" else []
    code, _, error = run(command, folder / "card.json", *other)
    assert code == 2
    assert "card.json is a threshold card, which has no pairs" in error


def test_evaluate_refuses_what_holds_no_embeddings(folder, run):
    assert "contains no embeddings" in run("evaluate", folder / "evaluation.json")[2]
    (folder / "empty").mkdir()
    assert "folder without an embeddings.npz" in run("evaluate", folder / "empty")[2]
