"""Distortions of batches: none leaves images as they are, a seed repeats them, and each moves what it says."""

import pytest
import torch

from isomargin.data.augment import RandomAffine

NOTHING = {"rotation": 0.0, "scale": 0.0, "shear": 0.0, "shift": 0.0}


def dot(height=29, width=29):
    """A soft spot in the middle."""
    y, x = torch.meshgrid(torch.arange(height) - height // 2, torch.arange(width) - width // 2, indexing="ij")
    return torch.exp(-(x**2 + y**2) / 8.0)[None, None].repeat(200, 1, 1, 1)


def centre(images):
    """(n, 2) where the mass of each image lies, in pixels from the middle."""
    height, width = images.shape[-2:]
    mass = images.sum(dim=(1, 2, 3))
    down = (images.sum(dim=(1, 3)) * (torch.arange(height) - height // 2)).sum(dim=1) / mass
    across = (images.sum(dim=(1, 2)) * (torch.arange(width) - width // 2)).sum(dim=1) / mass
    return torch.stack([across, down], dim=1)


def test_no_distortion_leaves_images_as_they_are():
    images = torch.rand(3, 2, 20, 28)
    torch.testing.assert_close(RandomAffine(**NOTHING)(images), images, rtol=0, atol=1e-5)


def test_shifts_stay_within_their_pixels_and_fill_them():
    moved = centre(RandomAffine(**NOTHING | {"shift": 3.0})(dot(29, 41), torch.Generator().manual_seed(0)))
    assert moved.abs().max() <= 3.05
    assert (moved.max(dim=0).values > 2.5).all()
    assert (moved.min(dim=0).values < -2.5).all()


def test_turning_keeps_lengths_in_images_that_are_not_square():
    images = torch.zeros(200, 1, 31, 61)
    images[:, :, 15, 40] = 1  # ten pixels to the right of the middle
    turned = centre(RandomAffine(**NOTHING | {"rotation": 45.0})(images, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(turned.norm(dim=1), torch.full((200,), 10.0), rtol=0, atol=0.3)
    angles = torch.rad2deg(torch.atan2(turned[:, 1], turned[:, 0]))
    assert angles.abs().max() <= 46
    assert angles.std() > 20


def test_a_seed_repeats_and_images_differ():
    images = dot()[:4]
    one, other = (RandomAffine()(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.allclose(one[0], one[1])


@pytest.mark.parametrize("settings", [{"rotation": -1}, {"shift": float("nan")}, {"scale": "0.1"}])
def test_bad_settings_are_refused(settings):
    with pytest.raises(ValueError, match="needed"):
        RandomAffine(**settings)


def test_images_that_are_no_float_batch_are_refused():
    with pytest.raises(ValueError, match=r"\(images, channels, height, width\) is needed"):
        RandomAffine()(torch.zeros(28, 28))
