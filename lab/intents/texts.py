"""The requests of CLINC150, divided by intent, and a static-embedding model made of WordLlama's weights."""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError
from isomargin.integrations._packages import prepare

MOST_ITEMS = 60  # of a class that is tested
TRAINING_ITEMS = 100  # of a class that is trained on
SPLIT_SEED = 20


@dataclass(frozen=True)
class Texts:
    """Texts and the number of each one's intent."""

    texts: list[str]
    classes: NDArray[np.int64]

    def of(self, chosen: NDArray[np.int64], most: int) -> Texts:
        """Return at most so many texts of each of these intents."""
        rows = np.concatenate([np.flatnonzero(self.classes == number)[:most] for number in np.sort(chosen)])
        return Texts([self.texts[row] for row in rows], self.classes[rows])


@dataclass(frozen=True)
class Parts:
    """Texts of intents that share none: half of them to test with, a third of the rest to choose settings with."""

    fitting: Texts
    """Trained on while settings are chosen."""
    held_out: Texts
    """What settings are chosen by."""
    training: Texts
    """`fitting` and `held_out` together, for the runs that are tested."""
    test: Texts


def read_parts(path: Path) -> Parts:
    """Read lines of part, intent and text, separated by tabs; out-of-scope requests are left out."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    if not lines or any(len(line) != 3 for line in lines):
        raise InputError(f"{path} has lines without two tabs: part, intent and text are needed, as in clinc150.tsv.gz")
    lines = [line for line in lines if line[1] != "oos"]
    names, classes = np.unique([intent for _, intent, _ in lines], return_inverse=True)
    if len(names) < 12:
        raise InputError(f"{path} has {len(names)} intents: at least 12 are needed, half of them to test with")
    everything = Texts([text for _, _, text in lines], classes.astype(np.int64))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(names))
    test, training = order[: len(names) // 2], order[len(names) // 2 :]
    third = len(training) // 3
    return Parts(
        everything.of(training[third:], TRAINING_ITEMS),
        everything.of(training[:third], MOST_ITEMS),
        everything.of(training, TRAINING_ITEMS),
        everything.of(test, MOST_ITEMS),
    )


def packaged_files() -> tuple[Path, Path]:
    """Return the weights and the tokenizer that come with the package wordllama."""
    found = importlib.util.find_spec("wordllama")
    if found is None or found.origin is None:
        raise InputError("wordllama is not installed: pip install wordllama, or give --weights and --tokenizer")
    folder = Path(found.origin).parent
    return folder / "weights/l2_supercat_256.safetensors", folder / "tokenizers/l2_supercat_tokenizer_config.json"


def static_model(weights: Path, tokenizer: Path) -> Any:
    """Return a SentenceTransformer whose embedding is the mean of its tokens' rows."""
    prepare("sentence_transformers")
    from safetensors.torch import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    (rows,) = load_file(weights).values()
    return SentenceTransformer(
        modules=[StaticEmbedding(Tokenizer.from_file(str(tokenizer)), embedding_weights=rows.float())], device="cpu"
    )
