"""What lightning-fabric does otherwise here: it joins processes that something else started, and it keeps 64 bits.

Imported only where a training starts, because importing lightning-fabric takes long.
"""

from typing import Any

from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.plugins.precision.double import DoublePrecision


class StartedEnvironment(TorchElasticEnvironment):
    """Processes that torchrun or Ray Train started; nodes may have different numbers of them."""

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept any number of processes on this node."""


class KeptDoublePrecision(DoublePrecision):
    """Precision 64-true for the loss too: fabric's own converts the embeddings, and their gradient, to float32."""

    def convert_output(self, data: Any) -> Any:
        """Leave what the model returns in float64."""
        return data
