"""The name of a recipe, which names the folder of its run."""

import pytest

from isomargin.core.errors import InputError
from isomargin.training.recipe import read_recipe
from training.runs import TINY, tiny


@pytest.mark.parametrize(
    "name", ["../x", "../../x", "a/../../x", "/tmp/x", "C:/x", r"..\x", r"\\server\x", "", ".", " ", "a\nb", "a\0b"]
)
def test_a_name_that_leaves_runs_is_refused(name):
    with pytest.raises(InputError, match="a name inside runs/ is needed"):
        read_recipe({**TINY, "name": name})


@pytest.mark.parametrize("name", ["mine", "birds/mine", "cub lite0", "1e3", "a..b", "été"])
def test_a_name_inside_runs_is_taken(name):
    assert read_recipe({**TINY, "name": name}).name == name


def test_train_writes_nothing_outside_runs(run, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    tiny().save(tmp_path / "work/tiny.yaml")
    code, out, err = run("train", "tiny.yaml", "name=../../x", "epochs=0.1")
    assert (code, out) == (2, "")
    assert "name is '../../x'" in err
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["tiny.yaml"]
