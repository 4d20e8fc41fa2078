"""Small images as text (data: URIs), so that the report is a single file."""

import base64
from io import BytesIO
from typing import Any

from PIL import Image, features

from isomargin.data.images import as_rgb

MOST_BYTES = 1536 / 48**2  # per pixel: 1.5 kB for a thumbnail of 48 by 48 pixels
QUALITIES = (80, 65, 50, 35, 20, 10)
PADDING = 238  # light grey


def thumbnail(image: Image.Image, size: int) -> str:
    """Fit an image into a square of `size` pixels, as a data: URI; grey stays grey, all other modes become RGB.

    >>> thumbnail(Image.new("L", (4, 2)), 48)[:23]
    'data:image/webp;base64,'
    """
    plain = image if image.mode == "L" else as_rgb(image)
    scale = size / max(plain.size)
    width, height = (max(1, round(side * scale)) for side in plain.size)
    # Reducing large photographs in two steps is several times faster and looks the same.
    small = plain.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    square = Image.new(small.mode, (size, size), PADDING if small.mode == "L" else (PADDING,) * 3)
    square.paste(small, ((size - width) // 2, (size - height) // 2))
    kind = "webp" if features.check("webp") else "jpeg"  # Pillow may have been built without WebP
    return f"data:image/{kind};base64,{base64.b64encode(_encoded(square, kind)).decode('ascii')}"


def _encoded(image: Image.Image, kind: str) -> bytes:
    """Encode at the best quality that stays within the limit of bytes, or else at the lowest quality."""
    most = MOST_BYTES * image.width * image.height
    content = b""
    for quality in QUALITIES:
        stream = BytesIO()
        options: dict[str, Any] = {"method": 6} if kind == "webp" else {"optimize": True}
        image.save(stream, kind, quality=quality, **options)
        content = stream.getvalue()
        if len(content) <= most:
            break
    return content
