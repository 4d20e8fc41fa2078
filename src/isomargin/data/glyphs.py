"""The data set `glyphs`: letters rendered from the fonts that matplotlib ships, with small random distortions.

Every class is one letter in 16 faces; letters that look like an earlier one are left out. Half of the classes are for
training, the other half for testing. Nothing is downloaded. It is for demonstrations and tests: the letters are
rendered, not photographed or handwritten.
"""

import functools
import hashlib
import os
import tempfile
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from isomargin.core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Glyphs", "Split", "load_glyphs"]

Split = Literal["train", "test", "all"]

# Part of the name of the cache file: increase it with every change of the pixels, the classes or the split.
_VERSION = 1

_FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)

_FONT_SIZE = 96  # pixels per em, well above the size of the images, so that hinting leaves no trace in them
_SIDE = 28  # of an image
_BOX = 20  # the longer side of an undistorted letter in it
_OVERSAMPLING = 2  # letters are warped at this multiple of the final resolution, then averaged down

# The largest distortions: each is drawn uniformly between plus and minus these.
_ROTATION = np.radians(10.0)
_SHEAR = 0.15
_LOG_SCALE = 0.1  # of width and height, separately
_SHIFT = 1.0  # pixels
_NOISE = 0.1  # standard deviation, white being 1

# Two letters look alike when in _ALIKE_FACES faces or more, both stretched to a square of _SQUARE pixels, fewer than
# _ALIKE_INK pixels of ink of either lie further than about two pixels from the ink of the other. The slack of two
# pixels forgives the stroke width, which differs between a capital and the same shape as a small letter; not all faces
# need agree because some tell apart by a serif what the others do not.
_SQUARE = 40
_ALIKE_INK = 6
_ALIKE_FACES = 5


@dataclass(frozen=True)
class Glyphs:
    """Rendered letters with their classes and faces.

    >>> glyphs = Glyphs(np.zeros((2, 28, 28), np.uint8), np.array([0, 0]), ("a U+0061",), np.array([0, 1]), ("A", "B"))
    >>> glyphs.class_names[glyphs.labels[1]], glyphs.faces[glyphs.face[1]]
    ('a U+0061', 'B')
    """

    images: NDArray[np.uint8]
    """(n, 28, 28), white letters on black."""
    labels: NDArray[np.int64]
    """(n,), the class of each image as an index into `class_names`."""
    class_names: tuple[str, ...]
    """(classes,), the letter and its code point, such as `à U+00E0`, in the order of the code points."""
    face: NDArray[np.int64]
    """(n,), the face of each image as an index into `faces`."""
    faces: tuple[str, ...]
    """(16,), the names of the font files without their suffix."""


def load_glyphs(split: Split = "test", *, draws: int = 4, seed: int = 0, cache: bool | Path = True) -> Glyphs:
    """Render letters: `16 * draws` images per class, ordered by class, then by face, then by draw.

    `split` chooses a half of the classes; the halves share no class and are the same for every seed. `seed` and the
    number of the draw determine the distortions of an image: more draws add images and change none. `cache` says
    whether the images are kept for the next call: in a folder given as a path or, with True, in `$ISOMARGIN_CACHE`,
    else `$XDG_CACHE_HOME/isomargin`, else `~/.cache/isomargin`. A folder that cannot be written to is not an error.

    >>> glyphs = load_glyphs("test", draws=1, cache=False)
    >>> len(glyphs.images) == len(glyphs.labels) == 16 * len(glyphs.class_names)
    True
    >>> glyphs.images.shape[1:], glyphs.images.dtype
    ((28, 28), dtype('uint8'))
    """
    if split not in get_args(Split):
        raise InputError(f'split is {split!r}: it must be "train", "test" or "all"')
    _check_whole_number("draws", draws, least=1)
    _check_whole_number("seed", seed, least=0)
    file = None if cache is False else _cache_folder(cache) / _cache_name(draws, seed)
    kept = _read(file, draws) if file else None
    if kept is None:
        letters = _distinct_letters()
        kept = letters, _draw(letters, draws, seed)
        if file:
            _write(file, *kept)
    return _half(*kept, split)


def _check_whole_number(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} is {value!r}: it must be a whole number of {least} or more")


