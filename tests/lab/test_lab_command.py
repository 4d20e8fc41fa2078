"""The command `python -m lab`: what it refuses, lists and runs."""

import pytest
from pretended_training import Trainer

import isomargin as im
from lab import run_experiment as module
from lab.run_experiment import run_experiment


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--scale", "toy"], "the name of an experiment is needed"),
        (["nothing"], "there is no experiment 'nothing'"),
        (["base-losses"], "cub"),
        (["base-losses", "--scale", "huge"], "scale is 'huge'"),
        (["base-losses", "--data", "cub"], "NAME=FOLDER is needed"),
        (["base-losses", "--data", "cub=/no/such/folder"], "does not exist"),
        (["base-losses", "--scale", "toy", "--settings", "moon"], "settings"),
        (["base-losses", "--jobs", "0"], "jobs"),
        (["all", "--settings", "toy"], "leave them out to run all"),
        (["base-losses", "--scale", "toy", "--jobs", "2", "--devices", "2"], "jobs is 2 and devices is 2"),
    ],
    ids=str,
)
def test_bad_input_is_one_sentence(run_lab, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_lab(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_the_list_says_what_every_scale_needs(run_lab, add):
    plans = {"paper": {"settings": ["birds"], "needs": "eight GPUs"}, "toy": {"settings": ["toy"]}}
    add("losses", title="Losses side by side", paper="Table 2", plans=plans)
    code, out, _ = run_lab("--list")
    assert code == 0
    assert out == "losses\n  Losses side by side\n  Table 2\n  paper: eight GPUs\n  toy: needs nothing\n"


def test_the_papers_scale_says_first_what_it_needs(add, tmp_path):
    add("losses", plans={"paper": {"settings": ["birds"], "needs": "eight GPUs", "seeds": 1}})
    said = []
    run_experiment(
        "losses",
        tmp_path / "runs",
        tmp_path / "results",
        scale="paper",
        data={"cub": tmp_path},
        train=Trainer(),
        report=said.append,
    )
    assert said[0] == "losses at the paper's scale needs eight GPUs"


def test_all_goes_on_after_what_cannot_be_run_and_names_it_at_the_end(run_lab, add, tmp_path, monkeypatch):
    add("birds", plans={"small": {"settings": ["birds"]}})
    add("losses", plans={"small": {"settings": ["toy"]}})
    add("tried", plans={"toy": {"settings": ["toy"]}})
    asked = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "losses").mkdir(parents=True)
    (tmp_path / "results" / "losses" / "table.md").write_text("a table\n")

    def fake(name, *arguments, **options):
        asked.append(name)
        if name == "birds":
            raise im.InputError("birds need cub")

    monkeypatch.setattr(module, "run_experiment", fake)
    code, out, err = run_lab("all")
    assert (code, asked) == (2, ["birds", "losses"])
    assert out.endswith("## losses\n\na table\n")
    assert err.splitlines()[-2:] == ["lab: 1 of 2 experiments could not be run", "  birds: birds need cub"]


def test_devices_are_passed_on_and_torchrun_is_refused(run_lab, add, tmp_path, monkeypatch):
    add("losses")
    given = []

    def fake(name, output, results, **options):
        given.append(options["devices"])
        (results / name).mkdir(parents=True)
        (results / name / "table.md").write_text("a table\n")

    monkeypatch.setattr(module, "run_experiment", fake)
    arguments = ("losses", "--scale", "toy", "--results", tmp_path, "--devices", 3)
    assert run_lab(*arguments)[0] == 0
    assert given == [3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    code, _, err = run_lab(*arguments)
    assert (code, given) == (2, [3])
    assert "start it without torchrun, with --devices" in err
