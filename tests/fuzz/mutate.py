"""Files as accidents and enemies leave them: cut, flipped, swapped, repeated, with numbers that are too large."""

from __future__ import annotations

import json
import random
from typing import Any

__all__ = ["mutated", "mutated_json"]

_TELLING = [
    b"\x00",
    b"\xff",
    b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00",
    b"IDAT",
    b"\xff\xd9",
]


def mutated(content: bytes, randomness: random.Random) -> bytes:
    """The content after one to four accidents."""
    changed = bytearray(content)
    for _ in range(randomness.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        # Headers are where damage does most.
        end = len(changed) if randomness.random() < 0.7 else min(len(changed), 256)
        place, kind = randomness.randrange(end), randomness.randrange(6)
        length = randomness.choice((1, 2, 4, 16, 256, 4096))
        if kind == 0:
            changed[place] ^= 1 << randomness.randrange(8)
        elif kind == 1:
            changed[place : place + length] = randomness.randbytes(len(changed[place : place + length]))
        elif kind == 2:
            del changed[place:]
        elif kind == 3:
            del changed[place : place + length]
        elif kind == 4:
            changed[place:place] = changed[place : place + length]
        else:
            telling = randomness.choice(_TELLING)
            changed[place : place + len(telling)] = telling
    return bytes(changed)


_ODD: list[Any] = [
    None, True, 0, -1, 1, 7, 2**31, 2**63, 10**40, 1e308, -1e308, "", "x", "a" * 1000, [], [[]], {}, [0], ["a", "b"],
    {"a": {}}, "../../etc/passwd", "resnet110", "cerberus", "log", "srgb",
]  # fmt: skip


def mutated_json(content: bytes, randomness: random.Random) -> bytes:
    """A description whose text was damaged, or in which a value was replaced, removed, renamed or nested."""
    if randomness.random() < 0.3:
        return mutated(content, randomness)
    tree = json.loads(content)
    for _ in range(randomness.choice((1, 1, 2, 3))):
        table = tree
        while isinstance(table, dict) and table:
            key = randomness.choice(list(table))
            if isinstance(table[key], dict) and table[key] and randomness.random() < 0.8:
                table = table[key]
                continue
            kind = randomness.randrange(5)
            if kind == 0:
                del table[key]
            elif kind == 1:
                table[f"{key}x"] = table.pop(key)
            elif kind == 2:
                value: Any = table[key]
                for _ in range(randomness.choice((1, 3, 50, 2000))):
                    value = [value] if randomness.random() < 0.5 else {"a": value}
                table[key] = value
            else:
                table[key] = randomness.choice(_ODD)
            break
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b"[" * 100_000
