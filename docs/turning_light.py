"""The moving picture of the README: photographs as the light on them turns through all hues, and what networks say.

    python docs/turning_light.py DIR        # DIR holds cifar-10-batches-bin

The networks are those in the package, both trained on CIFAR-10 in its own light. Pictures are the first test images,
one per class, that both get right in white light, and of which one network changes its mind: they show what happens,
and the tables say how often.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import lightfast as lf
from lightfast._experiments.data import load_cifar10

NETWORKS = {"conventional": "resnet20-cifar10-original", "equivariant": "resnet20-cifar10"}
FRAMES, SATURATION, PICTURES, SIDE, GAP, LINE = 24, 0.8, 5, 128, 12, 19
RIGHT, WRONG, INK, PAPER = (26, 127, 55), (207, 34, 46), (87, 96, 106), (255, 255, 255)


def lights() -> Tensor:
    """Of each frame, (F, 3): the hue once around."""
    hue = torch.arange(FRAMES) / FRAMES
    return lf.color.hsv_to_rgb(torch.stack([hue, torch.full_like(hue, SATURATION), torch.ones_like(hue)], 1))


@torch.no_grad()
def answers(images: Tensor) -> dict[str, Tensor]:
    """What each network says under each light, and in white light last, (F + 1, N)."""
    white = torch.ones(1, 3)
    lit = [lf.light.relight(images, illuminants=light) for light in torch.cat([lights(), white])]
    networks = {title: lf.pretrained(name) for title, name in NETWORKS.items()}
    return {title: torch.stack([network(each).argmax(1) for each in lit]) for title, network in networks.items()}


def choose(said: dict[str, Tensor], labels: Tensor) -> list[int]:
    """The pictures to show."""
    right_in_white = torch.stack([each[-1] == labels for each in said.values()]).all(0)
    changed = torch.stack([(each != labels).any(0) for each in said.values()]).any(0)
    chosen: dict[int, int] = {}
    for place in (right_in_white & changed).nonzero().flatten().tolist():
        chosen.setdefault(int(labels[place]), place)
    return list(chosen.values())[:PICTURES]


def draw(images: Tensor, said: dict[str, Tensor], labels: Tensor, classes: list[str]) -> list[Image.Image]:
    """The frames."""
    font, bold = ImageFont.load_default(14), ImageFont.load_default(15)
    left = 104
    size = (left + len(images) * (SIDE + GAP), SIDE + 2 * LINE + 2 * GAP)
    frames = []
    for number, light in enumerate(lights()):
        frame = Image.new("RGB", size, PAPER)
        pen = ImageDraw.Draw(frame)
        swatch = lf.color.linear_to_srgb(light).mul(255).int().tolist()
        pen.ellipse((left - 74, 42, left - 34, 82), fill=tuple(swatch), outline=INK)
        pen.text((left - 54, 26), "light", INK, font, anchor="mm")
        lit = lf.light.relight(images, illuminants=light).clamp(0, 1).mul(255).byte()
        for place, (image, label) in enumerate(zip(lit, labels.tolist(), strict=True)):
            x = left + place * (SIDE + GAP)
            picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            frame.paste(picture, (x, 0))
            for row, each in enumerate(said.values()):
                answer = int(each[number, place])
                where = (x + SIDE // 2, SIDE + GAP + row * LINE + 4)
                pen.text(where, classes[answer], RIGHT if answer == label else WRONG, bold, anchor="mm")
        for row, title in enumerate(said):
            pen.text((left - 8, SIDE + GAP + row * LINE + 4), title, INK, font, anchor="rm")
        frames.append(frame)
    return frames


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("turning-light.webp"))
    given = parser.parse_args()
    data = load_cifar10(given.data)
    images, labels = data.test_images[:200] / 255, data.test_labels[:200]
    said = answers(images)
    chosen = choose(said, labels)
    shown = {title: each[:, chosen] for title, each in said.items()}
    classes = list(lf.pretrained(NETWORKS["equivariant"]).classes)
    first, *others = draw(images[chosen], shown, labels[chosen], classes)
    first.save(given.out, save_all=True, append_images=others, duration=180, loop=0, quality=80, method=6)
    print(f"{given.out}: {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
