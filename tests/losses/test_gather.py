"""`gather` in real processes: every process has the loss and the gradients that one process has with all rows."""

import inspect
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

from isomargin.core.errors import InputError
from isomargin.losses import TCMLoss, gather, loss_names, make_loss
from isomargin.losses.registry import REGISTRY
from processes import in_one_worker, run_together

DIMENSIONS = 6
CLASSES = 3
PROXY_SIZES = {"num_classes": CLASSES, "embedding_size": DIMENSIONS}
WORLD_SIZES = (2, 3)
BATCH_SIZES = {
    "2 processes, even": (4, 4),
    "2 processes, uneven": (5, 3),
    "2 processes, one without rows": (0, 8),
    "3 processes, even": (3, 3, 3),
    "3 processes, uneven with none": (5, 3, 0),
}
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}
TYPES = [
    (torch.float16, torch.int64),
    (torch.bfloat16, torch.int32),
    (torch.float32, torch.int16),
    (torch.float64, torch.int8),
    (torch.float64, torch.uint8),
    (torch.float64, torch.bool),
]

Results = dict[str, Any]

pytestmark = in_one_worker


def loss_config(name: str) -> Any:
    """Return what makes the loss with its standard settings; proxies need to know what they stand for."""
    needed = inspect.signature(REGISTRY[name]).parameters
    return {"name": name} | {each: size for each, size in PROXY_SIZES.items() if each in needed}


LOSSES: dict[str, Any] = {name: loss_config(name) for name in loss_names()} | {
    "recall_at_k with random mixtures": {"name": "recall_at_k", "simix": True},
    "sum": ["smooth_ap", {"name": "tcm", "weight": 0.5}],
}


def seeded_loss(name: str, dtype: torch.dtype) -> torch.nn.Module:
    """Make a loss, its parameters the same in every process."""
    torch.manual_seed(0)
    return make_loss(LOSSES[name]).to(dtype)


def whole_batch(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Make clusters close enough that pairs of both kinds are hard."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(sum(sizes)) % CLASSES
    centres = torch.randn(CLASSES, DIMENSIONS, generator=generator, dtype=torch.float64) + 1.5
    noise = torch.randn(sum(sizes), DIMENSIONS, generator=generator, dtype=torch.float64)
    return (centres[labels] + 1.2 * noise).to(dtype), labels


def loss_and_gradients(name: str, embeddings: torch.Tensor, labels: torch.Tensor, **gather_options: bool) -> Results:
    loss = seeded_loss(name, embeddings.dtype)
    embeddings = embeddings.clone().requires_grad_()
    value = loss(*gather(embeddings, labels, **gather_options))
    value.backward()
    return {
        "value": value.detach(),
        "gradient": embeddings.grad,
        "parameters": [each.grad for each in loss.parameters()],
        "values": dict(loss.values),
    }


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(DIMENSIONS, 8), torch.nn.Tanh(), torch.nn.Linear(8, DIMENSIONS)).double()


