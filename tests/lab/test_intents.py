"""The experiment ``intents`` end to end on made texts and a tiny model, and its rule of choice."""

import gzip
import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from integrations.installed import in_one_worker, needs
from isomargin.core.errors import InputError
from lab.files import read_csv
from lab.intents.texts import read_parts
from lab.intents.training import choose

ROOT = Path(__file__).parents[2]


def write_texts(path, intents=24, texts=12):
    """Write sentences of eight words, half of them from four words of their intent."""
    generator = np.random.default_rng(0)
    lines = ["oos_train\toos\tw1 w2"]
    for intent in range(intents):
        for _ in range(texts):
            words = [*(intent * 4 + generator.integers(4, size=4)), *generator.integers(intents * 4, size=4)]
            lines.append(f"train\tintent {intent:02}\t" + " ".join(f"w{word}" for word in words))
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def test_no_intent_is_in_two_parts_and_none_is_out_of_scope(tmp_path):
    write_texts(tmp_path / "texts.tsv.gz")
    parts = read_parts(tmp_path / "texts.tsv.gz")
    fitting, held_out, training, test = (
        set(part.classes.tolist()) for part in (parts.fitting, parts.held_out, parts.training, parts.test)
    )
    assert (len(fitting), len(held_out), len(test)) == (8, 4, 12)
    assert not fitting & held_out
    assert training == fitting | held_out
    assert test == set(range(24)) - training
    assert "w1 w2" not in [*parts.training.texts, *parts.test.texts]


def test_a_file_without_tabs_is_refused(tmp_path):
    with gzip.open(tmp_path / "texts.tsv.gz", "wt") as file:
        file.write("train,intent,text\n")
    with pytest.raises(InputError, match="part, intent and text are needed"):
        read_parts(tmp_path / "texts.tsv.gz")


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ({"a": (0.90, 0.02), "b": (0.896, 0.01), "c": (0.88, 0.001)}, "b"),
        ({"a": (0.80, 0.02), "b": (0.85, 0.03)}, "b"),
    ],
)
def test_the_lowest_opis_is_chosen_among_settings_that_keep_recall(scores, chosen):
    found = {name: SimpleNamespace(recall_at_k={1: recall}, opis=opis) for name, (recall, opis) in scores.items()}
    assert choose(found, 0.90) == chosen


def test_the_page_has_the_tables_of_the_results():
    specification = importlib.util.spec_from_file_location("fill_intents", ROOT / "docs" / "fill_intents.py")
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    page = script.PAGE.read_text(encoding="utf-8")
    assert "<!-- intents: unseen -->" in page
    assert script.filled(page) == page


@in_one_worker
def test_the_experiment_runs_and_continues_without_training_again(tmp_path, monkeypatch):
    if importlib.util.find_spec("sentence_transformers") is None or importlib.util.find_spec("datasets") is None:
        pytest.skip("sentence_transformers and datasets are not installed")
    needs("sentence_transformers")
    from safetensors.torch import save_file
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    from lab.intents import __main__ as experiment
    from lab.intents import training

    monkeypatch.setattr(experiment, "RATES_AND_EPOCHS", training.RATES_AND_EPOCHS[:1])
    monkeypatch.setattr(experiment, "temperatures", lambda best: [])
    fewer = {name: partial(lambda more, best: more(best)[:1], training.MORE[name]) for name in ("plain", "TCM")}
    monkeypatch.setattr(experiment, "MORE", fewer)
    write_texts(tmp_path / "texts.tsv.gz")
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(96)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    rows = torch.randn(96, 16, generator=torch.Generator().manual_seed(0))
    save_file({"embedding.weight": rows.half()}, tmp_path / "weights.safetensors")
    arguments = {
        "data": tmp_path / "texts.tsv.gz",
        "seeds": 2,
        "weights": tmp_path / "weights.safetensors",
        "tokenizer": tmp_path / "tokenizer.json",
        "output": tmp_path / "runs",
        "results": tmp_path / "results",
    }
    experiment.run(**arguments)
    rows = read_csv(tmp_path / "results" / "table.csv")
    assert [(row["training"], row["similarity"]) for row in rows] == [
        (training, similarity) for training in ("raw", "plain", "TCM") for similarity in ("cosine", "equalized")
    ]
    assert all(0 < float(row["opis"]) < 1 for row in rows)
    before = (tmp_path / "results" / "table.csv").read_bytes()
    monkeypatch.setattr(experiment, "train", lambda *_: pytest.fail("trained again"))
    experiment.run(**arguments)
    assert (tmp_path / "results" / "table.csv").read_bytes() == before
    assert "wordllama" not in sys.modules
