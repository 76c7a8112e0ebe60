"""The last stages of a batch: the same for an image alone, in a batch, in micro-batches of whole blocks."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.config.recipe import Augmentation, RandAugment
from vitrail.data.source import Batch
from vitrail.data.transforms.finish import (
    BatchTransform,
    augment,
    draw_slots,
    erase,
    jitter,
    noise,
    scale,
    three_augment,
)
from vitrail.errors import ShapeError
from vitrail.ops.random import Purpose, draws

EVERYTHING = Augmentation(
    randaugment=RandAugment(layers=2, magnitude=15),
    three_augment=True,
    jitter=0.3,
    random_erasing=0.5,
    mixup=0.8,
    cutmix=1.0,
    mix_block=4,
)


def images(count: int, height: int = 19, width: int = 23) -> Tensor:
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)


class Finished(NamedTuple):
    images: Tensor
    targets: Tensor


def finish(
    batch: Tensor,
    labels: Tensor,
    samples: np.ndarray,
    places: np.ndarray,
    config: Augmentation,
    classes: int,
    seed: int,
    epoch: int = 0,
) -> Finished:
    numbers = (torch.from_numpy(part) for part in (samples, places, np.arange(0)))
    given = Batch(batch, labels, *numbers, epoch=epoch, step=0, skipped=())
    made = BatchTransform(config, Preprocessing(), classes, seed)(given)
    assert made.targets is not None
    return Finished(made.images, made.targets)


def run(batch: Tensor, labels: Tensor, places: np.ndarray, config: Augmentation, epoch: int = 2) -> Finished:
    return finish(batch, labels, (places * 7919) % 1009, places, config, 5, 11, epoch)


def test_a_batch_is_its_blocks() -> None:
    batch, labels, places = images(16), torch.arange(16) % 5, np.arange(32, 48)
    whole = run(batch, labels, places, EVERYTHING)
    parts = [run(batch[i : i + 4], labels[i : i + 4], places[i : i + 4], EVERYTHING) for i in range(0, 16, 4)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))
    assert torch.allclose(whole.targets.sum(dim=1), torch.ones(16))
    assert whole.images.abs().max() <= 1


def test_without_mixing_an_image_alone_is_as_in_a_batch() -> None:
    config = Augmentation(randaugment=RandAugment(), three_augment=True, jitter=0.4, random_erasing=0.5)
    batch, labels, places = images(23), torch.arange(23) % 5, np.arange(100, 123)
    whole = run(batch, labels, places, config)
    alone = [run(batch[i : i + 1], labels[i : i + 1], places[i : i + 1], config) for i in range(23)]
    assert torch.equal(whole.images, torch.cat([one.images for one in alone]))
    assert torch.equal(whole.targets, torch.nn.functional.one_hot(labels, 5).float())


def test_targets_are_the_shares_of_the_pixels() -> None:
    levels = torch.arange(16, dtype=torch.uint8) * 17
    batch = levels[:, None, None, None].expand(16, 3, 19, 23)
    config = Augmentation(flip=False, mixup=0.8, cutmix=1.0, mix_block=4)
    made = finish(batch, torch.arange(16), np.arange(16), np.arange(16), config, 16, 1)
    plain = scale(batch, Preprocessing())[:, 0, 0, 0]
    assert torch.allclose(made.images.mean(dim=(1, 2, 3)), made.targets @ plain, atol=1e-5)
    kinds = [len(image.unique()) for image in made.images]
    assert set(kinds) == {1, 2}  # added, and cut in


@pytest.mark.parametrize("config", [EVERYTHING, Augmentation(mixup=0.8, mix_block=4), Augmentation()])
def test_images_without_a_label_have_targets_of_zero_and_are_else_as_ever(config: Augmentation) -> None:
    batch, labels, places = images(16), torch.arange(16) % 5, np.arange(16)
    without = torch.where(labels == 3, -1, labels)
    all_of_them, some = run(batch, labels, places, config), run(batch, without, places, config)
    assert torch.equal(some.images, all_of_them.images)
    assert torch.equal(some.targets, all_of_them.targets * torch.tensor([1, 1, 1, 0, 1]))
    assert (some.targets.sum(dim=1) < 0.99).any()
    nothing = torch.full((16,), -1)
    none = finish(batch, nothing, (places * 7919) % 1009, places, config, 0, 11, 2)
    assert torch.equal(none.images, all_of_them.images)
    assert none.targets.shape == (16, 0)


def test_another_epoch_is_another_image() -> None:
    batch, labels, places = images(8), torch.zeros(8, dtype=torch.int64), np.arange(8)
    first, again, other = (run(batch, labels, places, EVERYTHING, epoch) for epoch in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)


def test_nothing_random_is_only_scaled() -> None:
    batch = images(3)
    made = run(batch, torch.arange(3), np.arange(3), Augmentation(crop="squash", flip=False))
    assert torch.equal(made.images, (batch.float() - 127.5) / 127.5)
    assert torch.equal(made.targets, torch.eye(5)[:3])


def test_levels_become_what_the_model_reads() -> None:
    ends = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 3, 1, 2)
    assert scale(ends, Preprocessing())[0, :, 0].tolist() == [[-1, 1]] * 3
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    made = scale(ends, Preprocessing(mean=mean, deviation=deviation))
    assert made[0, :, 0, 0].tolist() == pytest.approx([-m / d for m, d in zip(mean, deviation, strict=True)])
    gray = scale(ends[:, :1], Preprocessing(mean=mean, deviation=deviation))
    assert gray[0, 0, 0, 1].item() == pytest.approx((1 - sum(mean) / 3) / (sum(deviation) / 3))


def test_half_of_the_images_are_flipped() -> None:
    batch = images(2000, 3, 5)
    made = augment(batch, {Purpose.FLIP: draws(np.arange(2000), 1, 0, 0, Purpose.FLIP)}, Augmentation())
    flipped = (made == batch.flip(3)).flatten(1).all(dim=1)
    assert 900 < flipped.sum() < 1100
    assert torch.equal(made[~flipped], batch[~flipped])


def test_three_augment_does_one_of_three() -> None:
    batch = images(4)
    made = three_augment(batch, np.array([[0.9, 0.99], [0.1, 0.0], [0.5, 0.0], [0.2, 0.0]]))
    assert (made[1] == made[1, :1]).all()
    assert (made[3] == made[3, :1]).all()
    assert torch.equal(made[2], torch.where(batch[2] < 128, batch[2], 255 - batch[2]))
    assert made[0].float().std() < 0.5 * batch[0].float().std()


def test_jitter_of_a_half_is_none_and_brightness_is_bounded() -> None:
    batch = images(3)
    assert torch.equal(jitter(batch, np.full((3, 3), 0.5), 0.4), batch)
    darker = jitter(batch, np.tile([0.0, 0.5, 0.5], (3, 1)), 0.4)
    assert (darker.float() - 0.6 * batch.float()).abs().max() <= 1
    assert (jitter(batch, np.tile([0.0, 0.5, 0.5], (3, 1)), 2.0) == 0).all()  # never below black


def test_erasing_puts_noise_into_a_box_as_often_as_asked() -> None:
    batch = torch.full((1000, 3, 20, 30), 7, dtype=torch.uint8)
    made = erase(batch, draws(np.arange(1000), 6, 0, 0, Purpose.ERASING), 0.25)
    changed = (made != 7).any(dim=1)  # B H W
    erased = changed.flatten(1).any(dim=1)
    assert 200 < erased.sum() < 300
    for mask in changed[erased][:50]:
        rows, cols = mask.any(dim=1).nonzero(), mask.any(dim=0).nonzero()
        box = mask[rows.min() : rows.max() + 1, cols.min() : cols.max() + 1]
        assert box.all()
        assert 0.005 < box.numel() / 600 < 0.4
    assert torch.equal(erase(batch, np.full((1000, 6), 0.5), 0.25), batch)


def test_noise_is_uniform_and_of_its_key() -> None:
    keys = torch.arange(-5, 5, dtype=torch.int32) * 100003
    made = noise(keys, torch.Size((3, 64, 64)))
    counts = torch.bincount(made.flatten().int(), minlength=256)
    assert ((counts - counts.float().mean()).abs() < 6 * counts.float().mean().sqrt()).all()
    levels = made.flatten(1).double()
    assert (torch.corrcoef(levels) - torch.eye(10, dtype=torch.float64)).abs().max() < 0.05
    assert torch.corrcoef(torch.stack([levels[:, :-1].flatten(), levels[:, 1:].flatten()]))[0, 1].abs() < 0.02
    assert torch.equal(noise(keys[3:4], torch.Size((3, 64, 64)))[0], made[3])


LATER = {
    Purpose.CLASS,
    Purpose.DROPOUT,
    Purpose.HIDING,
    Purpose.MASKING,
    Purpose.ORDER,
    Purpose.SPOILING,
    Purpose.SHARD,
}  # no stages of an image


def test_stages_in_use_have_slots() -> None:
    assert draw_slots(Augmentation()) == {Purpose.CROP: 40, Purpose.FLIP: 1}
    assert draw_slots(Augmentation(crop="middle", flip=False)) == {}
    assert set(draw_slots(EVERYTHING)) == set(Purpose) - LATER


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="4 images, 4 labels, 3 samples, 4 places"):
        finish(images(4), torch.zeros(4, dtype=torch.int64), np.arange(3), np.arange(4), EVERYTHING, 5, 0)
