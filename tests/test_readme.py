"""The examples of the README, and the one of docs/losses.md that goes on from them, run as they stand."""

import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]


def python_blocks(page, word):
    """The Python examples of a page that have a word in them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return [block for block in blocks if word in block]


def test_the_training_examples_run_one_after_the_other_with_fewer_steps(capsys):
    (first,), (second,) = python_blocks("README.md", "optimizer"), python_blocks("docs/losses.md", "MPerClassSampler")
    names: dict[str, object] = {}
    exec("import isomargin as im", names)
    for block, long, short in (
        (first, "range(200)", "range(2)"),
        (second, "length_before_new_iter=len(labels)", "length_before_new_iter=512"),
    ):
        assert long in block
        exec(block.replace(long, short), names)
    assert "class_alignment" in capsys.readouterr().out
    assert names["value"].isfinite()


def test_the_measuring_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator, labels = np.random.default_rng(0), np.repeat(np.arange(20), 8)
    embeddings = generator.normal(size=(20, 16))[labels] + generator.normal(size=(160, 16))
    (block,) = python_blocks("README.md", "im.evaluate(embeddings, labels)")
    names: dict[str, object] = {"embeddings": embeddings, "labels": labels}
    exec("import isomargin as im\nother = im.evaluate(embeddings, labels)", names)
    exec(block, names)
    assert (tmp_path / "card.json").is_file()
    assert (tmp_path / "report.html").is_file()


def test_the_readme_stays_within_200_lines():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200
