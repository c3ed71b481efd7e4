"""`lightfast balance`: its choices, what it says, sidecars and pages."""

import base64
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from lightfast._commands import app
from lightfast._photographs.folder import BalancedFile
from lightfast._photographs.photo import PhotoError
from lightfast._photographs.sheet import PER_HTML_PAGE, ContactSheets
from lightfast._photographs.sidecar import write_sidecar

CRS = "{http://ns.adobe.com/camera-raw-settings/1.0/}"
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"


def _save(path, color=(180, 140, 90), seed=0):
    rng = np.random.default_rng(seed)
    values = rng.uniform(0.3, 1.1, (4, 6, 1)).repeat(10, 0).repeat(10, 1) * np.array(color)
    Image.fromarray(values.round().astype(np.uint8)).save(path)
    return path


def _balance(*arguments):
    return CliRunner().invoke(app, ["balance", *map(str, arguments)])


def _lines(result):
    assert result.exit_code == 0, result.output + repr(result.exception)
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_light_by_hand_and_by_a_spot(tmp_path):
    photo, out = _save(tmp_path / "a.png"), tmp_path / "out"
    (hand,) = _lines(_balance(photo, "-o", out, "--temperature", 4000, "--tint", 5, "--json"))
    assert (hand["temperature"], hand["tint"]) == pytest.approx((4000, 5), abs=0.1)
    assert hand["spread"] is None and hand["done"].startswith("set by hand")
    (spot,) = _lines(_balance(photo, "-o", out, "--pick", "15,15,3", "--overwrite", "--json", "--no-sheet"))
    gray = np.asarray(Image.open(out / "a.png"))[15, 15].astype(int)
    assert np.ptp(gray) <= 1 and spot["done"] == "the spot made gray"
    said = _balance(photo, "-o", tmp_path / "more", "--pick", "15,15", "--no-sheet").output
    assert re.search(r"a\.png -> \S+a\.png  \d+ K, tint [+-]\d+, the spot made gray", said)


def test_a_reference_gives_its_light_to_the_others(tmp_path):
    right = _save(tmp_path / "right.png", (150, 150, 150))
    wrong = _save(tmp_path / "wrong.png")
    arguments = ["--estimator", "gray-world", "--no-sheet", "--json"]
    (done,) = _lines(_balance(wrong, "-o", tmp_path / "out", "--reference", right, *arguments))
    means = np.asarray(Image.open(tmp_path / "out" / "wrong.png")).reshape(-1, 3).mean(0)
    assert np.ptp(means) < 2 and done["done"].startswith("as the reference")


def test_a_series_has_one_light(tmp_path):
    photos = [_save(tmp_path / f"{n}.png", (180 + 2 * n, 140, 90), n) for n in range(5)]
    (tmp_path / "bad.png").write_bytes(b"nothing")
    arguments = ["-o", tmp_path / "out", "--estimator", "gray-world", "--prior", "none", "--json", "--no-sheet"]
    result = _balance(*photos, tmp_path / "bad.png", "--series", *arguments)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1 and "1 of 6 files could not be balanced" in result.stderr
    good = [line for line in lines if "error" not in line]
    assert len(good) == 5 and len({tuple(line["light"]) for line in good}) == 1
    assert all(line["done"].startswith("one light for 5 photographs") for line in good)


def test_contradictions_are_answered_with_a_sentence(tmp_path):
    photo = _save(tmp_path / "a.png")
    for arguments, sentence in [
        (["--temperature", 5000, "--series"], "temperature and tint and series each say what the light is"),
        (["--pick", "1,1", "--mixed"], "pick and mixed each say"),
        (["--pick", "here"], "a spot is X,Y or X,Y,R in pixels"),
        (["--temperature", 5000, "--estimator", "gray-world"], "nothing for --estimator to estimate"),
        (["--sidecar"], "sidecars are for camera raw files, and there is none"),
        (["--sidecar", "--mixed"], "a sidecar has one white balance"),
        (["--sheet", "a.html", "--no-sheet"], "contradict each other"),
        (["--sheet", "a.pdf"], "should end in .html, .jpg or .png"),
        (["--prior", "maybe"], "the prior is 'auto' or 'none'"),
    ]:
        result = _balance(photo, "-o", tmp_path / "out", *arguments)
        assert result.exit_code != 0 and sentence in str(result.exception) + result.output, arguments
    assert _balance(photo, "-o", tmp_path / "out", "--reference", tmp_path / "none.png").exit_code == 1


def test_a_page_with_sliders_needs_nothing_else(tmp_path):
    for n, name in enumerate(["a&b.png", "<i>.png"]):
        _save(tmp_path / name, seed=n)
    page = tmp_path / "sheets" / "page.html"
    light = ("--temperature", 5000)
    result = _balance(tmp_path / "a&b.png", tmp_path / "<i>.png", "-o", tmp_path / "out", "--sheet", page, *light)
    assert result.exit_code == 0 and f"contact sheet: {page}" in result.output
    text = page.read_text()
    assert not (tmp_path / "out" / "contact-sheet.jpg").exists()
    assert text.count('type="range"') == 2 and "a&amp;b.png" in text and "&lt;i&gt;.png" in text and "<i>" not in text
    assert not re.search(r"(src|href)=[\"'](?!data:)", text), "nothing is loaded from elsewhere"
    images = [base64.b64decode(found) for found in re.findall(r"base64,([^\"]+)\"", text)]
    assert len(images) == 4 and all(content.startswith(b"\xff\xd8") for content in images)
    again = _balance(tmp_path / "a&b.png", "-o", tmp_path / "other", "--sheet", page, *light)
    assert again.exit_code == 0 and (tmp_path / "sheets" / "page-2.html").exists() and page.read_text() == text


