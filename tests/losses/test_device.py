"""The losses on a GPU: how seldom the host waits for it, no float64 (Apple's GPUs have none), and torch.compile."""

import pytest
import torch
from batches import Example, clustered, make
from test_sweep import CLASSES, PROXIES, build

from fake_device import DEVICE, FakeDevice, OnDevice
from isomargin.losses import CrossBatchMemory, TCMLoss, loss_names, make_loss

# Once for the labels, once for the places of positive pairs, once for the sums, once in the backward pass for the
# weights of the losses. Ranks need the number of positives too, and class alignment the classes and their sizes.
MOST_WAITS = {
    **dict.fromkeys(["tcm", "calibration", "contrastive", "triplet"], 4),
    **dict.fromkeys(["smooth_ap", "recall_at_k", "sup_ap", "class_alignment"], 5),
    **dict.fromkeys(PROXIES, 1),
    "roadmap": 6,
    "threshold_penalty": 6,
}


@pytest.fixture
def device(monkeypatch):
    """The device, which torch.autocast has not heard of."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device_type: False)
    return FakeDevice()


def step(loss, example, device):
    """The gradient of one training step on the device."""
    for module in loss.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = torch.nn.Parameter(OnDevice(parameter.detach()))
        for name, buffer in module._buffers.items():
            module._buffers[name] = OnDevice(buffer)
    embeddings = OnDevice(example.embeddings.float()).requires_grad_()
    labels = OnDevice(example.labels)
    with device:
        loss(embeddings, labels)  # the second call has a queue
        device.waits.clear()
        value = loss(embeddings, labels)
        value.backward()
    return value.detach().inside, embeddings.grad.inside


EVEN = Example(*clustered([each // 4 for each in range(4 * CLASSES)], dimensions=8))
UNEVEN = Example(*clustered([0, 1, 0, 2, 1, 0, 2, 3, 0, 0, 4, 4], dimensions=8))


@pytest.mark.parametrize("name", loss_names())
def test_the_host_seldom_waits_for_the_device(name, device):
    loss = build(name, EVEN, torch.float32)
    step(loss, EVEN, device)
    assert 0 < len(device.waits) <= MOST_WAITS[name]
    device.waits.clear()
    step(build(name, UNEVEN, torch.float32), UNEVEN, device)
    assert len(device.waits) <= MOST_WAITS[name] + 2  # where rows differ, numbers of positives are needed to list them


@pytest.mark.parametrize(
    ("regularizer", "most"),
    [({"name": "tcm"}, 6), ({"name": "tcm", "share": 0.3}, 8), ({"name": "class_alignment", "share": 0.3}, 9)],
    ids=["tcm", "a share of tcm", "a share of class_alignment"],
)
def test_the_host_seldom_waits_for_the_parts_of_a_sum(regularizer, most, device):
    for example, more in ((EVEN, 0), (UNEVEN, 2)):
        step(make_loss(["smooth_ap", regularizer]), example, device)
        assert 0 < len(device.waits) <= most + more
        assert torch.float64 not in device.dtypes
        device.waits.clear()


@pytest.mark.parametrize("name", loss_names())
def test_the_device_computes_what_the_host_computes_without_float64(name, device):
    value, gradient = step(build(name, UNEVEN, torch.float32), UNEVEN, device)
    assert torch.float32 in device.dtypes
    assert torch.float64 not in device.dtypes
    loss = build(name, UNEVEN)
    embeddings = UNEVEN.embeddings.clone().requires_grad_()
    loss(embeddings, UNEVEN.labels)
    expected = loss(embeddings, UNEVEN.labels)
    expected.backward()
    torch.testing.assert_close(value.double(), expected.detach(), rtol=1e-4, atol=1e-5)
    scale = float(embeddings.grad.abs().max())
    torch.testing.assert_close(gradient.double(), embeddings.grad, rtol=1e-3, atol=1e-4 * scale)


def test_the_device_sees_what_it_would_wait_for_and_float64():
    with FakeDevice() as device:
        numbers = torch.arange(3, device=DEVICE)
        assert device.waits == []
        assert (numbers + 1).tolist() == [1, 2, 3]
        assert numbers[numbers > 0].sum().item() == 3
        torch.from_numpy(torch.ones(2).numpy()).to(DEVICE)
        numbers.double()
        with pytest.raises(AssertionError, match="mixes"):
            numbers + torch.arange(3)
    assert device.waits == ["_to_copy", "index", "_local_scalar_dense", "_to_copy"]
    assert torch.float64 in device.dtypes


@pytest.mark.parametrize("name", ["tcm", "smooth_ap", "class_alignment"])
def test_a_compiled_step_compiles_the_model_once_whatever_the_batch(name):
    torch.compiler.reset()
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    model, loss = torch.nn.Linear(8, 4), make(name)

    @torch.compile(backend=backend)
    def train(items, labels):
        return loss(model(items), labels)

    items = EVEN.embeddings.float()[:12]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for labels in ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [0] * 9 + [1, 1, 2], list(range(12)), [0] * 12):
            value = train(items, torch.tensor(labels))
            value.backward()
            assert torch.equal(value.detach(), loss(model(items), torch.tensor(labels)).detach())
    assert len(compiled) == 1
    assert model.weight.grad is not None
    torch.compiler.reset()


def test_a_compiled_step_with_a_memory_compiles_the_model_once_however_full_it_is():
    torch.compiler.reset()
    compiled = []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph

    model, loss = torch.nn.Linear(8, 4), CrossBatchMemory(TCMLoss(), embedding_size=4, memory_size=30)

    @torch.compile(backend=backend)
    def train(items, labels):
        return loss(model(items), labels)

    items, labels = EVEN.embeddings.float()[:12], EVEN.labels[:12]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(4):
            train(items, labels).backward()
    assert len(compiled) == 1
    torch.compiler.reset()
