"""The README's training examples run as they stand, only with fewer steps."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_training_examples_run_one_after_the_other(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    first, second = (block for block in blocks if "optimizer" in block)
    names: dict[str, object] = {}
    for block, whole, short in (
        (first, "range(200)", "range(2)"),
        (second, "length_before_new_iter=len(labels)", "length_before_new_iter=512"),
    ):
        assert whole in block
        exec(block.replace(whole, short), names)
    assert "tcm.hard_positives" in capsys.readouterr().out
    assert names["value"].isfinite()
