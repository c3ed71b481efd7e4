"""The moving picture of the README: a photograph under five kinds of light as their hues turn, and what networks say.

    python docs/turning_light.py

The networks are those in the package, both trained on CIFAR-10 in its own light; the photograph, which they have never
seen, is Chelsea of scikit-image, in the public domain. It shows what happens, and the tables say how often.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

import lightfast as lf
from lightfast._photographs.decode import load_image

PHOTOGRAPH = Path(__file__).parents[1] / "src" / "lightfast" / "_page" / "cat.jpg"
CLASS = "cat"
NETWORKS = {"conventional": "resnet20-cifar10-original", "Lightfast": "resnet20-cifar10"}
LIGHTS: dict[str, lf.light.LightKind | None] = {
    "one light": None,
    "gradient": "log-gradient",
    "spot": "spot",
    "hard edge": "halves",
    "soft shadow": "shadow",
}
FRAMES, SATURATION, SIDE, SEEN, GAP, LINE, LEFT = 24, 0.8, 144, 32, 12, 20, 104
SHAPE = (0.1, 0.5, 0.6, 0.5)
"""Direction, place, width and softness of what divides two lights, of `lf.light.VaryingLight`."""
RIGHT, WRONG, INK, PAPER = (26, 127, 55), (207, 34, 46), (87, 96, 106), (255, 255, 255)


def lights(kind: lf.light.LightKind | None, side: int) -> Tensor:
    """Of each frame, (F, 3, side, side): the hue once around, and that of a second light a third of the way ahead."""
    hue = torch.arange(FRAMES) / FRAMES
    first, second = (
        lf.color.hsv_to_rgb(torch.stack([(hue + ahead) % 1, torch.full_like(hue, SATURATION), torch.ones_like(hue)], 1))
        for ahead in (0, 1 / 3)
    )
    if kind is None:
        return first[:, :, None, None].expand(-1, -1, side, side)
    if kind == "shadow":
        second = second * (1 - SATURATION / 2)  # As `lf.light.varying_light` has it.
    shape = torch.tensor(SHAPE)[:, None].expand(-1, FRAMES)
    return lf.light.VaryingLight(kind, first, second, shape).maps((side, side))


@torch.no_grad()
def frames_of(kind: lf.light.LightKind | None) -> tuple[Tensor, dict[str, list[str]]]:
    """The photograph in each frame, (F, SIDE, SIDE, 3) in 8 bits, and what each network says of it."""
    large, small = (load_image(PHOTOGRAPH, side).float() / 255 for side in (SIDE, SEEN))
    lit = lf.light.relight(small.expand(FRAMES, -1, -1, -1), illuminants=lights(kind, SEEN))
    said = {}
    for title, name in NETWORKS.items():
        network = lf.pretrained(name)
        said[title] = [network.classes[best] for best in network(lit).argmax(1).tolist()]
    shown = lf.light.relight(large.expand(FRAMES, -1, -1, -1), illuminants=lights(kind, SIDE))
    return shown.clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1), said


def draw() -> list[Image.Image]:
    """The frames."""
    font, bold = ImageFont.load_default(14), ImageFont.load_default(15)
    size = (LEFT + len(LIGHTS) * (SIDE + GAP), LINE + SIDE + 2 * LINE + GAP)
    frames = [Image.new("RGB", size, PAPER) for _ in range(FRAMES)]
    for place, (title, kind) in enumerate(LIGHTS.items()):
        shown, said = frames_of(kind)
        x = LEFT + place * (SIDE + GAP)
        for number, frame in enumerate(frames):
            pen = ImageDraw.Draw(frame)
            pen.text((x + SIDE // 2, LINE // 2), title, INK, font, anchor="mm")
            frame.paste(Image.fromarray(shown[number].numpy()), (x, LINE))
            for row, (name, answers) in enumerate(said.items()):
                y = LINE + SIDE + GAP + row * LINE + 2
                pen.text((LEFT - 8, y), name, INK, font, anchor="rm")
                color = RIGHT if answers[number] == CLASS else WRONG
                pen.text((x + SIDE // 2, y), answers[number], color, bold, anchor="mm")
    return frames


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("turning-light.webp"))
    given = parser.parse_args()
    first, *others = draw()
    first.save(given.out, save_all=True, append_images=others, duration=180, loop=0, quality=80, method=6)
    print(f"{given.out}: {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
