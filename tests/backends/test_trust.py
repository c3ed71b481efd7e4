"""A backend is believed after it has shown itself right: the check passes what is right, and finds what is wrong."""

import ctypes
import shutil
import subprocess

import pytest
import torch

from lightfast._backends.native import build
from lightfast._backends.native.backend import Native, Passes
from lightfast._backends.trust import EVERY_KIND, verdict, verdict_on_passes

# Of each library, the lines that are broken: the file, what stands there, what is put in its place, and what operations
# are wrong then. They are small mistakes, such as one number of a map, or one kind of it.
MISTAKES = {
    "contiguous": [
        ("norm_act.h", "var[i] = spread / positions;", "var[i] = spread / (positions + 1);", {"moments"}),
        (
            "norm_act.h",
            "const float q = a * LOAD(x[p]) + d + LOAD(y[p]);",
            "const float q = a * LOAD(x[p]) + d + LOAD(y[p > 0 ? p - 1 : 0]);",
            {"apply"},
        ),
        ("norm_act.h", "b += dq * (LOAD(x[p]) - middle);", "b += dq * LOAD(x[p]);", {"backward_moments"}),
        ("norm_act.h", "side[p] = STORE(dq + e);", "side[p] = STORE(dq - e);", {"backward_apply"}),
        ("norm_act.h", "s_mean[c] = other / positions;", "s_mean[c] = other;", {"infer"}),
        ("center_act.h", "places[y * (width / 2) + x] = right", "places[y * (width / 2) + x] = left", {"halve"}),
        (
            "center_act.h",
            "if (width % 2) up[width - 1] = down[width - 1] = STORE(e);",
            "if (width % 2) up[width - 1] = STORE(e), down[width - 1] = 0;",
            {"halve_backward"},
        ),
        ("center_act.h", "average = total / positions - o;", "average = total / positions;", {"join"}),
        ("projection.h", "? share : 0, excess", "? 0 : share, excess", {"project_rows"}),
        ("projection.h", "own ? -share[p] : 0", "own ? share[p] : 0", {"project_columns"}),
    ],
    "channels last": [
        ("norm_act.h", "TILE(j) sums[j] += LOAD(y[start + j]);", "TILE(j) sums[j] = LOAD(y[start + j]);", {"moments"}),
        ("norm_act.h", "repeat(shift + n * features, d,", "repeat(shift, d,", {"apply"}),
        ("norm_act.h", "            a[j] += dq;", "            a[j] += j ? dq : 0;", {"backward_moments"}),
        (
            "norm_act.h",
            "side[start + j] = STORE(dq + e[j]);",
            "side[start + j] = STORE(dq + e[0]);",
            {"backward_apply"},
        ),
        ("norm_act.h", "gather(d, s_mean,", "gather(a, s_mean,", {"infer"}),
        ("center_act.h", "from_right = lower[right + c] + 1", "from_right = lower[left + c] + 1", {"halve"}),
        ("center_act.h", "place + 1, dz[in + c])", "place + 1, dz[in + (c & ~15)])", {"halve_backward"}),
        ("center_act.h", "repeat(average, totals, 3, LANES);", "repeat(average, totals, 3, LANES - 1);", {"join"}),
        (
            "projection.h",
            "for (long p = 0; p < pieces; p++)",
            "for (long p = pieces > 1; p < pieces; p++)",
            {"project_rows"},
        ),
        ("projection.h", "const long step = last ? length : 1;", "const long step = 1;", {"project_columns"}),
    ],
    "bfloat16": [
        (
            "library.c",
            '#define STORE(x) to_bfloat16(x)\n#include "norm_act.h"',
            '#define STORE(x) to_bfloat16((x) * 1.02f)\n#include "norm_act.h"',
            {"apply", "backward_apply", "infer", "center", "halve", "halve_backward", "join"},
        ),
    ],
    "not a number": [
        (
            "norm_act.h",
            "        shift_image(mean, s ? s_mean : NULL,",
            "        if (n == 2) mean[0] = NAN;\n        shift_image(mean, s ? s_mean : NULL,",
            {"infer", "center"},
        ),
    ],
}
# They are made of the passes above, so that what is wrong in these may or may not show in them.
WHOLE = {"norm_act", "norm_act_backward", "center_backward"}
PARTS = {"moments", "apply", "backward_moments", "backward_apply", "infer", "center"}


def compiled(folder, changes):
    """The library with these lines changed, by whatever compiler there is."""
    command = build._compiler()
    if command is None:
        pytest.skip("there is no C compiler here")
    for path in [*build.SOURCES.glob("*.h"), *build.SOURCES.glob("*.c")]:
        shutil.copy(path, folder)
    for name, old, new, _ in changes:
        path = folder / name
        text = path.read_text()
        assert old in text, f"{name} has no such line any more: {old}"
        path.write_text(text.replace(old, new, 1))
    library = folder / "broken.so"
    subprocess.run(
        [*command, "-O1", "-fPIC", "-shared", str(folder / "library.c"), "-lm", "-o", str(library)], check=True
    )
    return ctypes.CDLL(str(library))


def test_what_is_right_is_believed(passes):
    before = torch.random.get_rng_state()
    assert verdict_on_passes(passes.library) == {}
    assert torch.equal(torch.random.get_rng_state(), before), "the random numbers of the caller are left as they are"


@pytest.mark.parametrize("kind", MISTAKES)
def test_every_mistake_is_found(kind, tmp_path):
    refused = verdict_on_passes(compiled(tmp_path, MISTAKES[kind]))
    wrong = set().union(*(operations for *_, operations in MISTAKES[kind]))
    assert wrong <= set(refused)
    assert set(refused) <= wrong | WHOLE | PARTS
    assert all(" of the numbers are wrong" in why for why in refused.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", [change for changes in MISTAKES.values() for change in changes], ids=lambda change: change[1][:40]
)
def test_every_mistake_is_found_by_itself(mistake, tmp_path):
    passes = Passes(compiled(tmp_path, [mistake]), {})
    refused = set(verdict(Native(passes), torch.device("cpu"), EVERY_KIND))
    assert mistake[-1] <= refused <= mistake[-1] | WHOLE | ({"center"} if mistake[-1] == {"infer"} else set())


def test_a_single_mistake_is_named_alone(tmp_path):
    """And nothing else is refused because of it."""
    (mistake,) = [change for change in MISTAKES["contiguous"] if change[-1] == {"halve"}]
    refused = verdict_on_passes(compiled(tmp_path, [mistake]))
    assert set(refused) == {"halve"} and "features, contiguous_format" in refused["halve"]


def test_of_some_operations_alone(passes):
    """A verdict can be asked for piecewise, and a backend that gives other shapes is refused."""

    class Wrong(Native):
        def join(self, images, dtype):
            joined, offset = super().join(images, dtype)
            return joined, offset[:, :2]

        def center(self, *given):
            z, level = super().center(*given)
            return z, 2 * level

    wrong, cpu = Wrong(Passes(passes.library, {})), torch.device("cpu")
    assert set(verdict(wrong, cpu, EVERY_KIND, {"join"})) == {"join"}
    assert "shape" in verdict(wrong, cpu, EVERY_KIND, {"join"})["join"]
    assert set(verdict(wrong, cpu, EVERY_KIND)) == {"join", "center"}
