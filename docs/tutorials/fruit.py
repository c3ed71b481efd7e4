"""Pictures of fruit on a table, unripe, turning or ripe: their color is what tells them apart."""

import torch
from torch import Tensor, nn

import lightfast as lf

CLASSES = ["unripe", "turning", "ripe"]
SKIN = torch.tensor([[0.15, 0.42, 0.08], [0.62, 0.40, 0.06], [0.60, 0.06, 0.04]])  # what each reflects of R, G and B


def draw(count: int, size: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images, sRGB in [0, 1], (count, 3, size, size), in white light; and the number of each one's class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASSES), (count,), generator=random)
    place = torch.linspace(-1, 1, size)
    center = torch.rand(count, 2, 1, 1, generator=random) - 0.5
    radius = 0.35 + 0.3 * torch.rand(count, 1, 1, generator=random)
    distance = ((place[None, :] - center[:, 0]) ** 2 + (place[:, None] - center[:, 1]) ** 2).sqrt() / radius
    table = 0.25 + 0.3 * torch.rand(count, 1, 1, 1, generator=random)
    table = table + 0.05 * torch.randn(count, 3, 1, 1, generator=random)
    grain = 1 + 0.1 * torch.randn(count, 1, size, size, generator=random)
    skin = SKIN[labels][:, :, None, None] * (1 + 0.15 * torch.randn(count, 3, 1, 1, generator=random))
    shade = (1 - 0.6 * distance.clamp(0, 1) ** 2)[:, None]
    linear = torch.where((distance < 1)[:, None], skin * shade, table * grain).clamp(0.004, 1)
    return lf.color.linear_to_srgb(linear), labels


def make_network() -> nn.Module:
    """A small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, len(CLASSES)),
    )  # fmt: skip


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int = 5, lr: float = 0.005) -> nn.Module:
    """An ordinary loop; images are what the network sees."""
    optimizer = torch.optim.AdamW(network.train().parameters(), lr)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(50):
            loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


@torch.no_grad()
def error(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Per cent of images that the network gets wrong; images are what it sees."""
    return 100 * (network(images).argmax(1) != labels).float().mean().item()
