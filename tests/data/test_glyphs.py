"""The rendered letters: what is in them, that a seed repeats them to the bit, and that no cache file can spoil them."""

import re
from pathlib import Path

import numpy as np
import pytest

from isomargin.core.errors import InputError
from isomargin.data.glyphs import Glyphs, load_glyphs

pytestmark = pytest.mark.xdist_group("glyphs")  # they are rendered once, in one of pytest's workers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("glyphs")


@pytest.fixture(scope="module")
def everything(folder: Path) -> Glyphs:
    return load_glyphs("all", draws=2, cache=folder)


def letters(glyphs: Glyphs) -> set[str]:
    return {name[0] for name in glyphs.class_names}


def assert_equal(one: Glyphs, other: Glyphs) -> None:
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.face, other.face)
    assert (one.class_names, one.faces) == (other.class_names, other.faces)


def test_there_are_more_than_400_classes_with_unique_names(everything: Glyphs) -> None:
    assert len(everything.class_names) > 400
    assert len(set(everything.class_names)) == len(everything.class_names)
    assert all(name == f"{name[0]} U+{ord(name[0]):04X}" and name.isprintable() for name in everything.class_names)


def test_shapes_types_and_ranges(everything: Glyphs) -> None:
    count = len(everything.class_names) * 16 * 2
    assert everything.images.shape == (count, 28, 28)
    assert everything.images.dtype == np.uint8
    assert everything.labels.shape == everything.face.shape == (count,)
    assert everything.labels.dtype == everything.face.dtype == np.int64
    assert everything.images.min() == 0
    assert everything.images.max() == 255


def test_every_class_has_every_face_once_a_draw(everything: Glyphs) -> None:
    assert len(everything.faces) == len(set(everything.faces)) == 16
    counts = np.zeros((len(everything.class_names), 16), int)  # (classes, faces)
    np.add.at(counts, (everything.labels, everything.face), 1)
    assert (counts == 2).all()


def test_letters_are_white_on_black_whole_and_near_the_middle(everything: Glyphs) -> None:
    ink = everything.images > 128  # far above the noise
    assert (ink.sum(axis=(1, 2)) >= 15).all()
    assert ink.mean() < 0.3
    border = np.ones((28, 28), bool)
    border[1:-1, 1:-1] = False
    assert (ink & border).any(axis=(1, 2)).mean() < 0.001
    for axis in (1, 2):
        inked = ink.any(axis=axis)  # (n, 28)
        middle = (inked.argmax(axis=1) + 27 - inked[:, ::-1].argmax(axis=1)) / 2
        assert abs(middle.mean() - 13.5) < 0.1
        assert np.abs(middle - 13.5).max() < 4


@pytest.mark.parametrize("alike", ["AΑА", "OoΟοОо", "Cc", "Ssѕ", "XxΧх", "HΗНн", "pр", "hʰ", "ÐĐ", "µμ", "KΚК", "Яя"])
def test_of_letters_that_look_alike_only_the_first_is_kept(everything: Glyphs, alike: str) -> None:
    assert letters(everything) & set(alike) == {alike[0]}


@pytest.mark.parametrize("different", ["AaÀÁ", "èéê", "EF", "OQ", "IJ", "bdpq", "nu", "Bß", "ΓLT", "ЦЧ"])
def test_letters_that_differ_are_all_kept(everything: Glyphs, different: str) -> None:
    assert set(different) <= letters(everything)


def test_halves_share_no_class_and_together_are_all(everything: Glyphs, folder: Path) -> None:
    train, test = (load_glyphs(split, draws=2, cache=folder) for split in ("train", "test"))
    assert not set(train.class_names) & set(test.class_names)
    assert set(train.class_names) | set(test.class_names) == set(everything.class_names)
    assert abs(len(train.class_names) - len(test.class_names)) <= 1
    for half in (train, test):
        # Both halves hold the alphabets alike, so neither is a block of code points.
        assert {"LATIN", "GREEK", "CYRILLIC"} <= {_alphabet(name[0]) for name in half.class_names}
        wanted = np.isin(np.array(everything.class_names), half.class_names)[everything.labels]
        np.testing.assert_array_equal(half.images, everything.images[wanted])
        names = np.array(everything.class_names)[everything.labels[wanted]]
        np.testing.assert_array_equal(np.array(half.class_names)[half.labels], names)
        np.testing.assert_array_equal(half.face, everything.face[wanted])


