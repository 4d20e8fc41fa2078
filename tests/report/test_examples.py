"""The examples of a report: confusions against a count by loops, thumbnails against what was drawn."""

import base64
import itertools
import math
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from isomargin.core.errors import InputError
from isomargin.data.images import ImageSet
from isomargin.data.omniglot_mnist import read_glyphs
from isomargin.io.embedding_set import EmbeddingSet
from isomargin.measure.evaluate import evaluate
from isomargin.report import examples
from isomargin.report.examples import class_examples, run_images
from isomargin.report.thumbnails import thumbnail


def near_set(classes=9, dimensions=6, seed=0):
    """Shuffled classes of 1 to 12 images that overlap, by names whose order is not that of the rows."""
    generator = np.random.default_rng(seed)
    labels = np.array([f"class {name}" for name in range(classes) for _ in range(1 + (5 * name) % 12)])
    centres = {name: generator.normal(size=dimensions) for name in np.unique(labels)}
    vectors = np.stack([centres[name] + generator.normal(size=dimensions) for name in labels])
    order = generator.permutation(len(labels))
    return EmbeddingSet(vectors[order], labels[order])


def counted(embeddings, name, distance):
    """Pairs within the distance, share and nearest distance of a class with each other, by loops over pairs."""
    rows = [[value / math.hypot(*row) for value in row] for row in embeddings.vectors.tolist()]
    apart = {}
    for (one, label), (other, stranger) in itertools.product(zip(rows, embeddings.labels, strict=True), repeat=2):
        if label == name and stranger != name:
            apart.setdefault(str(stranger), []).append(math.dist(one, other))
    return {
        stranger: (sum(each <= distance for each in found), sum(each <= distance for each in found) / len(found))
        for stranger, found in apart.items()
    }, {stranger: min(found) for stranger, found in apart.items()}


@pytest.mark.parametrize("block", [1, 100, 1 << 23])
def test_confusions_are_those_of_a_count_by_loops_whatever_the_blocks(block, monkeypatch):
    monkeypatch.setattr(examples, "BLOCK", block)
    monkeypatch.setattr(examples, "EXACT_BLOCK", block)
    embeddings = near_set()
    found = class_examples(embeddings, ["class 3", "class 0"], 0.8, confusions=100)
    assert list(found) == ["class 3", "class 0"]
    for name, example in found.items():
        counts, nearest = counted(embeddings, name, 0.8)
        mistaken = [other for other, (pairs, _) in counts.items() if pairs]
        assert [each.name for each in example.confusions] == sorted(
            mistaken, key=lambda other: (-counts[other][0], nearest[other])
        )
        for each in example.confusions:
            assert (each.pairs, each.share) == (counts[each.name][0], pytest.approx(counts[each.name][1]))
            assert each.nearest == pytest.approx(nearest[each.name], abs=1e-7)
            assert each.thumbnails is None
        assert example.thumbnails == ()
    assert len(found["class 3"].confusions) > 2


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few images, which matter little here
def test_confusions_add_up_to_the_classes_accepted_strangers_at_the_very_distance_of_a_pair():
    embeddings = near_set(classes=20, seed=1)
    evaluation = evaluate(embeddings.vectors, embeddings.labels)
    names = evaluation.names.tolist()
    for distance in (evaluation.target.distance, *evaluation.calibration_range, 0.0, 2.0):
        point = evaluation.at(distance)
        found = class_examples(embeddings, names, distance, confusions=len(names))
        accepted = [sum(each.pairs for each in found[name].confusions) for name in names]
        np.testing.assert_allclose(accepted, point.class_far * evaluation.counts.negatives.totals, atol=1e-6)


def test_confusions_of_codes_whose_distances_repeat_are_counted_on_the_right_side():
    generator = np.random.default_rng(0)
    embeddings = EmbeddingSet(np.where(generator.random((60, 12)) < 0.5, -1, 1), np.repeat(np.arange(6), 10))
    bits = (embeddings.vectors[:, None] != embeddings.vectors[None]).sum(axis=2)
    distance = math.sqrt(2 - 2 * (1 - 2 * 4 / 12))  # of codes that differ in 4 of 12 bits
    evaluation = evaluate(embeddings.vectors, embeddings.labels)
    for number, example in class_examples(embeddings, range(6), distance + 1e-9, confusions=6).items():
        own = embeddings.labels == number
        assert sum(each.pairs for each in example.confusions) == (bits[own][:, ~own] <= 4).sum()
    target = evaluation.target
    for number, example in class_examples(embeddings, range(6), target.distance, confusions=6).items():
        own = embeddings.labels == number
        assert sum(each.pairs for each in example.confusions) == round(target.class_far[number] * own.sum() * 50)


