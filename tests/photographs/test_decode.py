import numpy as np
import pytest
import torch
from PIL import Image

from lightfast._photographs import decode
from lightfast._photographs.photo import PhotoError

DECODERS = ["pillow", "simplejpeg"]


@pytest.fixture(params=DECODERS)
def decoder(request, monkeypatch):
    """With Pillow alone, and with simplejpeg where it is installed."""
    if request.param == "pillow":
        monkeypatch.setattr(decode, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")


@pytest.fixture
def photograph(tmp_path):
    """A smooth picture of 203 x 151 pixels, as a JPEG."""
    x, y = np.meshgrid(np.linspace(0, 1, 203), np.linspace(0, 1, 151))
    pixels = np.stack([x, y, 0.5 + 0.5 * np.sin(9 * x + 4 * y)], 2) * 255
    path = tmp_path / "photograph.jpg"
    Image.fromarray(pixels.round().astype(np.uint8)).save(path, quality=95)
    return path


def test_decoders_give_the_same_pixels(photograph, monkeypatch):
    pytest.importorskip("simplejpeg")
    fast = [decode.read_image(photograph), decode.read_square(photograph, 16, lambda w, h: (3, 5, 141, 151))]
    monkeypatch.setattr(decode, "simplejpeg", None)
    slow = [decode.read_image(photograph), decode.read_square(photograph, 16, lambda w, h: (3, 5, 141, 151))]
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))


@pytest.mark.parametrize("size", [100, 60, 30, 17, 12])
def test_reduced_decoding_shows_the_same_part(decoder, photograph, size, monkeypatch):
    box, decoded = (41, 20, 181, 140), []
    pixels = decode._pixels
    monkeypatch.setattr(decode, "_pixels", lambda *given: decoded.append(pixels(*given)) or decoded[-1])
    found = decode.read_square(photograph, size, lambda width, height: box)
    with Image.open(photograph) as image:
        whole = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    expected = torch.from_numpy(np.array(whole)).permute(2, 0, 1)
    assert found.shape == (3, size, size) and found.dtype == torch.uint8
    # The edges of the part are rounded to what was decoded, whose pixels are at most those of the result.
    assert (found.float() - expected.float()).abs().mean() < 4
    shrunk = {100: 1, 60: 2, 30: 4, 17: 4, 12: 8}[size]
    assert decoded[0].shape == (-(-151 // shrunk), -(-203 // shrunk), 3)


def test_a_part_of_the_wanted_size_is_not_resampled(decoder, photograph):
    part = decode.read_square(photograph, 50, lambda width, height: (20, 30, 70, 80))
    assert torch.equal(part, decode.read_image(photograph)[:, 30:80, 20:70])


def test_turned_gray_and_printed_jpegs(decoder, photograph, tmp_path):
    with Image.open(photograph) as image:
        exif = Image.Exif()
        exif[0x0112] = 6
        image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
        image.convert("L").save(tmp_path / "gray.jpg")
        image.convert("CMYK").save(tmp_path / "cmyk.jpg")
    assert decode.read_image(tmp_path / "turned.jpg").shape == (3, 203, 151)
    chosen = decode.read_square(tmp_path / "turned.jpg", 16, lambda width, height: (0, 0, width, width))
    upright = decode.read_square(photograph, 16, lambda width, height: (0, 0, height, height))
    assert (chosen.float() - upright.rot90(-1, (1, 2)).float()).abs().mean() < 2
    gray = decode.read_image(tmp_path / "gray.jpg")
    assert gray.shape == (3, 151, 203) and torch.equal(gray[0], gray[2])
    assert decode.read_image(tmp_path / "cmyk.jpg").shape == (3, 151, 203)


def test_damaged_jpegs_are_named(decoder, photograph):
    content = photograph.read_bytes()
    photograph.write_bytes(content[: len(content) // 2])
    with pytest.raises(PhotoError, match=r"photograph.jpg cannot be read as an image"):
        decode.read_square(photograph, 16, lambda width, height: (0, 0, width, height))
