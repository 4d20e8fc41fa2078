"""The command `python -m lab`: what it refuses, lists, runs and prints."""

import pytest
from pretended_training import Trainer

import isomargin as im
from isomargin.training.recipe import load_recipe
from lab import run_experiment as module
from lab.plan import planned_runs
from lab.results_folder import Results, write_results
from lab.run_experiment import run_experiment

TABLE = "| setting | loss | seeds | OPIS ×1e-3 |\n| --- | --- | --- | --- |\n| toy | smooth_ap | 2 | 1.5 |\n"


def write_table(place):
    place.mkdir(parents=True)
    (place / "table.csv").write_text("setting,loss,seeds,opis,against\ntoy,smooth_ap,2,0.0015,\n")


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


def test_all_continues_after_a_failure_and_names_it_at_the_end(run_lab, add, tmp_path, monkeypatch):
    add("birds", plans={"small": {"settings": ["birds"]}})
    add("losses", plans={"small": {"settings": ["toy"], "axes": {"loss": ["smooth_ap"]}}})
    add("tried", plans={"toy": {"settings": ["toy"]}})
    asked = []
    monkeypatch.chdir(tmp_path)

    def fake(name, results, **options):
        asked.append(name)
        if name == "birds":
            raise im.InputError("birds need cub")
        write_table(results / name)

    monkeypatch.setattr(module, "run_experiment", fake)
    code, out, err = run_lab("all")
    assert (code, asked) == (2, ["birds", "losses"])
    assert out.endswith(f"## losses\n\n{TABLE}")
    assert err.splitlines()[-2:] == ["lab: 1 of 2 experiments could not be run", "  birds: birds need cub"]


def test_devices_are_passed_on_and_torchrun_is_refused(run_lab, add, tmp_path, monkeypatch):
    add("losses")
    given = []

    def fake(name, results, devices, **options):
        given.append(devices)
        write_table(results / name)

    monkeypatch.setattr(module, "run_experiment", fake)
    arguments = ("losses", "--scale", "toy", "--results", tmp_path, "--devices", 3)
    assert run_lab(*arguments)[0] == 0
    assert given == [3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    code, _, err = run_lab(*arguments)
    assert (code, given) == (2, [3])
    assert "start it without torchrun, with --devices" in err


def test_tables_are_printed_in_either_format(run_lab, add, tmp_path):
    add("losses")
    write_table(tmp_path / "losses")
    assert run_lab("tables", "losses", "--results", tmp_path) == (0, TABLE, "")
    code, out, _ = run_lab("tables", "losses", "--format", "latex", "--results", tmp_path)
    assert code == 0
    assert r"toy & smooth\_ap & 2 & 1.5 \\" in out
    code, out, err = run_lab("tables", "losses", "--results", tmp_path / "empty")
    assert (code, out) == (2, "")
    assert "has no table.csv: run the experiment first" in err


def test_a_recipe_is_printed_as_train_takes_it(run_lab, add, tmp_path):
    experiment = add("losses")
    recipes = {run.variant: run.recipe for run in planned_runs(experiment, "toy", 1, {"patterns": tmp_path})}
    write_results(Results([], [], recipes), tmp_path / "losses")
    code, out, _ = run_lab("recipe", "losses", "arcface+tcm", "--results", tmp_path)
    assert code == 0
    (tmp_path / "recipe.yaml").write_text(out)
    assert load_recipe(tmp_path / "recipe.yaml", [f"data.root={tmp_path}"]) == recipes["arcface+tcm"]
    code, _, err = run_lab("recipe", "losses", "arcface+tc", "--results", tmp_path)
    assert code == 2
    assert "has no recipe 'arcface+tc': did you mean 'arcface+tcm'" in err
    _, _, err = run_lab("recipe", "losses", "x", "--results", tmp_path)
    assert err.endswith("has no recipe 'x': its keys are the names\n")