def test_only_so_many_confusions_are_listed_and_none_without_a_pair():
    embeddings = near_set()
    assert len(class_examples(embeddings, ["class 3"], 0.9, confusions=2)["class 3"].confusions) == 2
    assert class_examples(embeddings, ["class 3"], 0.9, confusions=0)["class 3"].confusions == ()
    assert class_examples(embeddings, ["class 3"], 1e-6)["class 3"].confusions == ()


def decoded(uri):
    kind, content = uri.split(";base64,")
    assert kind in ("data:image/webp", "data:image/jpeg")
    return Image.open(BytesIO(base64.b64decode(content)))


def grey_of(uri):
    return round(float(np.asarray(decoded(uri).convert("L"), float).mean()))


def grey_images(embeddings):
    """An image a row, all of one grey that tells the row."""
    names, labels = np.unique(embeddings.labels, return_inverse=True)
    pixels = np.full((len(labels), 28, 28), 0, np.uint8) + (3 * np.arange(len(labels), dtype=np.uint8))[:, None, None]
    return ImageSet(labels.astype(np.int64), tuple(str(each) for each in names), pixels=pixels)


def test_thumbnails_are_those_of_the_nearest_pair_and_of_the_class():
    embeddings = near_set()
    assert len(embeddings.labels) < 80
    found = class_examples(embeddings, ["class 3"], 0.9, images=grey_images(embeddings), thumbnails=3)["class 3"]
    unit = embeddings.vectors / np.linalg.norm(embeddings.vectors, axis=1, keepdims=True)
    own = np.flatnonzero(embeddings.labels == "class 3")
    for each in found.confusions:
        strangers = np.flatnonzero(embeddings.labels == each.name)
        apart = np.linalg.norm(unit[own][:, None] - unit[strangers][None], axis=2)
        row, column = np.unravel_index(apart.argmin(), apart.shape)
        expected = [3 * own[row], 3 * strangers[column]]
        np.testing.assert_allclose([grey_of(uri) for uri in each.thumbnails], expected, atol=1)
    shown = [round(grey_of(uri) / 3) for uri in found.thumbnails]
    assert len(set(shown)) == 3
    assert set(shown) <= set(own.tolist())


def test_a_class_with_few_images_shows_each_of_them_once():
    embeddings = near_set()
    images = grey_images(embeddings)
    for name in ("class 0", "class 3"):
        shown = class_examples(embeddings, [name], 0.5, images=images, thumbnails=100)[name].thumbnails
        assert sorted(round(grey_of(uri) / 3) for uri in shown) == np.flatnonzero(embeddings.labels == name).tolist()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I"])
@pytest.mark.parametrize("size", [(300, 200), (7, 9)])
def test_images_of_every_mode_become_small_pictures(mode, size):
    scale = 257 if mode.startswith("I") else 1
    image = Image.fromarray((np.indices(size[::-1]).sum(axis=0) % 256 * scale).astype(np.uint16))
    plain = image if scale > 1 else Image.fromarray(np.asarray(image).astype(np.uint8))
    uri = thumbnail(plain if plain.mode == mode else plain.convert(mode), 48)
    assert decoded(uri).size == (48, 48)
    assert len(base64.b64decode(uri.partition(",")[2])) <= 1536


@pytest.mark.parametrize("webp", [True, False])
def test_noise_stays_small_and_grey_stays_grey_in_either_format(webp, monkeypatch):
    monkeypatch.setattr(features, "check", lambda feature: webp)
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    assert len(base64.b64decode(thumbnail(Image.fromarray(noise), 48).partition(",")[2])) <= 1536
    picture = np.asarray(decoded(thumbnail(Image.fromarray(noise[..., 0]), 48)).convert("RGB"), int)
    assert np.ptp(picture, axis=2).max() <= 1


def test_the_aspect_is_kept_and_the_rest_is_padding():
    picture = np.asarray(decoded(thumbnail(Image.new("RGB", (96, 24), "black"), 48)).convert("L"), int)
    assert picture[20:28].max() < 30
    assert picture[:16].min() > 220
    assert picture[32:].min() > 220
    assert decoded(thumbnail(Image.new("L", (1000, 1)), 48)).size == (48, 48)


def test_names_and_numbers_that_cannot_be_used_are_told_in_a_sentence():
    embeddings = near_set()
    with pytest.raises(InputError, match="no class 'class 33' among the embeddings' labels: did you mean class 3"):
        class_examples(embeddings, ["class 33"], 0.5)
    with pytest.raises(InputError, match=r"no class 7 .*: the first of 9 is 'class 0'"):
        class_examples(embeddings, [7], 0.5)
    with pytest.raises(InputError, match="from 0 to 2"):
        class_examples(embeddings, ["class 3"], 2.5)
    with pytest.raises(InputError, match="confusions is -1"):
        class_examples(embeddings, ["class 3"], 0.5, confusions=-1)


