"""What photographers complained of, each as it was: files and folders as they are found on disks."""

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from typer.testing import CliRunner

import lightfast as lf
from lightfast._commands import app
from lightfast._photographs.balance import cast_angle
from lightfast._photographs.files import read_photo
from lightfast._photographs.folder import BalancedFile
from lightfast._photographs.photo import Photo, PhotoError
from lightfast._photographs.sheet import PER_PAGE, ContactSheets

RUNNER = CliRunner()
QUICK = ("--estimator", "gray-world", "--jobs", "1")


def _pixels(size=(40, 60), seed=0):
    return np.random.default_rng(seed).integers(20, 200, (*size, 3)).astype(np.uint8)


def _save(path, size=(40, 60), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_pixels(size)).save(path, **how)
    return path


def _balance(*arguments):
    return RUNNER.invoke(app, ["balance", *map(str, arguments), *QUICK])


def _bomb(path, side=60_000):
    """A PNG file whose header says that it is huge."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 999)) + chunk(b"IEND", b""))


def test_a_batch_goes_on_after_whatever_is_in_the_folder(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    _save(source / "good.jpg")
    _bomb(source / "bomb.png")
    (source / "loop.jpg").symlink_to(source / "loop.jpg")
    os.mkfifo(source / "pipe.jpg")
    _save(source / "thin.png", (1, 5000))
    exif = Image.Exif()
    exif[0x0112] = 9
    _save(source / "turned.jpg", exif=exif)
    (source / "empty.tif").write_bytes(b"")
    _save(source / "secret.jpg").chmod(0)
    (source / "notes.txt").write_text("notes")
    _save(source / "below" / "more.jpg")
    started = time.monotonic()
    result = _balance(source, "-o", out)
    assert time.monotonic() - started < 20
    assert result.exit_code == 1 and result.exception.code == 1
    good = {"good.jpg", "thin.png", "turned.jpg"}
    # Whoever may do everything may read that, too.
    good |= {"secret.jpg"} if os.geteuid() == 0 else set()
    assert {path.name for path in out.iterdir()} == good | {"contact-sheet.jpg"}
    said = result.output
    assert "bomb.png: it has more than 178 megapixels: reduce it first" in said
    assert "pipe.jpg is not a file" in said and "loop.jpg" in said and "empty.tif" in said
    assert "1 sub-folder" in said and "use --recursive" in said and "1 .txt" in said


def test_sub_folders_keep_their_places(tmp_path):
    for name in ("a.jpg", "x/a.jpg", "x/y/b.png"):
        _save(tmp_path / "in" / name)
    assert _balance(tmp_path / "in", "-o", tmp_path / "in" / "out", "--recursive").exit_code == 0
    found = {str(path.relative_to(tmp_path / "in" / "out")) for path in (tmp_path / "in" / "out").rglob("*.*")}
    assert found == {"a.jpg", "x/a.jpg", "x/y/b.png", "contact-sheet.jpg"}
    # Results are not taken for photographs the next time.
    again = _balance(tmp_path / "in", "-o", tmp_path / "in" / "out", "--recursive")
    assert again.exit_code == 0 and "3 of 3 were there already" in again.output


def test_what_is_there_is_kept_unless_told_otherwise(tmp_path):
    photo = _save(tmp_path / "a.jpg")
    assert _balance(photo, "-o", tmp_path / "out").exit_code == 0
    (tmp_path / "out" / "a.jpg").write_bytes(b"edited by hand")
    result = _balance(photo, "-o", tmp_path / "out")
    assert result.exit_code == 0 and "kept as it is" in result.output and "--overwrite" in result.output
    assert (tmp_path / "out" / "a.jpg").read_bytes() == b"edited by hand"
    assert _balance(photo, "-o", tmp_path / "out", "--overwrite").exit_code == 0
    assert (tmp_path / "out" / "a.jpg").read_bytes() != b"edited by hand"


def test_a_photograph_called_contact_sheet(tmp_path):
    photo = _save(tmp_path / "contact-sheet.jpg")
    before = photo.read_bytes()
    for out in (tmp_path, tmp_path / "out"):
        assert _balance(photo, "-o", out, "--overwrite").exit_code == 0
    assert photo.read_bytes() == before
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"contact-sheet.jpg", "contact-sheet-2.jpg"}
    with Image.open(tmp_path / "out" / "contact-sheet.jpg") as image:
        assert image.size == (60, 40), "the photograph, and not a sheet of it"


def test_a_thousand_photographs_are_several_sheets(tmp_path):
    small = tmp_path / "small.jpg"
    _save(small, (8, 12))
    results = [
        BalancedFile(Path(f"{n}.jpg"), Path("x"), before=small.read_bytes(), after=small.read_bytes())
        for n in range(1000)
    ]
    sheets = ContactSheets(tmp_path / "contact-sheet.jpg", Path.exists)
    for result in results:
        sheets.add([result])
        assert len(sheets._waiting) < PER_PAGE
    sheets.finish()
    assert len(sheets.written) == -(-1000 // PER_PAGE) and all(path.exists() for path in sheets.written)


def test_dry_runs_write_nothing_and_json_is_a_line_each(tmp_path):
    photo = _save(tmp_path / "a.jpg")
    result = _balance(photo, "-o", tmp_path / "out", "--dry-run", "--json")
    assert result.exit_code == 0 and not (tmp_path / "out").exists()
    described = json.loads(result.stdout)
    assert described["source"] == str(photo) and 0 <= described["moved"] <= described["estimated_cast"] + 1e-3


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_an_interruption_ends_at_once_with_what_was_done_listed(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    photo = _save(source / "0.jpg", (800, 1200))
    for number in range(1, 400):
        os.link(photo, source / f"{number}.jpg")
    command = [sys.executable, "-m", "lightfast.cli", "balance", str(source), "-o", str(out), "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--estimator", "gray-world"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    first = process.stdout.readline()
    assert "->" in first, process.stderr.read()
    # As a terminal does, to all processes of the command.
    os.killpg(process.pid, signal.SIGINT)
    started = time.monotonic()
    rest, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 2
    assert process.returncode == 130 and "Traceback" not in err
    listed = [first, *rest.splitlines()]
    assert f"interrupted: {len(listed)} of 400 photographs are done" in err
    written = {path.name for path in out.iterdir()}
    assert {line.split(" -> ")[0].rsplit("/", 1)[1] for line in listed} <= written
    assert not [name for name in written if name.startswith(".")]


def test_a_full_disk_leaves_nothing_hidden(tmp_path):
    _save(tmp_path / "a.png", (200, 300))

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    code = (
        "import sys; from lightfast._photographs.files import read_photo, write_photo\n"
        "try: write_photo(read_photo(sys.argv[1]), sys.argv[2])\n"
        "except ValueError as error: print(error)"
    )
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.png", out / "b.png"],
        capture_output=True,
        text=True,
        preexec_fn=limited,
    )
    assert "b.png (File too large): nothing of it was written" in done.stdout, done.stderr
    assert not list(out.iterdir())


@pytest.mark.parametrize("command", [["classify"], ["inpaint", "--box", "1,1,2,2"], ["balance"]])
def test_a_pipe_does_not_hang(tmp_path, run, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.jpg")
    code, _, err = run(*command, "pipe.jpg")
    assert code in (1, 2) and "pipe.jpg is not a file" in err


def test_clipped_white_stays_white(tmp_path):
    pixels = np.full((40, 60, 3), (150, 120, 80), np.uint8)
    pixels[:10] = 255
    pixels[10:20] = np.linspace(200, 255, 60).round()[None, :, None]
    found = lf.balance(pixels, lambda _: torch.tensor([[0.8, 0.55, 0.25]]), prior="none")
    assert (found.picture[:10] == 255).all()
    # On the way there nothing goes back: brighter stays brighter.
    assert (np.diff(found.picture[10].astype(int), axis=0) >= 0).all()
    expected = lf.Photo(pixels.astype(np.uint16) * 257).balanced(np.array(found.gains)).pixels
    assert np.abs(found.picture - expected / 257).max() <= 1
    floating = lf.balance(pixels / 255, lambda _: torch.tensor([[0.8, 0.55, 0.25]]), prior="none").picture
    assert np.abs(floating.clip(0, 1) * 255 - found.picture).max() <= 1
    white = np.full((40, 60, 3), 255, np.uint8)
    for estimator in ("illuminant", "gray-world"):
        for prior in ("auto", "none"):
            assert (lf.balance(white, estimator, prior=prior).picture == 255).all()
    black = lf.balance(np.zeros((40, 60, 3), np.uint8), prior="none")
    assert (black.picture == 0).all() and np.allclose(black.gains, 1)


def test_transparency_by_color_is_kept(tmp_path):
    pixels = _pixels()
    pixels[3:9, 4:7] = (1, 2, 3)
    Image.fromarray(pixels).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
    palette = Image.fromarray(pixels).quantize(16)
    palette.save(tmp_path / "palette.png", transparency=bytes([0, 128]) + b"\xff" * 14)
    Image.fromarray(pixels[..., 0]).save(tmp_path / "gray.png", transparency=1)
    for name in ("rgb", "palette", "gray"):
        with Image.open(tmp_path / f"{name}.png") as image:
            expected = np.asarray(image.convert("RGBA"))[..., 3]
        alpha = read_photo(tmp_path / f"{name}.png").alpha
        assert alpha is not None and np.array_equal(alpha, expected) and (expected < 255).any()


@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
def test_further_pages_and_frames_are_refused(tmp_path, suffix):
    first, second = Image.fromarray(_pixels(seed=0)), Image.fromarray(_pixels(seed=1))
    first.save(tmp_path / f"a{suffix}", save_all=True, append_images=[second])
    with pytest.raises(PhotoError, match="2 pages or frames, of which only one could be kept: split it first"):
        read_photo(tmp_path / f"a{suffix}")


def test_further_pictures_of_a_phone_are_mentioned(tmp_path):
    first, second = Image.fromarray(_pixels(seed=0)), Image.fromarray(_pixels(seed=1))
    first.save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[second])
    assert "1 further picture in the file left out" in _balance(tmp_path / "a.jpg", "-o", tmp_path / "out").output


def _segment(marker, data):
    return b"\xff" + bytes([marker]) + struct.pack(">H", len(data) + 2) + data


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF/></x:xmpmeta>'
IPTC = b"Photoshop 3.0\x008BIM\x04\x04\0\0\0\0\0\x0c\x1c\x02\x78\0\x07caption"


def test_xmp_and_iptc_are_kept(tmp_path):
    _save(tmp_path / "plain.jpg")
    content = (tmp_path / "plain.jpg").read_bytes()
    more = _segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP) + _segment(0xED, IPTC)
    (tmp_path / "a.jpg").write_bytes(content[:2] + more + content[2:])
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", XMP.decode())
    _save(tmp_path / "a.png", pnginfo=text)
    _save(tmp_path / "a.tif", tiffinfo={700: XMP, 33723: b"\x1c\x02\x78\0\x07caption"})
    _save(tmp_path / "a.webp", xmp=XMP)
    for suffix in (".jpg", ".png", ".tif", ".webp"):
        out = tmp_path / "out" / suffix[1:]
        assert _balance(tmp_path / f"a{suffix}", "-o", out, "--no-sheet").exit_code == 0
        written = (out / f"a{suffix}").read_bytes()
        assert written.count(XMP) == 1, suffix
        assert suffix not in (".jpg", ".tif") or written.count(b"caption") == 1, suffix
    read_photo(tmp_path / "a.jpg").save(tmp_path / "b.png")
    assert XMP in (tmp_path / "b.png").read_bytes()


def test_the_thumbnail_in_exif_data_has_the_new_colors(tmp_path):
    import io

    yellow = np.full((120, 160, 3), (200, 160, 60), np.uint8)
    yellow[:, 80:] = (90, 72, 27)
    small = io.BytesIO()
    Image.fromarray(yellow).save(small, "JPEG", quality=90)
    thumbnail = small.getvalue()
    # A directory with a model, and a second one with the thumbnail.
    first = struct.pack("<HHHII", 1, 0x0110, 2, 4, int.from_bytes(b"Cam\0", "little")) + struct.pack("<I", 26)
    second = struct.pack("<HHHIIHHIII", 2, 0x0201, 4, 1, 56, 0x0202, 4, 1, len(thumbnail), 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + (first + second).ljust(48, b"\0") + thumbnail
    Image.fromarray(yellow).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert _balance(tmp_path / "a.jpg", "-o", tmp_path / "out", "--prior", "none").exit_code == 0
    with Image.open(tmp_path / "out" / "a.jpg") as image:
        assert image.getexif()[0x0110] == "Cam"
        kept = image.info["exif"].removeprefix(b"Exif\0\0")
    with Image.open(io.BytesIO(kept[56:])) as image:
        colors = np.asarray(image.convert("RGB")).astype(int)
        assert image.size == (160, 120)
    assert np.ptp(colors.mean((0, 1))) < 6 < np.ptp(yellow.mean((0, 1)))


@pytest.mark.parametrize("suffix", [".webp", ".heic", ".avif"])
def test_other_kinds_are_read_and_written(tmp_path, suffix):
    if suffix == ".heic":
        pytest.importorskip("pillow_heif").register_heif_opener()
    elif suffix == ".avif":
        from PIL import features

        if not features.check("avif"):
            pytest.skip("Pillow has no AVIF here")
    exif = Image.Exif()
    exif[0x0110] = "Camera X"
    smooth = np.linspace(40, 200, 64 * 96 * 3).reshape(64, 96, 3).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / f"a{suffix}", exif=exif, quality=95)
    result = _balance(tmp_path / f"a{suffix}", "-o", tmp_path / "out", "--strength", "0")
    assert result.exit_code == 0, result.output
    with Image.open(tmp_path / "out" / f"a{suffix}") as image:
        assert image.getexif()[0x0110] == "Camera X"
        assert np.abs(np.asarray(image.convert("RGB")).astype(int) - smooth).mean() < 4


def test_webp_without_loss_stays_so(tmp_path):
    _save(tmp_path / "a.webp", lossless=True)
    read_photo(tmp_path / "a.webp").save(tmp_path / "b.webp")
    assert np.array_equal(read_photo(tmp_path / "b.webp").pixels, _pixels())


def test_a_dng_keeps_its_exif_data(data_folder, tmp_path):
    pytest.importorskip("rawpy")
    path = data_folder / "photographs" / "colorchart.dng"
    if not path.exists():
        pytest.skip("there is no colorchart.dng")
    assert _balance(path, "-o", tmp_path).exit_code == 0
    with Image.open(tmp_path / "colorchart.tif") as after:
        assert after.getexif()[0x0110] == "Canon EOS Kiss X4"
        assert after.info["icc_profile"] and 50721 not in after.getexif()


def test_help_needs_no_torch():
    code = (
        "import sys, lightfast._commands; assert not {'torch', 'numpy', 'PIL', 'rich'} & set(sys.modules), sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_balance_starts_without_what_it_does_not_need():
    code = (
        "import sys, lightfast._photographs.work as w; w.check_estimator('illuminant')\n"
        "from lightfast._photographs.cast import cast_reader; cast_reader()\n"
        "late = {'torch._dynamo', 'sympy', 'lightfast._convert', 'lightfast._certify', 'scipy', 'rawpy'}\n"
        "assert not late & set(sys.modules), late & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_photo_written_as_floating_point_is_read(tmp_path):
    import tifffile

    light = _pixels() / np.float32(255)
    tifffile.imwrite(tmp_path / "a.tif", light, photometric="rgb")
    assert _balance(tmp_path / "a.tif", "-o", tmp_path / "out").exit_code == 0
    assert read_photo(tmp_path / "out" / "a.tif").pixels.dtype == np.float32
    assert isinstance(read_photo(tmp_path / "a.tif"), Photo)


def test_scattered_dots_are_filled_at_once():
    y, x = np.mgrid[:600, :600] / 600
    picture = (60 + 120 * np.stack([x, y, 1 - x * y], 2)).astype(np.uint8)
    mask = np.random.default_rng(0).random((600, 600)) < 0.02
    started = time.process_time()
    filled = lf.fill(np.where(mask[..., None], 0, picture), mask)
    assert time.process_time() - started < 10 and len(filled.holes) > 5000
    assert np.array_equal(filled.picture[~mask], picture[~mask])
    assert np.abs(filled.picture[mask].astype(int) - picture[mask]).max() <= 2


def test_scratches_are_filled_as_well_as_by_biharmonic_inpainting():
    from skimage import data
    from skimage.restoration import inpaint_biharmonic

    picture = data.astronaut()[:200, 100:360]
    mask = np.zeros(picture.shape[:2], bool)
    for step in range(150):
        mask[20 + step : 26 + step, 40 + step : 46 + step] = True
    ours = lf.fill(picture, mask).picture[mask]
    other = 255 * inpaint_biharmonic(picture / 255, mask, channel_axis=-1)[mask]
    errors = [((found - picture[mask].astype(float)) ** 2).mean() for found in (ours, other)]
    assert errors[0] < 1.08 * errors[1], errors


def test_thin_holes_follow_light_exactly():
    generator = np.random.default_rng(0)
    light = generator.uniform(0.05, 0.5, (40, 50, 3))
    mask = np.zeros((40, 50), bool)
    mask[10:13, 5:45] = mask[20, 20] = True
    gains = np.array([1.7, 1.0, 0.4])
    plain = lf.fill(light, mask, linear=True).picture
    relit = lf.fill(light * gains, mask, linear=True).picture
    np.testing.assert_allclose(relit, plain * gains, rtol=1e-5)


def _moved(picture):
    return cast_angle(lf.balance(picture).light)


def test_good_pictures_and_their_parts_are_left_alone():
    from skimage import data

    astronaut = data.astronaut()
    assert max(map(_moved, (astronaut, data.coffee(), data.chelsea()))) < 1
    corners = [(top, left) for top in (0, 128, 256) for left in (0, 128, 256)]
    lights = [lf.balance(astronaut[top : top + 256, left : left + 256]).light for top, left in corners]
    apart = [cast_angle([a / b for a, b in zip(x, y, strict=True)]) for x in lights for y in lights]
    assert max(apart) < 3


def test_photographs_that_were_spoiled_are_left_alone(data_folder):
    names = ("kodak-02", "canon-eos-450d", "panasonic-fz5", "nikon-d40")
    assert max(_moved(data_folder / "photographs" / f"{name}.jpg") for name in names) < 1
