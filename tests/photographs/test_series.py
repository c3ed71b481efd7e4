"""Photographs that one camera took together."""

import time

import numpy as np
import pytest
import torch
from PIL import Image

import lightfast as lf
from lightfast._photographs.files import read_photo
from lightfast._photographs.series import series_lights, shot_of


def _lights(drift=0.0, count=40, noise=0.03, strangers=4, seed=0):
    """Times, true lights and estimates of them, a few of which are far off."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 3600, count))
    logs = np.stack([0.4 + drift * times / 3600, np.zeros(count), -0.3 - drift * times / 3600], 1)
    seen = logs + noise * rng.standard_normal((count, 3))
    seen[rng.choice(count, strangers, replace=False)] += (1.0, 0.0, 0.8)
    return torch.from_numpy(times), *(
        torch.nn.functional.normalize(torch.from_numpy(x).exp(), dim=1) for x in (logs, seen)
    )


def _error(lights, truth):
    ratio = torch.nn.functional.normalize(lights / truth, dim=1)
    return float((ratio.sum(1) / 3**0.5).clamp(max=1).acos().rad2deg().mean())


def test_one_light_through_estimates_of_which_some_are_far_off():
    times, truth, seen = _lights()
    for known in (times, None):
        lights, changes = series_lights(seen, known)
        assert not changes and (lights == lights[0]).all()
        assert _error(lights, truth) < 0.4 < 0.2 * _error(seen, truth)


def test_a_light_that_changes_is_followed():
    times, truth, seen = _lights(drift=0.6)
    lights, changes = series_lights(seen, times)
    assert changes and _error(lights, truth) < 0.6 * min(_error(seen, truth), _error(series_lights(seen)[0], truth))
    # In whatever order they come.
    order = torch.randperm(len(times), generator=torch.Generator().manual_seed(0))
    again, _ = series_lights(seen[order], times[order])
    torch.testing.assert_close(again, lights[order])


def test_series_follow_a_change_of_light_exactly():
    times, _, seen = _lights(drift=0.5)
    gain = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    relit = torch.nn.functional.normalize(seen * gain, dim=1)
    expected = torch.nn.functional.normalize(series_lights(seen, times)[0] * gain, dim=1)
    torch.testing.assert_close(series_lights(relit, times)[0], expected)


def test_few_photographs():
    _, _, seen = _lights()
    torch.testing.assert_close(series_lights(seen[:1])[0], seen[:1])
    both, _ = series_lights(seen[:2], torch.tensor([0.0, 9.0]))
    assert (both[0] == both[1]).all()


def test_a_thousand_photographs_take_little_time():
    times, truth, seen = _lights(drift=0.6, count=1000, strangers=100)
    start = time.process_time()
    assert _error(series_lights(seen, times)[0], truth) < 1
    assert time.process_time() - start < 5


def _save(path, light, camera="X", when=None, seed=0):
    rng = np.random.default_rng(seed)
    linear = rng.uniform(0.05, 0.6, (6, 8, 3)).repeat(5, 0).repeat(5, 1) * light
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Maker", camera
    if when is not None:
        exif.get_ifd(0x8769).update({0x9003: f"2026:05:01 10:{when // 60:02}:{when % 60:02}", 0x9291: "50"})
    encoded = 255 * lf.color.linear_to_srgb(torch.from_numpy(linear)).numpy()
    Image.fromarray(encoded.round().astype(np.uint8)).save(path, exif=exif)
    return path


def test_cameras_are_told_apart_and_times_are_read(tmp_path):
    light, other = np.array([0.9, 0.6, 0.4]), np.array([0.5, 0.7, 0.9])
    paths = [_save(tmp_path / f"{n}.png", light, "X", 10 * n, n) for n in range(4)]
    paths += [_save(tmp_path / f"y{n}.png", other, "Y", None, n) for n in range(3)]
    shots = [shot_of(read_photo(path), lf.constancy.gray_world) for path in paths]
    assert [shot.camera for shot in shots] == ["Maker X"] * 4 + ["Maker Y"] * 3
    assert shots[3].time - shots[0].time == pytest.approx(30) and shots[0].time % 1 == 0.5 and shots[4].time is None
    found = lf.balance_series(paths, "gray-world", prior="none")
    assert len({one.light for one in found[:4]}) == len({one.light for one in found[4:]}) == 1
    assert found[0].light != found[4].light and found[0].done.startswith("one light for 4 photographs: changed by")
    alone = [lf.balance(path, "gray-world", prior="none").light for path in paths]
    assert len(set(alone)) == 7
    assert isinstance(found[0].picture, lf.Photo)
    with pytest.raises(ValueError, match="7 pictures, but 2 times"):
        lf.balance_series(paths, "gray-world", times=[1.0, 2.0])