def _half(letters: str, pixels: NDArray[np.uint8], split: Split) -> Glyphs:
    """The classes of one split; pixels: (classes, faces, draws, 28, 28)."""
    # By a hash of the letter, so that the halves mix the alphabets and adding a letter hardly moves the others.
    shuffled = sorted(letters, key=lambda letter: hashlib.sha256(letter.encode()).digest())
    training = set(shuffled[: len(letters) // 2])
    wanted = [
        index for index, letter in enumerate(letters) if split == "all" or (letter in training) == (split == "train")
    ]
    _, faces, draws = pixels.shape[:3]
    return Glyphs(
        images=pixels[wanted].reshape(-1, _SIDE, _SIDE),
        labels=np.repeat(np.arange(len(wanted), dtype=np.int64), faces * draws),
        class_names=tuple(f"{letters[index]} U+{ord(letters[index]):04X}" for index in wanted),
        face=np.tile(np.repeat(np.arange(faces, dtype=np.int64), draws), len(wanted)),
        faces=_FACES,
    )


# Letters and their look-alikes


def _font_file(face: str) -> Path:
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    if not file.is_file():
        raise InputError(f"{file} is missing: it comes with matplotlib, install that again to bring it back")
    return file


def _covered_letters() -> str:
    """All letters that every face has, in the order of their code points."""
    from fontTools.ttLib import TTFont  # type: ignore[import-untyped]

    covered = set.intersection(*(set(TTFont(_font_file(face), lazy=True).getBestCmap()) for face in _FACES))
    return "".join(chr(point) for point in sorted(covered) if unicodedata.category(chr(point)).startswith("L"))


def _render(letters: str) -> list[list["Image"]]:
    """Large pictures, cropped to the ink: one row per letter, one column per face."""
    from PIL import Image, ImageFont

    def render(letter: str, font: ImageFont.FreeTypeFont) -> Image.Image:
        mask = font.getmask(letter, mode="L")
        picture = Image.frombytes("L", mask.size, bytes(mask))
        return picture.crop(picture.getbbox())

    # Every build of Pillow has the basic layout, and it places a single letter like any other layout.
    layout = ImageFont.Layout.BASIC
    fonts = [ImageFont.truetype(str(_font_file(face)), _FONT_SIZE, layout_engine=layout) for face in _FACES]
    return [[render(letter, font) for font in fonts] for letter in letters]


@functools.cache
def _distinct_letters() -> str:
    """The covered letters without those that look like an earlier one that is kept."""
    letters = _covered_letters()
    alike = _look_alike(_render(letters))  # (letters, letters)
    kept: list[int] = []
    for index in range(len(letters)):
        if not alike[index, kept].any():
            kept.append(index)
    return "".join(letters[index] for index in kept)


def _look_alike(pictures: list[list["Image"]]) -> NDArray[np.bool_]:
    """Which letters look alike; (letters, letters)."""
    from scipy.ndimage import maximum_filter

    shape = (_SQUARE, _SQUARE)
    ink = np.array([[np.asarray(picture.resize(shape)) for picture in row] for row in pictures]) >= 128
    # (faces, letters, _SQUARE, _SQUARE)
    ink = np.ascontiguousarray(ink.swapaxes(0, 1))
    near = maximum_filter(ink, size=(1, 1, 3, 5)) | maximum_filter(ink, size=(1, 1, 5, 3))  # a disc of radius 2.3
    stray = np.empty((len(ink), ink.shape[1], ink.shape[1]), np.float32)  # (faces, letters, letters)
    for face, (inked, surrounded) in enumerate(zip(ink, near, strict=True)):
        flat = inked.reshape(len(inked), -1).astype(np.float32)
        # Counts of pixels: whole numbers that float32 holds exactly, whatever the order of the sum.
        count = flat @ (1 - surrounded.reshape(len(inked), -1).astype(np.float32)).T
        stray[face] = np.maximum(count, count.T)
    alike: NDArray[np.bool_] = np.sort(stray, axis=0)[_ALIKE_FACES - 1] < _ALIKE_INK
    return alike


# Drawing


def _draw(letters: str, draws: int, seed: int) -> NDArray[np.uint8]:
    """All images; (letters, faces, draws, 28, 28)."""
    pixels = np.empty((len(letters), len(_FACES), draws, _SIDE, _SIDE), np.uint8)
    for index, (letter, pictures) in enumerate(zip(letters, _render(letters), strict=True)):
        canvases = [_canvas(picture) for picture in pictures]
        for draw in range(draws):
            # A separate random stream for every letter and draw: an image does not depend on which others are drawn.
            generator = np.random.default_rng([seed, ord(letter), draw])
            pixels[index, :, draw] = _distort(canvases, generator)
    return pixels


def _canvas(picture: "Image") -> "Image":
    """The letter centred on black, at the resolution it is warped at."""
    from PIL import Image

    side = _SIDE * _OVERSAMPLING
    ratio = _BOX * _OVERSAMPLING / max(picture.size)
    width, height = (2 * max(1, round(length * ratio / 2)) for length in picture.size)  # even, so the middle is exact
    canvas = Image.new("L", (side, side))
    canvas.paste(picture.resize((width, height)), ((side - width) // 2, (side - height) // 2))
    return canvas


def _distort(canvases: Sequence["Image"], generator: np.random.Generator) -> NDArray[np.uint8]:
    """One image of each canvas, rotated, sheared, scaled, shifted and with noise; (canvases, 28, 28)."""
    from PIL import Image

    side = _SIDE * _OVERSAMPLING
    coefficients = _inverse_maps(generator.uniform(-1, 1, (len(canvases), 6)))
    warped = [
        canvas.transform((side, side), Image.Transform.AFFINE, tuple(row), Image.Resampling.BILINEAR)
        for canvas, row in zip(canvases, coefficients.tolist(), strict=True)
    ]
    pixels = np.array([np.asarray(canvas.reduce(_OVERSAMPLING)) for canvas in warped], np.float32)
    noise = generator.standard_normal(pixels.shape, np.float32)
    return np.clip(np.rint(pixels + np.float32(255 * _NOISE) * noise), 0, 255).astype(np.uint8)


def _inverse_maps(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """From uniform numbers, maps from positions in the image to positions on the canvas for Pillow; both (maps, 6)."""
    angle, shear = _ROTATION * uniform[:, 0], _SHEAR * uniform[:, 1]
    width, height = np.exp(-_LOG_SCALE * uniform[:, 2:4].T)
    zero, one = np.zeros_like(angle), np.ones_like(angle)
    unrotate = _matrices(np.cos(angle), np.sin(angle), -np.sin(angle), np.cos(angle))
    linear = _matrices(width, zero, zero, height) @ _matrices(one, -shear, zero, one) @ unrotate  # (maps, 2, 2)
    centre = _SIDE * _OVERSAMPLING / 2
    moved = centre + _OVERSAMPLING * _SHIFT * uniform[:, 4:]  # where the centre goes
    offset = centre - (linear @ moved[:, :, None])  # (maps, 2, 1)
    return np.concatenate([linear, offset], axis=2).reshape(-1, 6)


def _matrices(*entries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Matrices from the four rows of their entries; (maps, 2, 2)."""
    return np.stack(entries, axis=1).reshape(-1, 2, 2)


# The cache


def _cache_folder(cache: bool | Path) -> Path:
    if not isinstance(cache, bool):
        return Path(cache)
    if chosen := os.environ.get("ISOMARGIN_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "isomargin"


def _cache_name(draws: int, seed: int) -> str:
    """A name that changes with everything that changes the pixels, including the fonts and their renderer."""
    import PIL
    from PIL import features

    source = hashlib.sha256(f"{PIL.__version__} {features.version('freetype2')}".encode())
    for face in _FACES:
        source.update(_font_file(face).read_bytes())
    return f"glyphs-v{_VERSION}-draws{draws}-seed{seed}-{source.hexdigest()[:16]}.npz"


def _read(file: Path, draws: int) -> tuple[str, NDArray[np.uint8]] | None:
    """The letters and their images, or None where the file is missing or cannot be used."""
    try:
        with np.load(file, allow_pickle=False) as arrays:
            letters, pixels = str(arrays["letters"]), arrays["pixels"]
    except Exception:  # whatever is wrong with the file, the letters can be rendered again
        return None
    expected = (len(letters), len(_FACES), draws, _SIDE, _SIDE)
    return (letters, pixels) if pixels.shape == expected and pixels.dtype == np.uint8 else None


def _write(file: Path, letters: str, pixels: NDArray[np.uint8]) -> None:
    """Write the file atomically; do nothing where the folder cannot be written to."""
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.stem, suffix=".tmp", delete=False) as handle:
            temporary = handle.name
            np.savez(handle, letters=np.array(letters), pixels=pixels)
        os.replace(temporary, file)
    except OSError:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