def _alphabet(letter: str) -> str:
    return "LATIN" if letter < "\u0370" else "GREEK" if letter < "\u0400" else "CYRILLIC"


def test_a_seed_repeats_to_the_bit_and_further_draws_only_add(everything: Glyphs) -> None:
    first = everything.images.reshape(-1, 2, 28, 28)[:, 0]
    again = load_glyphs("all", draws=1, cache=False)
    np.testing.assert_array_equal(again.images, first)


def test_draws_and_seeds_differ_but_not_in_classes(everything: Glyphs) -> None:
    first, second = everything.images.reshape(-1, 2, 28, 28).swapaxes(0, 1)
    assert (first != second).any(axis=(1, 2)).all()
    other = load_glyphs("all", draws=1, seed=1, cache=False)
    assert (first != other.images).any(axis=(1, 2)).all()
    assert other.class_names == everything.class_names


def test_the_cache_returns_what_was_written(everything: Glyphs, folder: Path) -> None:
    (file,) = folder.iterdir()
    written = file.stat()
    assert_equal(load_glyphs("all", draws=2, cache=folder), everything)
    assert file.stat().st_ino == written.st_ino


@pytest.mark.parametrize("damage", ["cut", "other arrays"])
def test_a_broken_cache_file_is_rebuilt(
    everything: Glyphs, folder: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    with np.load(file) as arrays:
        pixels = arrays["pixels"]
    monkeypatch.setattr("isomargin.data.glyphs._draw", lambda *_: pixels)  # which takes two seconds
    if damage == "other arrays":
        np.savez(file, letters=np.array("ab"), pixels=np.zeros((2, 3)))
    else:
        file.write_bytes(whole[: len(whole) // 2])
    assert_equal(load_glyphs("all", draws=2, cache=folder), everything)
    assert file.read_bytes()[:2] == b"PK"
    assert file.stat().st_size == len(whole)
    assert list(folder.iterdir()) == [file]


def test_the_cache_folder_follows_the_environment(
    everything: Glyphs, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isomargin.data.glyphs._draw", lambda *_: pytest.fail("drawn although cached"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "isomargin").symlink_to(folder)
    monkeypatch.delenv("ISOMARGIN_CACHE", raising=False)
    assert_equal(load_glyphs("all", draws=2), everything)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("ISOMARGIN_CACHE", str(folder))
    assert_equal(load_glyphs("all", draws=2), everything)


def test_the_cache_file_is_named_after_what_the_images_depend_on(everything: Glyphs, folder: Path) -> None:
    (file,) = folder.iterdir()
    assert re.fullmatch(r"glyphs-v\d+-draws2-seed0-[0-9a-f]{16}\.npz", file.name)


def test_a_folder_that_cannot_be_written_to_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blank = np.zeros((1, 16, 1, 28, 28), np.uint8)
    monkeypatch.setattr("isomargin.data.glyphs._draw", lambda letters, *_: np.repeat(blank, len(letters), axis=0))
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert len(load_glyphs("test", draws=1, cache=blocked / "folder").images)
    assert blocked.read_text() == "in the way"


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(InputError, match='split is \'valid\': it must be "train", "test" or "all"'):
        load_glyphs("valid")  # type: ignore[arg-type]


@pytest.mark.parametrize("draws", [0, -1, 1.5, True])
def test_draws_that_are_no_positive_whole_number_are_refused(draws: int) -> None:
    with pytest.raises(InputError, match=f"draws is {draws}: it must be a whole number of 1 or more"):
        load_glyphs(draws=draws)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed is -1: it must be a whole number of 0 or more"):
        load_glyphs(seed=-1)
