"""The evaluator and the losses with the real trainer, on a tiny static-embedding model."""

import csv

import numpy as np
import pytest
import torch

import isomargin as im
from integrations.installed import in_one_worker, needs
from isomargin.core.errors import InputError
from isomargin.losses import ClassAlignmentLoss, SmoothAPLoss, TCMLoss, share

needs("sentence_transformers", "accelerate", "datasets")

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import BatchHardTripletLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from isomargin.integrations.sentence_transformers import EmbeddingLoss, ThresholdConsistencyEvaluator

pytestmark = in_one_worker

CLASSES, WORDS = 8, 40


def make_texts(seed, count=160):
    """Sentences of eight words, half of them from the five words of their class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    own = labels[:, None] * 5 + generator.integers(5, size=(count, 4))
    words = np.concatenate([own, generator.integers(WORDS, size=(count, 4))], axis=1)
    return [" ".join(f"w{word}" for word in row) for row in words], labels


def make_model():
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    rows = torch.randn(WORDS, 16, generator=torch.Generator().manual_seed(0))
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=rows)], device="cpu")


def make_evaluator(**choices):
    return ThresholdConsistencyEvaluator(*make_texts(1), name="unseen", threads=1, far=(0.02, 0.1), **choices)


def test_the_evaluator_returns_the_scalars_with_its_name_and_knows_which_way_is_better():
    model, evaluator = make_model(), make_evaluator()
    found = evaluator(model)
    texts, labels = make_texts(1)
    expected = im.evaluate(model.encode(texts), labels, far=(0.02, 0.1)).scalars()
    assert found == pytest.approx({f"unseen_{name}": value for name, value in expected.items()}, nan_ok=True)
    assert (evaluator.primary_metric, evaluator.greater_is_better) == ("unseen_opis", False)
    assert make_evaluator(primary_metric="recall@1").greater_is_better


def test_each_call_adds_a_line_to_the_csv_file(tmp_path):
    evaluator = make_evaluator()
    found = [evaluator(make_model(), str(tmp_path), epoch, steps) for epoch, steps in ((0, 5), (1, -1))]
    with (tmp_path / "threshold_consistency_evaluation_unseen_results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["steps"]) for row in rows] == [("0", "5"), ("1", "-1")]
    assert [float(row["opis"]) for row in rows] == [scores["unseen_opis"] for scores in found]


def train(model, loss, folder, **choices):
    texts, labels = make_texts(0)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=6,
        per_device_train_batch_size=32,
        learning_rate=0.05,
        batch_sampler=BatchSamplers.GROUP_BY_LABEL,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        **choices,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts, "label": labels.tolist()}),
        loss=loss,
        evaluator=make_evaluator(),
    )
    trainer.train()
    return trainer


def test_the_trainer_keeps_the_checkpoint_with_the_lowest_opis_and_the_card_has_the_scores(tmp_path):
    model = make_model()
    before = make_evaluator()(model)
    loss = EmbeddingLoss(model, SmoothAPLoss() + TCMLoss(0.8, 0.3) + share(ClassAlignmentLoss(), 0.3))
    choices = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "eval_unseen_opis"}
    trainer = train(model, loss, tmp_path, **choices, greater_is_better=False, load_best_model_at_end=True)
    logged = [entry["eval_unseen_opis"] for entry in trainer.state.log_history if "eval_unseen_opis" in entry]
    assert len(logged) == 6
    after = make_evaluator()(model)
    assert after["unseen_opis"] == pytest.approx(min(logged))
    assert after["unseen_map_at_r"] > before["unseen_map_at_r"] + 0.05
    model.save(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "Threshold Consistency" in card
    assert "**opis**" in card


def test_a_loss_of_sentence_transformers_can_be_a_part_and_texts_are_embedded_once():
    model = make_model()
    texts, labels = make_texts(0, 32)
    classes, base = torch.as_tensor(labels), BatchHardTripletLoss(model)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    loss = EmbeddingLoss(model, base + share(TCMLoss(0.8, 0.2), 0.5))
    value = loss([model.preprocess(texts)], classes)
    assert len(calls) == 1
    value.backward()
    (rows,) = model.parameters()
    assert float(rows.grad.norm()) > 0
    embeddings = model(model.preprocess(texts))["sentence_embedding"].detach().requires_grad_()
    plain, regularizer = (
        base.compute_loss_from_embeddings([embeddings], classes),
        TCMLoss(0.8, 0.2)(embeddings, classes),
    )
    lengths = [torch.autograd.grad(part, embeddings)[0].norm() for part in (plain, regularizer)]
    expected = plain + 0.5 * lengths[0] / lengths[1] * regularizer
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ThresholdConsistencyEvaluator(["a", "b"], [0]), "labels has 1 entr"),
        (lambda: ThresholdConsistencyEvaluator(["a"], [0], primary_metric="nonsense"), "nonsense"),
        (lambda: ThresholdConsistencyEvaluator(["a"], [0], fars=(0.1, 0.2)), "fars is not a setting"),
        (lambda: EmbeddingLoss(make_model(), TCMLoss())([{}, {}], torch.zeros(2)), "2 columns of texts with labels"),
        (lambda: EmbeddingLoss(make_model(), TCMLoss())([{}], None), "1 columns of texts without labels"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