def model_gradients(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> list[torch.Tensor]:
    TCMLoss()(*gather(model(inputs), labels, for_ddp=True)).backward()
    return [each.grad for each in model.parameters()]


def labels_of(dtype: torch.dtype, count: int) -> torch.Tensor:
    """Make labels up to the largest that the dtype holds."""
    if dtype == torch.bool:
        return torch.arange(count) % 2 == 0
    return torch.iinfo(dtype).max - torch.arange(count, dtype=dtype)


def bad_inputs(rank: int, last: int) -> dict[str, tuple[Any, Any]]:
    """Make input that cannot be gathered, each the fault of one process."""
    embeddings, labels = torch.ones(2, DIMENSIONS), torch.zeros(2, dtype=torch.int64)
    return {
        "other dimensions": (torch.ones(2, DIMENSIONS - 1) if rank == last else embeddings, labels),
        "other embeddings' dtype": (embeddings.double() if rank == last else embeddings, labels),
        "other labels' dtype": (embeddings, labels.int() if rank == 0 else labels),
        "one dimension": (embeddings[0] if rank == 0 else embeddings, labels),
        "too few labels": (embeddings, labels[:1] if rank == last else labels),
        "no tensor": ([[1.0]] if rank == last else embeddings, labels),
        "labels with fractions": (embeddings, labels + 0.5 if rank == 0 else labels),
    }


def work(rank: int, folder: str) -> None:
    """Be one process of each group in turn, since starting a process takes longer than all that it checks."""
    torch.set_num_threads(1)
    for world_size in WORLD_SIZES:
        if rank < world_size:
            store = f"file://{folder}/store_{world_size}"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
            torch.save(results_in_group(rank, world_size), results_file(folder, world_size, rank))
            distributed.barrier()
            distributed.destroy_process_group()


def results_file(folder: str, world_size: int, rank: int) -> Path:
    return Path(folder) / f"{rank}_of_{world_size}.pt"


def results_in_group(rank: int, world_size: int) -> Results:
    """Do everything that needs a group of processes."""
    results: Results = {"losses": {}, "scaled": {}, "models": {}, "types": {}, "errors": {}}
    for case, sizes in BATCH_SIZES.items():
        if len(sizes) != world_size:
            continue
        own = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        for dtype in TOLERANCES:
            embeddings, labels = whole_batch(sizes, dtype)
            for name in LOSSES:
                results["losses"][case, name, dtype] = loss_and_gradients(name, embeddings[own], labels[own])
        embeddings, labels = whole_batch(sizes)
        results["scaled"][case] = loss_and_gradients("tcm", embeddings[own], labels[own], for_ddp=True)
        model = DistributedDataParallel(make_model())
        results["models"][case] = model_gradients(model, embeddings[own], labels[own])
        for float_type, label_type in TYPES:
            results["types"][case, float_type, label_type] = gather(
                embeddings.to(float_type)[own], labels_of(label_type, sum(sizes))[own]
            )
    results["no rows"] = gather(torch.ones(0, DIMENSIONS), torch.ones(0, dtype=torch.int64))
    columns = torch.arange(6.0).reshape(3, 2).t()
    results["transposed"] = gather(columns, torch.arange(2))[0]
    for case, (bad_embeddings, bad_labels) in bad_inputs(rank, last=world_size - 1).items():
        started = time.perf_counter()
        try:
            gather(bad_embeddings, bad_labels)
            message = None
        except InputError as error:
            message = str(error)
        results["errors"][case] = message, time.perf_counter() - started
    results["after errors"] = gather(torch.full((1, 1), float(rank)), torch.tensor([rank]))
    return results


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Results]]:
    """The results of each group of processes, by its size and then by rank."""
    folder = str(tmp_path_factory.mktemp("processes"))
    run_together(work, (folder,), max(WORLD_SIZES))
    return {
        world_size: [
            torch.load(results_file(folder, world_size, rank), weights_only=False) for rank in range(world_size)
        ]
        for world_size in WORLD_SIZES
    }


