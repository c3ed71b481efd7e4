"""Rules of sums, products with constants, and choices between two values, element by element."""

from __future__ import annotations

import torch

from lightfast._response.call import CENTER, Call, moves
from lightfast._response.registry import agree, rule
from lightfast._response.value import Constant, NoResponse, Response, align, settle


@rule("add", "sub", "rsub")
def _add(call: Call) -> Response:
    rank, space = len(call.shapes), call.space
    first, second = ("other", "self") if call.name == "rsub" else ("self", "other")
    sign = 1 if call.name == "add" else -1
    a, b = align(call[first], rank, space), align(call[second], rank, space) * (sign * call["alpha"])
    return call.wrap(settle(a + b, a.abs() + b.abs(), space))


@rule("neg")
def _negate(call: Call) -> Response:
    value = call.response("self")
    return Response(value.shape, -value.moving)


@rule("mul", "div")
def _multiply(call: Call) -> Response:
    a, b = call["self"], call["other"]
    if call.name == "div" and (moves(b) or call.arguments.get("rounding_mode") is not None):
        raise NoResponse("division by {value}", CENTER)
    if call.name == "mul" and moves(b) and not moves(a):
        a, b = b, a
    if isinstance(b, Response):
        by = "another with response" if b.map is not None else "one that varies"
        raise NoResponse(f"{'product' if call.name == 'mul' else 'quotient'} of {{value}} and {by}", CENTER)
    factor = b.tensor.double() if isinstance(b, Constant) else torch.tensor(float(b), dtype=torch.float64)
    exact = align(a, len(call.shapes), call.space)
    return call.wrap(exact * factor if call.name == "mul" else exact / factor)


@rule("where")
def _where(call: Call) -> Response:
    if "self" not in call.arguments:
        raise NoResponse("positions of what is not zero, in {value}", CENTER)
    condition, rank, space = call["condition"], len(call.shapes), call.space
    a, b = align(call["self"], rank, space), align(call["other"], rank, space)
    if isinstance(condition, Constant):
        return call.wrap(torch.where(condition.tensor, a, b))
    common = agree(call["self"], call["other"], rank, space)
    if moves(condition) or common is None:
        raise NoResponse(
            "choice, by a condition that depends on the input, between values of different response", CENTER
        )
    return call.wrap(common)


@rule("masked_fill")
def _masked_fill(call: Call) -> Response:
    if not isinstance(call["mask"], Constant) or moves(call["value"]):
        raise NoResponse("filling of {value} where a mask says that depends on the input", CENTER)
    return call.wrap(align(call["self"], len(call.shapes), call.space).masked_fill(call["mask"].tensor, 0))


@rule("maximum", "minimum")
def maximum(call: Call) -> Response:
    common = agree(call["self"], call["other"], len(call.shapes), call.space)
    if common is None:
        raise NoResponse(f"{call.name} of two values of different response", CENTER)
    return call.wrap(common)


@rule("eq", "ne", "lt", "le", "gt", "ge")
def _compare(call: Call) -> Response:
    common = agree(call["self"], call["other"], len(call.shapes), call.space)
    if common is None:
        raise NoResponse("comparison of two values of different response", CENTER)
    return Response(call.shapes)
