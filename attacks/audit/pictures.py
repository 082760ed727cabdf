"""Pictures for reports: PNGs as data URIs, so that a page needs no other file."""

from base64 import b64encode
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

SHOWN = 10
"""Pictures side by side, at most."""


def strip(truth: npt.NDArray[np.float32], found: npt.NDArray[np.float32], scale: int = 5) -> str:
    """Draw pairs of pictures, what was trained on above and what was found below, as one PNG in a data URI."""
    rows = [np.concatenate([_framed(picture) for picture in row[:SHOWN]], axis=1) for row in (truth, found)]
    pixels = np.repeat(np.repeat(np.concatenate(rows), scale, axis=0), scale, axis=1)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + b64encode(out.getvalue()).decode()


def _framed(picture: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Turn (channels, side, side) in 0..1 into bytes with a white edge: grey, or red, green, blue."""
    pixels = np.clip(picture * 255, 0, 255).astype(np.uint8)
    pixels = pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, 2)
    width = ((0, 1), (0, 1), *((0, 0),) * (pixels.ndim - 2))
    return np.pad(pixels, width, constant_values=255)