@pytest.fixture(scope="module", params=BATCH_SIZES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def processes(groups: dict[int, list[Results]], case: str) -> list[Results]:
    return groups[len(BATCH_SIZES[case])]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_every_process_has_the_global_loss_and_its_rows_gradients(
    groups: dict[int, list[Results]], name: str, dtype: torch.dtype
) -> None:
    close = {"rtol": TOLERANCES[dtype], "atol": TOLERANCES[dtype]}
    for case, sizes in BATCH_SIZES.items():
        alone = loss_and_gradients(name, *whole_batch(sizes, dtype))
        assert alone["gradient"].abs().sum() > 0
        for result, gradient in zip(groups[len(sizes)], alone["gradient"].split(sizes), strict=True):
            found = result["losses"][case, name, dtype]
            torch.testing.assert_close(found["value"], alone["value"], **close)
            torch.testing.assert_close(found["gradient"], gradient, **close)
            torch.testing.assert_close(found["parameters"], alone["parameters"], **close)
            torch.testing.assert_close(found["values"], alone["values"], **close)


def test_hard_pairs_are_counted_over_all_processes(processes: list[Results], case: str) -> None:
    alone = TCMLoss()
    alone(*whole_batch(BATCH_SIZES[case]))
    for side in ("hard_positives", "hard_negatives"):
        assert alone.values[side] > 0
        for result in processes:
            assert result["losses"][case, "tcm", torch.float64]["values"][side] == alone.values[side]


def test_for_ddp_multiplies_the_gradient_by_the_number_of_processes(processes: list[Results], case: str) -> None:
    for result in processes:
        plain = result["losses"][case, "tcm", torch.float64]
        scaled = result["scaled"][case]
        assert scaled["value"] == plain["value"]
        torch.testing.assert_close(scaled["gradient"], plain["gradient"] * len(processes))


def test_a_model_in_ddp_has_the_gradients_of_a_single_process(processes: list[Results], case: str) -> None:
    expected = model_gradients(make_model(), *whole_batch(BATCH_SIZES[case]))
    assert all(each.abs().sum() > 0 for each in expected)
    for result in processes:
        torch.testing.assert_close(result["models"][case], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("float_type", "label_type"), TYPES, ids=str)
def test_rows_come_in_the_order_of_ranks_and_keep_every_bit(
    processes: list[Results], case: str, float_type: torch.dtype, label_type: torch.dtype
) -> None:
    embeddings, _ = whole_batch(BATCH_SIZES[case])
    for result in processes:
        all_embeddings, all_labels = result["types"][case, float_type, label_type]
        torch.testing.assert_close(all_embeddings, embeddings.to(float_type), rtol=0, atol=0)
        torch.testing.assert_close(all_labels, labels_of(label_type, len(embeddings)), rtol=0, atol=0)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_no_rows_anywhere_give_an_empty_batch(groups: dict[int, list[Results]], world_size: int) -> None:
    for result in groups[world_size]:
        embeddings, labels = result["no rows"]
        assert embeddings.shape == (0, DIMENSIONS)
        assert labels.shape == (0,)


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_rows_that_do_not_lie_side_by_side_in_memory_are_gathered(
    groups: dict[int, list[Results]], world_size: int
) -> None:
    for result in groups[world_size]:
        assert result["transposed"].tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]] * world_size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("bad", bad_inputs(0, 1))
def test_bad_input_on_one_process_raises_on_all_without_waiting(
    groups: dict[int, list[Results]], bad: str, world_size: int
) -> None:
    for result in groups[world_size]:
        message, seconds = result["errors"][bad]
        assert message is not None
        assert " needed" in message
        assert seconds < 10


def test_errors_name_the_process_and_what_it_gave(groups: dict[int, list[Results]]) -> None:
    first, second, last = (result["errors"] for result in groups[3])
    expected = (
        "embeddings' number of dimensions is 6 on process 0 and 5 on process 2: the same is needed on all processes"
    )
    assert {each["other dimensions"][0] for each in (first, second, last)} == {expected}
    own = "labels has 1 entries, embeddings has 2 rows: one label per row is needed"
    assert last["too few labels"][0] == own
    assert first["too few labels"][0] == f"the input of process 2 cannot be gathered: {own}"


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_group_works_on_after_an_error(groups: dict[int, list[Results]], world_size: int) -> None:
    for result in groups[world_size]:
        embeddings, labels = result["after errors"]
        assert embeddings.flatten().tolist() == list(range(world_size))
        assert labels.tolist() == list(range(world_size))


@pytest.mark.parametrize("for_ddp", [False, True])
def test_without_a_process_group_the_arguments_come_back(for_ddp: bool) -> None:
    embeddings, labels = torch.ones(2, 3), torch.tensor([0, 1])
    all_embeddings, all_labels = gather(embeddings, labels, for_ddp)
    assert all_embeddings is embeddings
    assert all_labels is labels


@pytest.mark.parametrize("for_ddp", [False, True])
def test_in_a_group_of_one_the_arguments_come_back(tmp_path: Path, for_ddp: bool) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        test_without_a_process_group_the_arguments_come_back(for_ddp)
    finally:
        distributed.destroy_process_group()
