"""The kernels of centring, in Triton's interpreter: the GPU's code on the CPU, in a process of its own."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from lightfast.nn._center_act_triton import Features, suits_centring, suits_joining

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

PREPARED = """
import torch
import torch.nn.functional as F
from lightfast.functional import center, group_pool
from lightfast.nn import _center_act, _center_act_triton as kernels
from lightfast.nn._center_act import center_act, center_relu_halve

torch.manual_seed(0)
known = (torch.float32, torch.bfloat16)
kernels.suits = lambda x, *_: x.dim() == 4 and x.dtype in known and not _center_act._native.observed(x)
LAYOUTS = torch.contiguous_format, torch.channels_last


def spelled_out(u, bias, groups, slope, halved):
    v = u[:, :bias.shape[0]] + bias.reshape(-1, *[1] * (u.dim() - 2))
    z = F.leaky_relu(center(v, groups), slope)
    return F.max_pool2d(z, 2) if halved else z, group_pool(v, groups).flatten(1)


def compare(shape, features, groups, slope, layout, halved=False, cut=False, dtype=torch.float32):
    u, bias = torch.randn(shape), torch.randn(features)
    u[:, features:] = 0
    u = u.to(dtype).contiguous(memory_format=layout) if len(shape) == 4 else u.to(dtype)
    offset, results = torch.randn(shape[0], groups), []
    size = [n // 2 for n in shape[2:]] if halved else shape[2:]
    weights = torch.randn(shape[0], features, *size), torch.randn(shape[0], groups)
    for exact in (False, True):
        given = [x.to(torch.float64 if exact else x.dtype).clone().requires_grad_() for x in (u, bias, offset)]
        x, b, o = given
        if exact:
            z, level = spelled_out(x, b, groups, slope, halved)
            level = level + o
        elif halved:
            z, level = center_relu_halve(x, groups, b, o)
        else:
            z, level = center_act(x, groups, slope, b, o, cut)
        if not exact:
            assert z.dtype == dtype and not z[:, features:].any() and z.shape[1] == (features if cut else shape[1])
            assert len(shape) == 2 or z.is_contiguous(memory_format=LAYOUTS[0] if cut else layout)
        z = z[:, :features]
        loss = (z * weights[0]).sum() + (level * weights[1]).sum()
        gradients = torch.autograd.grad(loss, given)
        assert exact or (gradients[0].dtype == dtype and not gradients[0][:, features:].any())
        results.append([r.double() for r in (z, level, *gradients)])
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*results, atol=tolerance, rtol=tolerance)
    with torch.no_grad():
        again = center_relu_halve(u, groups, bias, offset) if halved else center_act(u, groups, slope, bias, offset)
    torch.testing.assert_close(again[0][:, :features].double(), results[0][0])
    torch.testing.assert_close(again[1].double(), results[0][1])


"""

CENTRING = """
CENTRED = (0.0, 3, 2, (3, 4)), (0.2, 1, 0, (5, 7)), (1.0, 3, 0, (1, 1)), (0.2, 3, 1, (9, 8))
for layout in LAYOUTS:
    for slope, groups, idle, size in CENTRED:
        for cut in (False, True):
            compare((3, 15 + idle, *size), 15, groups, slope, layout, cut=cut)
compare((5, 16), 15, 3, 0.0, None)
compare((5, 15), 15, 3, 0.2, None, cut=True)
compare((2, 16, 5, 3), 15, 3, 0.0, LAYOUTS[1], dtype=torch.bfloat16)
u = torch.randn(2, 20, 4, 6)[:, ::2, :, 1:]
torch.testing.assert_close(center_act(u, 2, 0.2), center_act(u.contiguous(), 2, 0.2))
"""

HALVING = """
HALVED = (3, 0, (2, 2)), (3, 1, (4, 6)), (1, 0, (5, 4)), (3, 0, (4, 7)), (3, 2, (5, 7)), (1, 1, (2, 9))
for layout in LAYOUTS:
    for groups, idle, size in HALVED:
        compare((3, 6 + idle, *size), 6, groups, 0.0, layout, halved=True)
