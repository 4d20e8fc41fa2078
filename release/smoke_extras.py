"""One check for each extra, in an environment that has the core and this extra: `python -I smoke_extras.py EXTRA`.

Each uses what the extra is for in the way its page shows first, on a few made items, and compares with the core. It
runs in an empty folder.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import isomargin as im

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(120) % 10
VECTORS = (GENERATOR.normal(size=(10, 16))[LABELS] + GENERATOR.normal(size=(120, 16))).astype(np.float32)
NAMES = [f"sku-{label}" for label in LABELS]
ROWS = [row.tolist() for row in VECTORS]


def isomargin(*arguments: str) -> str:
    """Run the command in this environment; return what it prints."""
    command = [sys.executable, "-I", "-m", "isomargin", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"isomargin {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def check_items(items: im.EmbeddingSet) -> None:
    """Check that a reader returned what was stored."""
    assert np.array_equal(items.vectors, VECTORS)
    assert items.labels.tolist() == NAMES


def check_opis(opis: float) -> None:
    """Check OPIS that another library computed."""
    expected = im.evaluate(VECTORS, LABELS, progress=None).opis
    assert abs(opis - expected) < 1e-6, (opis, expected)


def make_images() -> None:
    """Write a small image for each item, into a folder for each class."""
    from PIL import Image

    for number, label in enumerate(LABELS):
        folder = Path("images", f"class-{label}")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = 20 * label + GENERATOR.integers(0, 40, (32, 32, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


def train() -> None:
    """A model trained for an epoch on images, its embeddings, and their evaluation in torch."""
    make_images()
    tiny = (
        "batch.classes=4",
        "batch.images_per_class=2",
        "epochs=1",
        "evaluation.every=1",
        "evaluation.far=[0.05,0.2]",
    )
    isomargin("train", "demo", "name=tiny", "data.name=folder", "data.root=images", *tiny, "--workers", "0")
    isomargin("embed", "runs/tiny", "--output", "tiny.npz")
    isomargin("evaluate", "tiny.npz", "--device", "cpu")


def figures() -> None:
    """A figure of a saved evaluation."""
    im.evaluate(VECTORS, LABELS, progress=None).save("items.json")
    isomargin("figure", "utility_curves", "items.json", "--output", "curves.svg")
    assert Path("curves.svg").read_text().rstrip().endswith("</svg>")


def lite() -> None:
    """Images embedded by EfficientNet-Lite0 with the weights of its pip package."""
    make_images()
    model = ("--model", "timm:tf_efficientnet_lite0", "--weights", "lite")
    isomargin("embed", *model, "--images", "images", "--output", "shards")
    assert im.EmbeddingSet.load("shards/part-00000.parquet").vectors.shape == (120, 1280)


def qdrant() -> None:
    """A local collection, read by its address."""
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path="qdrant")
    client.create_collection("items", vectors_config=models.VectorParams(size=16, distance=models.Distance.DOT))
    payloads = [{"sku": name} for name in NAMES]
    client.upload_collection("items", vectors=VECTORS, payload=payloads, ids=list(range(120)))
    check_items(im.EmbeddingSet.from_qdrant(client, "items", label="sku"))
    client.close()
    isomargin("evaluate", "qdrant:///qdrant/items?label=sku")


def lancedb() -> None:
    """A table in a folder, read by its address."""
    import lancedb

    rows = [{"sku": name, "vector": row} for name, row in zip(NAMES, ROWS, strict=True)]
    check_items(im.EmbeddingSet.from_lancedb(lancedb.connect("store").create_table("items", data=rows), label="sku"))
    isomargin("evaluate", "lancedb://store/items?label=sku")


def chroma() -> None:
    """A collection in a folder, read by its address."""
    import chromadb

    client = chromadb.PersistentClient("chroma", settings=chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("items")
    metadatas = [{"sku": name} for name in NAMES]
    collection.add(ids=[str(number) for number in range(120)], embeddings=VECTORS, metadatas=metadatas)
    check_items(im.EmbeddingSet.from_chroma(collection, label="sku"))
    isomargin("evaluate", "chroma:///chroma/items?label=sku")


def duckdb() -> None:
    """A table in a file, read by its address."""
    import duckdb

    query = "SELECT sku AS label, embedding FROM items ORDER BY id"
    with duckdb.connect("items.db") as connection:
        connection.execute("CREATE TABLE items (id INTEGER, sku TEXT, embedding FLOAT[16])")
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", [*zip(range(120), NAMES, ROWS, strict=True)])
        check_items(im.EmbeddingSet.from_sql(connection, query))
    isomargin("evaluate", f"duckdb:///items.db?query={query}")


def postgresql() -> None:
    """A table of PostgreSQL, from a server in a temporary folder if pgserver is there as well."""
    import tempfile

    import pgserver
    import psycopg

    # Not the current folder: PostgreSQL does not run as root, and pgserver then runs it as a user of its own.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        pgserver.get_server(folder, cleanup_mode="delete") as server,
        psycopg.connect(server.get_uri()) as connection,
    ):
        connection.execute("CREATE EXTENSION vector")
        connection.execute("CREATE TABLE items (id integer, sku text, embedding vector(16))")
        rows = [*zip(range(120), NAMES, map(str, ROWS), strict=True)]
        connection.cursor().executemany("INSERT INTO items VALUES (%s, %s, %s)", rows)
        check_items(im.EmbeddingSet.from_sql(connection, "SELECT sku AS label, embedding FROM items ORDER BY id"))


def faiss() -> None:
    """A flat index."""
    import faiss

    index = faiss.IndexFlatIP(16)
    index.add(VECTORS)
    check_items(im.EmbeddingSet.from_faiss(index, np.array(NAMES)))


def datasets() -> None:
    """A data set with a column of lists."""
    from datasets import Dataset

    check_items(im.EmbeddingSet.from_dataset(Dataset.from_dict({"embedding": ROWS, "sku": NAMES}), label="sku"))


def ray() -> None:
    """The parts of an evaluation counted on a cluster of this machine."""
    vectors, labels = (
        np.tile(VECTORS, (10, 1)),
        np.tile(LABELS, 10),
    )  # more than one block of rows, so that there are parts
    im.EmbeddingSet(vectors, labels).save("items.parquet")
    counted = im.evaluate_shards("items.parquet", cluster="local", parts=2)
    assert abs(counted.opis - im.evaluate_shards("items.parquet").opis) < 1e-6


def torchmetrics() -> None:
    """OPIS as a metric."""
    import torch

    from isomargin.integrations.torchmetrics import OperatingPointInconsistency

    metric = OperatingPointInconsistency()
    for rows in torch.arange(120).split(32):
        metric.update(torch.as_tensor(VECTORS)[rows], torch.as_tensor(LABELS)[rows])
    check_opis(float(metric.compute()))


def sentence_transformers() -> None:
    """The evaluator on a static-embedding model in which every text is a word with a vector of its own."""
    from isomargin.integrations._packages import prepare

    prepare("sentence_transformers")  # as importing the integration first does
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    from isomargin.integrations.sentence_transformers import ThresholdConsistencyEvaluator
    from isomargin.integrations.transformers import make_compute_metrics

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(120)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    static = StaticEmbedding(tokenizer, embedding_weights=torch.as_tensor(VECTORS))
    model = SentenceTransformer(modules=[static], device="cpu")
    texts = [f"w{number}" for number in range(120)]
    check_opis(ThresholdConsistencyEvaluator(texts, LABELS, name="dev")(model)["dev_opis"])
    assert callable(make_compute_metrics())


def lightning() -> None:
    """The callback logs OPIS of a validation loader."""
    from isomargin.integrations._packages import prepare

    prepare("pytorch_lightning")  # as importing the integration first does
    import pytorch_lightning
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from isomargin.integrations.lightning import ThresholdConsistency

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs

        def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
            return self.unused.sum()

        def validation_step(self, batch: list[torch.Tensor]) -> None:
            pass

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    loader = DataLoader(TensorDataset(torch.as_tensor(VECTORS), torch.as_tensor(LABELS)), batch_size=32)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[ThresholdConsistency(loader)], **quiet
    )
    trainer.fit(Module(), loader, loader)
    check_opis(trainer.callback_metrics["val/opis"].item())


SMOKE: dict[str, Callable[[], None]] = {
    "train": train,
    "figures": figures,
    "lite": lite,
    "qdrant": qdrant,
    "lancedb": lancedb,
    "chroma": chroma,
    "duckdb": duckdb,
    "postgresql": postgresql,
    "faiss": faiss,
    "datasets": datasets,
    "ray": ray,
    "torchmetrics": torchmetrics,
    "sentence-transformers": sentence_transformers,
    "lightning": lightning,
}

if __name__ == "__main__":
    SMOKE[sys.argv[1]]()
    print(f"the extra {sys.argv[1]} works")
