"""Two stages give the gradient of one, with dropout, buffers and losses that have parameters."""

import pytest
import torch

from isomargin.losses import ArcFaceLoss, SmoothAPLoss, TCMLoss
from isomargin.training.large_batch import large_batch_backward


def make_model(dropout=0.0, normalisation=False):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Dropout(dropout)]
    if normalisation:
        layers.insert(1, torch.nn.BatchNorm1d(16))
    return torch.nn.Sequential(*layers, torch.nn.Linear(16, 5)).double()


def make_batch(rows=22):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=generator, dtype=torch.float64), torch.arange(rows) % 4


def one_stage(model, images, labels, loss, chunk):
    """The same chunks, with their graphs kept."""
    value = loss(torch.cat([model(part) for part in images.split(chunk)]), labels)
    value.backward()
    return value.detach()


@pytest.mark.parametrize("chunk", [1, 5, 22, 100])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("proxies", [False, True])
def test_gradients_and_value_are_those_of_one_stage(chunk, dropout, proxies):
    images, labels = make_batch()
    results = []
    for step in (one_stage, large_batch_backward):
        model = make_model(dropout)
        loss = SmoothAPLoss(0.1) + TCMLoss()
        if proxies:
            loss = loss + ArcFaceLoss(4, 5).double()
        torch.manual_seed(7)
        value = step(model, images, labels, loss, chunk)
        gradients = [each.grad for each in (*model.parameters(), *loss.parameters())]
        results.append((value, gradients, torch.rand(1)))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_running_statistics_are_updated_once():
    images, labels = make_batch()
    results = []
    for step in (one_stage, large_batch_backward):
        model = make_model(normalisation=True)
        step(model, images, labels, SmoothAPLoss(0.1), 11)
        results.append([*model.buffers(), *(each.grad for each in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_gradients_add_to_those_there_are():
    images, labels = make_batch()
    model = make_model()
    large_batch_backward(model, images, labels, SmoothAPLoss(0.1), 5)
    once = [each.grad.clone() for each in model.parameters()]
    large_batch_backward(model, images, labels, SmoothAPLoss(0.1), 5)
    torch.testing.assert_close([each.grad for each in model.parameters()], [2 * each for each in once])


def test_all_chunks_but_the_last_are_taken_without_synchronising():
    entered = []

    class Context:
        def __enter__(self):
            entered.append(1)

        def __exit__(self, *_):
            return None

    images, labels = make_batch()
    large_batch_backward(make_model(), images, labels, TCMLoss(), 5, without_sync=Context)
    assert len(entered) == 4


def test_no_graph_of_the_whole_batch_is_kept():
    images, labels = make_batch()
    model = make_model()
    kept = []

    def watch(module, inputs, output):
        if output.requires_grad:
            kept.append(len(output))

    model[-1].register_forward_hook(watch)
    large_batch_backward(model, images, labels, TCMLoss(), 5)
    assert kept == [5, 5, 5, 5, 2]


@pytest.mark.parametrize(
    ("rows", "chunk", "message"), [(3, 0, "chunk is 0"), (3, 2.0, "chunk is 2.0"), (4, 2, "4 rows")]
)
def test_bad_input_is_refused(rows, chunk, message):
    with pytest.raises(ValueError, match="needed") as raised:
        large_batch_backward(make_model(), torch.zeros(rows, 6).double(), torch.zeros(3), TCMLoss(), chunk)
    assert message in str(raised.value)
