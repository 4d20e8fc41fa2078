"""The lines of docs/integrations.md that log `scalars()`, with real loggers that write to a folder."""

import importlib.util
import math

import pytest

import isomargin as im
from compare import clusters

SCALARS = im.evaluate(*clusters(240, 8)).scalars()


def missing(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


@missing("tensorboard")
def test_tensorboard_has_every_scalar(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        for name, value in SCALARS.items():
            writer.add_scalar(f"val/{name}", value, 3)
    events = EventAccumulator(str(tmp_path)).Reload()
    found = {name.removeprefix("val/"): events.Scalars(name)[0] for name in events.Tags()["scalars"]}
    assert {name: event.value for name, event in found.items()} == pytest.approx(SCALARS, rel=1e-6, nan_ok=True)
    assert {event.step for event in found.values()} == {3}


@missing("mlflow")
def test_mlflow_has_every_scalar(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in SCALARS.items()}, step=3)
    found = mlflow.get_run(run.info.run_id).data.metrics
    expected = {name.replace("@", "_at_"): value for name, value in SCALARS.items()}
    assert found == pytest.approx(expected, nan_ok=True)


@missing("wandb")
def test_wandb_has_every_scalar(tmp_path):
    import wandb

    with wandb.init(mode="offline", dir=tmp_path, project="isomargin") as run:
        run.log(SCALARS)
        found = dict(run.summary)
    known = {name: float(found[name]) for name in SCALARS if not math.isnan(SCALARS[name])}
    assert known == pytest.approx({name: SCALARS[name] for name in known})
