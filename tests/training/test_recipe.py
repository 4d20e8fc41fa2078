"""Recipes: what stands in the file is what comes, mistakes are named, and a saved one reads the same."""

import pytest
import yaml

from isomargin.core.errors import InputError
from isomargin.training.recipe import Recipe, load_recipe, read_recipe

SMALLEST = {"name": "a", "data": {"name": "glyphs"}, "model": {"backbone": "small_conv"}, "loss": {"base": "smooth_ap"}}


def write(tmp_path, content):
    path = tmp_path / "recipe.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_settings_are_read_with_defaults_for_the_others(tmp_path):
    recipe = load_recipe(write(tmp_path, {**SMALLEST, "batch": {"classes": 16}, "epochs": 3}))
    assert (recipe.batch.classes, recipe.batch.images_per_class, recipe.epochs) == (16, 4, 3.0)


def test_a_saved_recipe_reads_the_same(tmp_path):
    recipe = read_recipe(
        {**SMALLEST, "schedule": {"name": "multi_step", "at": [3, 5]}, "evaluation": {"far": [0.1, 0.2]}}
    )
    recipe.save(tmp_path / "saved.yaml")
    assert load_recipe(tmp_path / "saved.yaml") == recipe


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", ".1e-3", "+1e-4"])
def test_numbers_are_numbers_however_they_are_written(tmp_path, text):
    lines = yaml.safe_dump(SMALLEST) + f"optimizer:\n  learning_rate: {text}\n"
    assert load_recipe(write(tmp_path, lines)).optimizer.learning_rate == pytest.approx(1e-4)
    assert load_recipe(write(tmp_path, SMALLEST), [f"optimizer.learning_rate={text}"]).optimizer.learning_rate == (
        pytest.approx(1e-4)
    )


def test_changes_reach_every_depth_and_make_sections(tmp_path):
    path = write(tmp_path, {**SMALLEST, "loss": {"base": "smooth_ap", "regularizer": "tcm"}})
    recipe = load_recipe(
        path,
        [
            "loss.regularizer.negative_margin=0.4",
            "schedule.at=[10, 20]",
            "schedule.name=multi_step",
            "seed=3",
            "data.root=~",
        ],
    )
    assert recipe.loss.regularizer == {"name": "tcm", "negative_margin": 0.4}
    assert recipe.loss.base == "smooth_ap"
    assert recipe.schedule.at == (10, 20)
    assert recipe.seed == 3
    assert recipe.data == {"name": "glyphs", "root": None}


def test_several_regularizers_are_parts_of_the_loss():
    recipe = read_recipe(
        {**SMALLEST, "loss": {"base": "smooth_ap", "regularizer": ["tcm", {"name": "class_alignment"}]}}
    )
    assert recipe.loss.parts() == ["smooth_ap", "tcm", {"name": "class_alignment"}]
    assert read_recipe(SMALLEST).loss.parts() == ["smooth_ap"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bach": {}}, "the recipe has no setting 'bach': did you mean 'batch'?"),
        ({"batch": {"clases": 3}}, "the recipe has no setting 'batch.clases': did you mean 'classes'?"),
        ({"optimizer": {"xyz": 3}}, "no setting 'optimizer.xyz': known are name, learning_rate, head_factor"),
        ({"batch": {"classes": 0}}, "batch.classes is 0: greater than or equal to 1 is needed"),
        ({"batch": {"classes": "many"}}, "batch.classes is 'many': a valid integer is needed"),
        ({"optimizer": {"name": "adm"}}, "optimizer.name is 'adm': 'adam', 'adamw' or 'sgd' is needed"),
        ({"epochs": -1}, "epochs is -1: greater than 0 is needed"),
        ({"epochs": float("inf")}, "epochs is inf: a finite number is needed"),
        ({"loss": {"regularizer": "tcm"}}, "the recipe lacks 'loss.base': it is needed"),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(change, message):
    with pytest.raises(ValueError, match=r"needed|did you mean|known are") as raised:
        read_recipe({**SMALLEST, **change})
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "holds list: a recipe is settings by name"),
        ("name: [", "could not be read"),
        ("", "is empty"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        load_recipe(write(tmp_path, text))


@pytest.mark.parametrize("change", ["seed", "=3", "seed=[", "name.first=3"])
def test_a_change_that_is_none_is_refused(tmp_path, change):
    with pytest.raises(ValueError, match=r"is not a change|is not a value|has no settings below"):
        load_recipe(write(tmp_path, SMALLEST), [change])


def test_a_recipe_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="frozen"):
        read_recipe(SMALLEST).seed = 3
    assert isinstance(read_recipe(SMALLEST), Recipe)


def test_a_recipe_that_extends_another_begins_with_its_settings(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "{name: base, data: {name: glyphs}, model: {backbone: small_conv}, loss: {base: smooth_ap}, epochs: 3}"
    )
    (tmp_path / "more.yaml").write_text("{extends: base, name: more, data: {draws: 2}, loss: {regularizer: tcm}}")
    (tmp_path / "most.yaml").write_text("{extends: more, name: most, data: {draws: 1}}")
    most = load_recipe(tmp_path / "most.yaml", ["epochs=4"])
    assert most.data == {"name": "glyphs", "draws": 1}
    assert most.loss.parts() == ["smooth_ap", "tcm"]
    assert (most.name, most.epochs) == ("most", 4)
    (tmp_path / "base.yaml").write_text("{extends: most, name: base}")
    with pytest.raises(InputError, match="extends it in turn"):
        load_recipe(tmp_path / "most.yaml")
    (tmp_path / "lost.yaml").write_text("{extends: nothing, name: lost}")
    with pytest.raises(InputError, match=r"nothing\.yaml does not exist"):
        load_recipe(tmp_path / "lost.yaml")
