"""Training that diverges says so, whatever the loss."""

import pytest

from isomargin.core.errors import DivergedError
from training.runs import run, tiny


def test_training_whose_embeddings_become_nan_says_that_it_diverged(tmp_path):
    recipe = tiny(loss={"base": "tcm", "regularizer": None}, optimizer={"name": "sgd", "learning_rate": 1e30})
    with pytest.raises(DivergedError, match="the loss is nan by step 6: training diverged"):
        run(tmp_path / "run", recipe)
