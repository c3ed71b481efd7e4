"""Scenes are found again through other cameras, under other light, from a step aside."""

import torch
import torch.nn.functional as F

from lightfast._experiments.data.same_scene import same_scene


def _views(scenes: int, views: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Textures (scenes x views, 3, 32, 48), each seen several times with other gains, from elsewhere; and which."""
    generator = torch.Generator().manual_seed(0)
    textures = F.interpolate(torch.rand((scenes, 3, 20, 28), generator=generator), size=(40, 56), mode="bicubic")
    textures = textures.clamp(min=0.01)
    images, numbers = [], []
    for number, texture in enumerate(textures):
        for _ in range(views):
            down, across = torch.randint(0, 8, (2,), generator=generator).tolist()
            gains = 0.2 + torch.rand((3, 1, 1), generator=generator)
            image = texture[:, down : down + 32, across : across + 48] * gains
            image[:, 4:10, 4:10] = 0
            images.append(image)
            numbers.append(number)
    return torch.stack(images), torch.tensor(numbers)


def test_scenes_are_told_apart_and_found_again():
    images, scenes = _views(12, 4)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    found = same_scene(images[order])
    same = scenes[order][:, None] == scenes[order]
    assert torch.equal(found[:, None] == found, same)


def test_light_does_not_matter():
    images, _ = _views(6, 3)
    relit = images * torch.tensor([1.0, 0.3, 0.05])[:, None, None]
    assert torch.equal(same_scene(images), same_scene(relit))
