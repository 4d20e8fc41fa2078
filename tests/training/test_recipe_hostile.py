"""Recipes that would fill the memory: refused at once, in one short sentence."""

import pytest

from isomargin.core.errors import InputError
from isomargin.training.recipe import load_recipe
from training.runs import tiny


def laughs(levels, inner="[{}]"):
    """Settings of nine aliases each, nested: 9 to the power of the levels when written out."""
    lines = ["a0: &a0 {ha: 1}"]
    for level in range(1, levels + 1):
        lines.append(f"a{level}: &a{level} " + inner.format(", ".join([f"*a{level - 1}"] * 9)))
    return "\n".join([*lines, f"name: *a{levels}"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (laughs(30), "has aliases that stand for more than 1,048,576 characters"),
        (laughs(30, "{{<<: [{}]}}"), "has aliases that stand for more than 1,048,576 characters"),
        (f"a: &a {'x' * 100_000}\nname: [{', '.join(['*a'] * 1000)}]", "has aliases that stand for more than"),
        ("name: &a [*a]", "has an alias that contains itself"),
        ("name: " + "[" * 100_000, "is nested too deeply"),
        ("name: " + "x" * 2_000_000, "has 2,000,006 characters: a recipe has at most 1,048,576"),
        (f"name: tiny\ndata: {{}}\nmodel: {{}}\nloss: {{base: [{'x' * 900_000}]}}", "loss.base is"),
    ],
    ids=["lists", "merged sections", "long aliases", "itself", "deep", "large", "long value"],
)
def test_a_recipe_that_would_fill_the_memory_is_refused_in_a_short_sentence(run, tmp_path, text, told):
    (tmp_path / "bad.yaml").write_text(text)
    code, out, err = run("train", tmp_path / "bad.yaml", "--dry-run")
    assert (code, out) == (2, "")
    assert told in err
    assert len(err) < 3000
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("value", ["&a [*a]", "[" * 100_000])
def test_a_change_on_the_command_line_is_checked_in_the_same_way(tmp_path, value):
    tiny().save(tmp_path / "tiny.yaml")
    with pytest.raises(InputError, match=r"'data.root' (has an alias|is nested)"):
        load_recipe(tmp_path / "tiny.yaml", [f"data.root={value}"])


def test_ordinary_aliases_are_written_out(tmp_path):
    text = "{name: a, data: {}, model: {}, loss: {base: &tcm {name: tcm, weight: 1}, regularizer: [*tcm, *tcm]}}"
    (tmp_path / "a.yaml").write_text(text)
    assert load_recipe(tmp_path / "a.yaml").loss.parts() == [{"name": "tcm", "weight": 1}] * 3