def test_pages_with_sliders_are_not_endless(tmp_path):
    sheets = ContactSheets(tmp_path / "sheet.html", lambda path: path.exists())
    one = BalancedFile(tmp_path / "a.jpg", tmp_path / "b.jpg", before=b"1", after=b"2")
    sheets.add([one] * (2 * PER_HTML_PAGE + 1))
    sheets.finish()
    assert [path.name for path in sheets.written] == ["sheet.html", "sheet-2.html", "sheet-3.html"]


@pytest.mark.slow
def test_a_page_is_used_with_the_keyboard(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    import shutil

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("there is no Chromium on this system")
    page_path = tmp_path / "page.html"
    _balance(_save(tmp_path / "a.png"), "-o", tmp_path / "out", "--temperature", 4000, "--sheet", page_path)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto(page_path.as_uri())
        page.keyboard.press("Tab")
        for _ in range(10):
            page.keyboard.press("ArrowRight")
        at = page.eval_on_selector(".pair", "pair => getComputedStyle(pair).getPropertyValue('--at')")
        wide = page.evaluate("document.documentElement.scrollWidth")
        browser.close()
    assert at == "60%" and wide <= 390


def _settings(path):
    (description,) = ET.parse(path).getroot().iter(f"{RDF}Description")
    return {name.removeprefix(CRS): value for name, value in description.attrib.items() if name.startswith(CRS)}


def test_a_sidecar_says_white_balance_and_nothing_else(tmp_path):
    write_sidecar(tmp_path / "a.xmp", 5214.4, 7.6)
    assert _settings(tmp_path / "a.xmp") == {"WhiteBalance": "Custom", "Temperature": "5214", "Tint": "+8"}
    write_sidecar(tmp_path / "a.xmp", 900.0, -400.0)
    assert _settings(tmp_path / "a.xmp") == {"WhiteBalance": "Custom", "Temperature": "2000", "Tint": "-150"}


def test_a_sidecar_that_is_there_keeps_what_else_it_says(tmp_path):
    path = tmp_path / "a.xmp"
    path.write_text(
        '<x:xmpmeta xmlns:x="adobe:ns:meta/"><!-- mine --><rdf:RDF '
        'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="" '
        'xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/" '
        'xmp:Rating="4" crs:Exposure2012="+0.50"><crs:Temperature>3000</crs:Temperature></rdf:Description>'
        "</rdf:RDF></x:xmpmeta>"
    )
    write_sidecar(path, 6000, 3)
    assert _settings(path) == {"Exposure2012": "+0.50", "WhiteBalance": "Custom", "Temperature": "6000", "Tint": "+3"}
    text = path.read_text()
    assert 'xmp:Rating="4"' in text and "<!-- mine -->" in text and "3000" not in text
    path.write_text("no xml")
    with pytest.raises(PhotoError, match=r"a\.xmp is no XMP file"):
        write_sidecar(path, 6000, 3)


@pytest.mark.slow
def test_sidecars_of_raw_files(data_folder, tmp_path):
    photo = tmp_path / "chart.dng"
    photo.write_bytes((data_folder / "photographs" / "colorchart.dng").read_bytes())
    before = photo.read_bytes()
    jpeg = _save(tmp_path / "a.jpg")
    result = _balance(tmp_path, "--sidecar", "--temperature", 4100, "--tint", 12, "-o", tmp_path / "out")
    assert result.exit_code == 0 and "1 photograph left out, since sidecars are for camera raw" in result.output
    assert {path.name for path in tmp_path.iterdir()} == {"chart.dng", "a.jpg", "chart.xmp"} and jpeg.exists()
    assert _settings(tmp_path / "chart.xmp") == {"WhiteBalance": "Custom", "Temperature": "4100", "Tint": "+12"}
    assert photo.read_bytes() == before
    kept = _balance(photo, "--sidecar", "--temperature", 5000)
    assert "kept" in kept.output and _settings(tmp_path / "chart.xmp")["Temperature"] == "4100"
    (found,) = _lines(_balance(photo, "--sidecar", "--overwrite", "--json"))
    assert _settings(tmp_path / "chart.xmp")["Temperature"] == str(round(found["temperature"]))
    assert 2000 < found["temperature"] < 12000 and abs(found["tint"]) < 60
    (half,) = _lines(_balance(photo, "--sidecar", "--overwrite", "--json", "--strength", 0))
    shot = float(_settings(tmp_path / "chart.xmp")["Temperature"])
    assert half["temperature"] == found["temperature"] and shot != round(found["temperature"]), "as the camera had it"