compare((2, 16, 6, 4), 15, 3, 0.0, LAYOUTS[1], halved=True, dtype=torch.bfloat16)
u = torch.randn(2, 6, 4, 4)
u[0, 0, 1, 1] = float("nan")
z, _ = center_relu_halve(u, 3)
assert z[0, :2].isnan().all() and not z[0, 2:].isnan().any() and not z[1].isnan().any()
"""

IN_PARTS = "kernels._TILE, kernels._WHOLE = 64, 0\n"

GRADIENTS = """
u, bias = torch.randn(2, 8, 4, 5), torch.randn(6)
for halved in (False, True):
    results = []
    for by_kernels in (True, False):
        x, b = u.clone().requires_grad_(), bias.clone().requires_grad_()
        if by_kernels:
            z, level = center_relu_halve(x, 3, b) if halved else center_act(x, 3, 0.2, b)
        else:
            z, level = spelled_out(x, b, 3, 0.0 if halved else 0.2, halved)
        first = torch.autograd.grad(z.pow(3).sum() + level.square().sum(), (x, b), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, b))
        results.append([*first, *second])
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
by_image = torch.func.vmap(lambda u: center_act(u[None], 3, 0.2, bias)[0][0])(u)
torch.testing.assert_close(by_image, center_act(u, 3, 0.2, bias)[0])
"""

JOINING = """
from unittest import mock
from lightfast.models.cerberus import _join
for layout in LAYOUTS:
    for size in [(1, 1), (2, 3), (5, 7), (64, 40)]:
        images = (3 * torch.randn(2, 3, *size) + 20).contiguous(memory_format=layout)
        wanted = _join(images.double(), 3)
        joined, offset = kernels.join(images, torch.float32)
        assert joined.shape[1] == 6 and joined.is_contiguous(memory_format=layout)
        torch.testing.assert_close((joined.double(), offset.double()), wanted[:2], atol=1e-5, rtol=1e-5)
        with mock.patch.object(kernels, "padded_width", lambda features, *_: 8):
            joined, offset = kernels.join(images, torch.bfloat16)
        assert joined.is_contiguous(memory_format=torch.channels_last)
        assert joined.shape[1] == 8 and not joined[:, 6:].any()
        torch.testing.assert_close(joined[:, :6].double(), wanted.map, atol=1e-4, rtol=2**-7)
images = torch.zeros(1, 3, 8, 8)
images[0, 0, 0, 0], images[0, 1, 0, 0] = -300, 300
torch.testing.assert_close(kernels.join(images, torch.float32)[1], _join(images.double(), 3).offset.float())
"""

NETWORKS = """
import copy
import lightfast as lf
from lightfast import models
from lightfast.nn import _center_act, _lifted
from lightfast.models import cerberus

# What is done for a GPU is done on the CPU.
_lifted.gets_idle_channels = _center_act.gets_idle_channels = lambda z: True
_lifted.padded_width = kernels.padded_width = cerberus.padded_width = lambda features, *_: -(-features // 8) * 8
names = {
    "cerberus": dict(size=32, channels=(4, 6, 9, 12), hidden=15),
    "cerberus-local": dict(channels=(4, 7, 9, 12), hidden=15),
}
for name, options in names.items():
    for constrained in (True, False):
        network = models.create(name, 3, constrained=constrained, **options)
        images, weights = torch.randn(2, 3, 32, 32), torch.randn(2, 3)
        results = []
        for exact in (False, True):
            twin = copy.deepcopy(network).to(torch.float64 if exact else torch.float32)
            answer = twin(images.to(torch.float64 if exact else torch.float32))
            gradients = torch.autograd.grad((answer * weights).sum(), list(twin.parameters()))
            results.append([x.double() for x in (answer, *gradients)])
            with torch.no_grad():
                fused = lf.fuse(twin)(images.to(answer.dtype))
            torch.testing.assert_close(fused, answer, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)
"""


def run(program):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "LIGHTFAST_NATIVE": "0"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cases", [CENTRING, HALVING], ids=["centring", "halving"])
@pytest.mark.parametrize("parts", ["", IN_PARTS], ids=["whole images", "in parts"])
def test_the_formula_with_its_gradients(cases, parts):
    run(PREPARED + parts + cases)


def test_gradients_of_gradients_and_transforms_go_another_way():
    run(PREPARED + GRADIENTS)


def test_images_are_joined_with_their_mean():
    run(PREPARED + JOINING)


def test_networks_with_idle_channels():
    run(PREPARED + NETWORKS)


def test_the_kernels_stay_away_from_the_cpu():
    assert not suits_centring(torch.zeros(2, 6, 4, 4), Features(6, 3))
    assert not suits_joining(torch.zeros(2, 3, 4, 4))
