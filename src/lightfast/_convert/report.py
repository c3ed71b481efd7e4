"""What was replaced in a conversion, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from lightfast._certify import Certificate


@dataclass(frozen=True)
class Change:
    """One replacement: the module or operation, what stands there now, and why.

    `kept` says that the operation is the plain one, on centered inputs.
    """

    path: str
    before: str
    after: str
    why: str
    kept: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.before} -> {self.after} ({self.why})"


@dataclass
class Conversion:
    """The report of :func:`~lightfast.convert`. `print` it for a summary; `changes` has every replacement.

    Args:
        changes: in the order of the network.
        widths: parameters whose shape changed, with the old and the new shape.
        certificate: the proof, in evaluation mode.
        training_certificate: the proof in training mode.
        notes: what a user should know.
        outputs: what each output was taken for, and how to change that.
    """

    changes: list[Change] = field(default_factory=list)
    widths: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    certificate: Certificate | None = None
    training_certificate: Certificate | None = None
    notes: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    @property
    def kept(self) -> list[Change]:
        """What was left as it is, on centered inputs."""
        return [change for change in self.changes if change.kept]

    def __str__(self) -> str:
        kinds = Counter((change.before, change.after) for change in self.changes)
        lines = [f"  {count:4d} x {before} -> {after}" for (before, after), count in kinds.most_common()]
        if self.widths:
            lines.append(f"  {len(self.widths)} parameters have new widths")
        lines += [f"  {decided}" for decided in self.outputs]
        lines += [f"  note: {note}" for note in self.notes]
        verdict = str(self.certificate).split("\n")[0] if self.certificate is not None else "not certified"
        return "\n".join([verdict, *lines])