def test_images_that_were_not_embedded_are_refused():
    embeddings = near_set()
    images = grey_images(embeddings)
    with pytest.raises(InputError, match=r"the images number 3, the embeddings \d+: the same images"):
        class_examples(embeddings, ["class 3"], 0.5, images=images.select([0, 1, 2]))
    with pytest.raises(InputError, match="image 0 is of 'class"):
        class_examples(embeddings, ["class 3"], 0.5, images=images.select(np.argsort(embeddings.labels)[::-1]))
    vectors = ImageSet(images.labels, images.class_names, vectors=np.zeros((len(images), 2), np.float32))
    with pytest.raises(InputError, match="images are needed"):
        class_examples(embeddings, ["class 3"], 0.5, images=vectors)


def write_run(folder, data, labels, more=", evaluation: {far: [0.1, 0.5]}"):
    """A run's folder with what `run_images` reads."""
    folder.mkdir(exist_ok=True)
    text = f"{{name: a, data: {data}, model: {{backbone: small_conv}}, loss: {{base: smooth_ap}}{more}}}"
    (folder / "recipe.yaml").write_text(text)
    EmbeddingSet(np.ones((len(labels), 2), np.float32), labels).save(folder / "embeddings.npz")
    return folder


def test_a_runs_images_come_in_the_order_of_its_embeddings(tmp_path):
    test = read_glyphs(draws=1).test
    run = write_run(tmp_path / "run", "{name: glyphs, draws: 1}", np.array(test.class_names)[test.labels])
    np.testing.assert_array_equal(run_images(run).pixels, test.pixels)


def test_a_run_evaluated_on_held_out_classes_gives_their_images(tmp_path):
    train = read_glyphs(draws=1).train
    more = ", evaluation: {held_out: 0.1, test: false}"
    with pytest.raises(InputError, match=r"glyphs number \d+, the embeddings 2"):
        run_images(write_run(tmp_path / "run", "{name: glyphs, draws: 1}", ["x", "y"], more))
    held = np.random.default_rng([0, 1]).permutation(len(train.class_names))[: round(0.1 * len(train.class_names))]
    names = np.array(train.class_names)[train.labels[np.isin(train.labels, held)]]
    images = run_images(write_run(tmp_path / "run", "{name: glyphs, draws: 1}", names, more))
    assert np.array(images.class_names)[images.labels].tolist() == names.tolist()


def class_folders(root: Path, names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for image in range(2):
            Image.new("RGB", (40, 30), (number * 40, image * 100, 0)).save(root / name / f"{image}.png")
    return root


def test_images_that_moved_are_found_where_the_change_says(tmp_path):
    root = class_folders(tmp_path / "old", "abcdef")
    data = f"{{name: folder, root: {root}, order: 3}}"
    run = write_run(tmp_path / "run", data, np.repeat(list("def"), 2))
    expected = run_images(run).paths
    assert [path.parent.name for path in expected] == list("ddeeff")
    moved = root.rename(tmp_path / "new")
    with pytest.raises(InputError, match=r"old cannot be opened .*give their folder with data.root=FOLDER"):
        run_images(run)
    found = run_images(run, [f"data.root={moved}"])
    assert [path.relative_to(moved) for path in found.paths] == [path.relative_to(root) for path in expected]


def test_other_images_at_the_root_are_refused(tmp_path):
    root = class_folders(tmp_path / "images", "abcdef")
    data = f"{{name: folder, root: {root}, order: 3}}"
    with pytest.raises(InputError, match=r"images number 6, the embeddings 2: .*data.root=FOLDER"):
        run_images(write_run(tmp_path / "run", data, ["d", "d"]))
    with pytest.raises(InputError, match=r"image 4 is of 'f', its embedding of 'g'"):
        run_images(write_run(tmp_path / "run", data, np.repeat(list("deg"), 2)))


def test_a_run_on_vectors_says_that_it_has_no_images(tmp_path):
    vectors = tmp_path / "vectors.npz"
    EmbeddingSet(np.eye(12, dtype=np.float32), np.repeat(list("abcdef"), 2)).save(vectors)
    run = write_run(tmp_path / "run", f"{{name: embeddings, root: {vectors}, order: 3}}", np.repeat(list("def"), 2))
    with pytest.raises(InputError, match=r"trained on vectors .* and has no images"):
        run_images(run)


def test_a_folder_that_is_no_finished_run_is_told_so(tmp_path):
    with pytest.raises(InputError, match="not a finished run"):
        run_images(tmp_path)
