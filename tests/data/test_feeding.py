import numpy as np
import pytest
import torch

from data.layouts import picture
from isomargin.core.errors import InputError
from isomargin.data.augment import RandomAffine, RandomCrop, centre_crop
from isomargin.data.feeding import training_batches, unseen_batches
from isomargin.data.images import ImageSet, joined
from isomargin.data.sampler import ClassBatchSampler

NAMES = tuple(map(str, range(6)))
LABELS = np.arange(30) % 6


@pytest.fixture(params=["pixels", "files", "vectors"])
def kind(request, tmp_path):
    """A set of each kind, with the distortion that goes with it."""
    generator = np.random.default_rng(0)
    if request.param == "pixels":
        return ImageSet(LABELS, NAMES, pixels=generator.integers(0, 256, (30, 28, 28), np.uint8)), RandomAffine()
    if request.param == "vectors":
        return ImageSet(LABELS, NAMES, vectors=generator.normal(size=(30, 5)).astype(np.float32)), None
    paths = tuple(picture(tmp_path / f"{number}.png", shade=number, side=40) for number in range(30))
    return ImageSet(LABELS, NAMES, paths=paths), RandomCrop()


def batches(kind, steps, rank=0, world_size=1, seed=0, **options):
    images, augmentation = kind
    sampler = ClassBatchSampler(images.labels, 4, 2, seed=seed, rank=rank, world_size=world_size)
    return list(training_batches(images, sampler, steps, 28, 1, augmentation, **options))


def test_a_step_is_the_same_wherever_one_begins(kind):
    """With 15 groups of two and 4 classes a batch, an epoch has 3 batches."""
    whole = batches(kind, range(8))
    for start in (1, 3, 5):
        for later, (images, labels) in zip(whole[start:], batches(kind, range(start, 8)), strict=True):
            assert torch.equal(later[0], images)
            assert torch.equal(later[1], labels)
    assert not torch.equal(whole[0][0], batches(kind, range(1), seed=1)[0][0])


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_batch_of_one(kind, world_size):
    whole = batches(kind, range(4))
    parts = [batches(kind, range(4), rank, world_size) for rank in range(world_size)]
    positions = [
        ClassBatchSampler(LABELS, 4, 2, rank=rank, world_size=world_size).positions for rank in range(world_size)
    ]
    for step, (images, labels) in enumerate(whole):
        for rank, where in enumerate(positions):
            torch.testing.assert_close(parts[rank][step][0], images[where])
            assert torch.equal(parts[rank][step][1], labels[where])


def test_distortions_differ_between_images_and_between_steps(tmp_path):
    path = picture(tmp_path / "one.png", side=60)
    same = ImageSet(LABELS, NAMES, paths=(path,) * 30)
    drawn = torch.cat([images for images, _ in batches((same, RandomCrop()), range(3))])
    assert len(torch.unique(drawn, dim=0)) == len(drawn)
    pixels = ImageSet(
        LABELS, NAMES, pixels=np.repeat(np.random.default_rng(0).integers(0, 256, (1, 28, 28), np.uint8), 30, 0)
    )
    drawn = torch.cat([images for images, _ in batches((pixels, RandomAffine()), range(3))])
    assert len(torch.unique(drawn, dim=0)) == len(drawn)


def test_loading_leaves_the_random_state_alone(kind):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    batches(kind, range(2))
    assert torch.equal(torch.rand(3), expected)


def test_unseen_images_come_in_order_and_undistorted(kind):
    images, _ = kind
    rows = np.array([7, 3, 20, 4, 4])
    found = torch.cat(list(unseen_batches(images, rows, 28, 1, batch=2)))
    if images.pixels is not None:
        np.testing.assert_array_equal(found[:, 0].numpy(), images.pixels[rows])
    elif images.vectors is not None:
        np.testing.assert_array_equal(found.numpy(), images.vectors[rows])
    else:
        expected = torch.stack([centre_crop(28)(images.read(row).convert("L")) for row in rows])
        assert torch.equal(found, expected)


def test_pixels_are_brought_to_the_channels_and_the_size_of_the_model():
    grey = ImageSet(np.array([0]), ("a",), pixels=np.full((1, 28, 28), 77, np.uint8))
    (made,) = unseen_batches(grey, np.array([0]), 64, 3)
    assert made.shape == (1, 3, 64, 64)
    assert (made == 77).all()
    colour = ImageSet(np.array([0]), ("a",), pixels=np.tile(np.uint8([200, 100, 50]), (1, 28, 28, 1)))
    (made,) = unseen_batches(colour, np.array([0]), 28, 1)
    assert made.unique().tolist() == [124]  # 0.299 · 200 + 0.587 · 100 + 0.114 · 50
    (made,) = unseen_batches(colour, np.array([0]), 28, 3)
    assert made[0, :, 5, 5].tolist() == [200, 100, 50]


def test_distortions_that_do_not_go_with_the_images_are_refused(kind):
    images, fitting = kind
    for augmentation in (RandomAffine(), RandomCrop()):
        if type(augmentation) is type(fitting):
            continue
        with pytest.raises(InputError, match="the augmentation is"):
            batches((images, augmentation), range(1))


def test_crops_are_checked():
    with pytest.raises(InputError, match="smallest_area is 0"):
        RandomCrop(smallest_area=0.0)
    with pytest.raises(InputError, match=r"flip is 1\.5"):
        RandomCrop(flip=1.5)
    with pytest.raises(InputError, match="at least the model's 224 pixels"):
        centre_crop(224, resize=100)


def test_sets_are_joined_by_the_names_of_classes(kind):
    images, _ = kind
    first, second = images.of_classes([0, 3]), images.of_classes([3, 5])
    both = joined(first, second)
    assert both.class_names == ("0", "3", "5")
    names = [part.class_names[label] for part in (first, second) for label in part.labels]
    assert [both.class_names[label] for label in both.labels] == names
