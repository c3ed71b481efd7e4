"""The training loop: any task, any device, many processes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightfast._experiments.engine import processes
from lightfast._experiments.engine.average import model_tensors
from lightfast._experiments.engine.checkpoint import CheckpointError, load_checkpoint, read_header, save_checkpoint
from lightfast._experiments.engine.interrupt import Interrupted, listening
from lightfast._experiments.engine.lock import holding
from lightfast._experiments.engine.log import Display, LogFile
from lightfast._experiments.engine.order import Order
from lightfast._experiments.engine.recipe import Recipe
from lightfast._experiments.engine.schedule import learning_rate
from lightfast._experiments.engine.step import GraphedStep, Step
from lightfast._experiments.engine.task import LazyTask, Task

__all__ = ["CHECKPOINT", "Diverged", "Job", "seconds_before", "train", "train_many"]

OnLog = Callable[[int, Mapping[str, float]], None]

CHECKPOINT = "checkpoint.safetensors"
"""The name of the checkpoint in a run's folder."""

_SAVE_SECONDS = 600.0
"""A checkpoint is also written when the last one is so old, however slow the steps are."""

_FREE_ON_RESUME = {"log_every", "checkpoint_every", "graph", "compile", "accumulate"}


class Diverged(RuntimeError):
    """The loss or the weights are no longer finite, so training was stopped."""


@dataclass(frozen=True)
class Job:
    """One training among several: see :func:`train`."""

    model: nn.Module
    task: Task
    recipe: Recipe
    out: Path | None = None
    resume: bool = False
    on_log: OnLog | None = None
    name: str = "training"

    @property
    def checkpoint(self) -> Path | None:
        """Where its checkpoint is, or will be."""
        return None if self.out is None else Path(self.out) / CHECKPOINT


def train(
    model: nn.Module,
    task: Task,
    recipe: Recipe,
    out: Path | None = None,
    *,
    resume: bool = False,
    device: torch.device | None = None,
    progress: bool = True,
    on_log: OnLog | None = None,
) -> nn.Module:
    """Train `model` in place.

    A plain `python` is one process with one device. `torchrun` starts many, on many machines too, which share each
    batch and its batch statistics. To rounding, they do what one process does with the same batch; augmentation and
    dropout are drawn for each micro-batch, so they are the same where there are as many of those.

    Args:
        model: what to train. It is moved to the device.
        task: what on.
        recipe: how.
        out: folder for the checkpoint and the logs, one that all machines see; None to write nothing. One training at a
            time writes to it.
        resume: go on from the checkpoint in `out`, if there is one. On a CPU the result is, bit by bit, that of a run
            that was never interrupted.
        device: where; by default this process's GPU, if there is one.
        progress: show a progress bar on the terminal.
        on_log: called with the number of steps done and the mean values since the last call, at each log line.

    Returns:
        `model`, in evaluation mode, with averaged weights if the recipe has `ema`.

    Raises:
        Diverged: the loss or a weight became NaN or infinite; the checkpoint in `out` is from before.
        CheckpointError: `out` holds a run already and `resume` is off, or a checkpoint that does not fit.
        FolderInUse: another training writes to `out`.
        Interrupted: Ctrl-C or SIGTERM; the checkpoint in `out` is of the step before.
        ProcessLost: another process of this training has ended.
    """
    return train_many([Job(model, task, recipe, out, resume, on_log)], device=device, progress=progress)[0]


def train_many(jobs: Sequence[Job], *, device: torch.device | None = None, progress: bool = True) -> list[nn.Module]:
    """Train several models: side by side where they all have CUDA graphs, one after the other elsewhere.

    Side by side, each has its own graph and stream: a small network leaves room on the device for others. Tasks whose
    data is one tensor on the device share its memory. If some diverge, the others finish before the error is raised.
    Dropout layers of models side by side draw from one generator, in an order that only the device knows; what is drawn
    from the task's generator is the same as alone.

    Args:
        jobs: what to train, each with its own model, task, recipe and folder.
        device: where; by default this process's GPU, if there is one.
        progress: show a progress bar for each on the terminal.

    Returns:
        The trained models, as :func:`train` returns them.
    """
    device = processes.choose_device() if device is None else device
    failures: list[Diverged] = []
    with processes.together(), _own_randomness(device), Display(progress and processes.is_main()) as display:
        processes.join(device)
        graphed = all(_can_graph(job, device) for job in jobs)
        for side_by_side in [jobs] if graphed else [[job] for job in jobs]:
            with ExitStack() as stack:
                runs = [stack.enter_context(_started(job, device, display)) for job in side_by_side]
                with listening() as told:
                    failures += _advance_in_turns(runs, told)
    if failures:
        raise failures[0]
    return [job.model.eval() for job in jobs]


def seconds_before(jobs: Sequence[Job]) -> float:
    """How long jobs that are trained together, and resumed, have been trained before: the longest of them."""
    kept = [job.checkpoint for job in jobs if job.resume and job.checkpoint is not None and job.checkpoint.exists()]
    return max((read_header(path)["seconds"] for path in kept), default=0.0)


def _advance_in_turns(runs: Sequence[_Run], told: Callable[[], int]) -> list[Diverged]:
    """A step of each run, again and again, until all have finished or diverged, or the process is told to stop."""
    failures: list[Diverged] = []
    active = list(runs)
    while active:
        if number := told():
            raise Interrupted("; ".join(run.stop() for run in active), number)
        for run in list(active):
            try:
                if not run.done:
                    run.advance()
                else:
                    run.finish()
                    active.remove(run)
            except Diverged as error:
                failures.append(error)
                active.remove(run)
    return failures


class _Run:
    """One training in progress."""

    def __init__(self, job: Job, device: torch.device, display: Display) -> None:
        self.job, self.recipe, self.device, self.display = job, job.recipe, device, display
        self.step, self.logged, self.seconds = 0, 0, 0.0
        self.checkpoint = job.checkpoint
        if self.checkpoint is not None and self.checkpoint.exists() and not job.resume:
            raise CheckpointError(
                f"{self.checkpoint.parent} holds a training run already: go on with it by --resume, name another "
                f"folder with --out, or delete {self.checkpoint.name} there to start from the beginning"
            )
        self.saved = time.monotonic()
        self.stream = torch.cuda.Stream(device) if _can_graph(job, device) else None
        model = job.model.to(device)
        if self.recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        model.train()
        processes.copy_from_main(model_tensors(model).values())
        job.task.to(device)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with self._on_stream():
            self.work = Step(model, job.task, self.recipe, device, capturable=self.stream is not None)
            if self.checkpoint is not None and self.checkpoint.exists():
                self._resume(self.checkpoint)
            self.order = self._make_order()
            self.graph = None if self.stream is None else GraphedStep(self.work, self.order, self.stream)
        self.inputs = self._inputs() if self.graph is None else iter(())
        self.started = time.monotonic() - self.seconds
        self.log_file = LogFile(Path(job.out), self.step) if job.out and processes.is_main() else None
        self.bar = display.add(job.name, self.recipe.steps, self.step)

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return self.step == self.recipe.steps

    def advance(self) -> None:
        """One step, then log and save if it is time."""
        with self._on_stream():
            self.work.prepare(self.step)
            if self.graph is not None:
                self.graph.run(self.step)
            else:
                seeds = self.order.seeds(self.step)
                self.work.run([next(self.inputs) for _ in seeds], seeds)
            self.step += 1
            self.display.advance(self.bar, self.step)
            if self.step % self.recipe.log_every == 0 or self.done:
                self._log()
            if self.checkpoint is not None and self._save_is_due():
                self._save(self.checkpoint)

    def stop(self) -> str:
        """Keep what was reached, where there is a folder for it; a sentence says what that is, and how to go on."""
        so_far = f"{self.job.name} was interrupted after step {self.step} of {self.recipe.steps}"
        if self.checkpoint is None:
            return f"{so_far}; it has no folder of its own, and begins anew when the command is given again"
        with self._on_stream():
            self._save(self.checkpoint)
        return f"{so_far}, and all of it is in {self.checkpoint}: to go on, give the same command with --resume"

    def finish(self) -> None:
        """Give the model its averaged weights, and let others use the stream's results."""
        with self._on_stream():
            if self.work.average is not None:
                self.work.average.copy_to_model()
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        for phase in self.work.phases:
            phase.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Wait for what is still running, and close the files."""
        if self.stream is not None:
            # A graph may be destroyed only when its last replay is over.
            self.stream.synchronize()
        if self.log_file is not None:
            self.log_file.close()

    def _save_is_due(self) -> bool:
        """By the number of steps, or by the clock; processes that train together read it at log lines, as one."""
        every = self.recipe.checkpoint_every
        if every and (self.step % every == 0 or self.done):
            return True
        late = time.monotonic() - self.saved > _SAVE_SECONDS
        if processes.count() == 1:
            return late
        at_log = self.step % self.recipe.log_every == 0
        return at_log and bool(processes.mean_over_processes(torch.tensor(float(late), device=self.device)) > 0)

    def _make_order(self) -> Order:
        accumulate, first = self.recipe.accumulate, processes.rank() * self.recipe.accumulate
        return Order(
            self.job.task.samples,
            self.recipe.batch_size,
            self.recipe.seed,
            parts=processes.count() * accumulate,
            own=range(first, first + accumulate),
            device="cpu" if isinstance(self.job.task, LazyTask) else self.device,
        )

    def _inputs(self) -> Iterator[Any]:
        """What the task takes for each micro-batch from here on: indices on the device, or what it loads for them."""
        draws = self.order.draws(self.step, self.recipe.steps)
        if isinstance(self.job.task, LazyTask):
            return iter(self.job.task.read_ahead(draws, self.device))
        return (draw.indices for draw in draws)

    def _log(self) -> None:
        values = self._read_meter()
        self._stop_if_not_finite(values)
        self.work.meter.reset()
        self.logged = self.step
        if not processes.is_main():
            return
        self.seconds = time.monotonic() - self.started
        self.display.show(self.bar, self.step, values)
        if self.log_file is not None:
            lr, epoch = learning_rate(self.recipe, self.step - 1), self.order.epoch(self.step)
            self.log_file.write(self.step, {**values, "lr": lr, "epoch": epoch, "seconds": self.seconds})
        if self.job.on_log is not None:
            self.job.on_log(self.step, values)

    def _read_meter(self) -> dict[str, float]:
        """Mean of each logged value over the steps since the last log line and over processes; waits for the device."""
        sums = processes.mean_over_processes(self.work.meter.stacked())
        if processes.count() > 1:
            # When they resume, all processes go on from what the first has saved.
            self.work.meter.replace(sums)
        steps = max(self.step - self.logged, 1)
        return {name: total / steps for name, total in zip(self.work.meter.sums, sums.tolist(), strict=True)}

    def _stop_if_not_finite(self, values: Mapping[str, float]) -> None:
        loss = values.get("loss", 0.0)
        if not math.isfinite(loss):
            raise Diverged(self._advice(f"the loss became {loss} in the last {self.step - self.logged} steps"))

    def _advice(self, what: str) -> str:
        kept = "no checkpoint had been written"
        if self.checkpoint is not None and self.checkpoint.exists():
            kept = f"the last good checkpoint, of step {read_header(self.checkpoint)['step']}, is {self.checkpoint}"
        return (
            f"training diverged: by step {self.step} {what}. Lower the learning rate (lr={self.recipe.lr}), warm up "
            f"longer (warmup={self.recipe.warmup}) or clip the gradient (clip={self.recipe.clip}); {kept}"
        )

    def _save(self, path: Path) -> None:
        self._stop_if_not_finite(self._read_meter())
        broken = _not_finite(self.work.model)
        if broken:
            raise Diverged(self._advice(f"{broken[0]} is no longer finite"))
        if processes.is_main():
            about = {
                "step": self.step,
                "logged": self.logged,
                "seconds": time.monotonic() - self.started,
                "meter": list(self.work.meter.sums),
                "samples": self.job.task.samples,
                "parts": self.order.parts,
                "recipe": self.recipe.to_dict(),
            }
            save_checkpoint(path, self.work.tensors(), about)
        self.saved = time.monotonic()

    def _resume(self, path: Path) -> None:
        about = read_header(path)
        self._check_same_run(path, about)
        self.work.meter.sums = {name: torch.zeros((), device=self.device) for name in about["meter"]}
        load_checkpoint(path, self.work.tensors())
        self.step, self.logged, self.seconds = about["step"], about["logged"], about["seconds"]

    def _check_same_run(self, path: Path, about: Mapping[str, Any]) -> None:
        parts = processes.count() * self.recipe.accumulate
        before = {"samples": about["samples"], "processes times accumulate": about["parts"], **about["recipe"]}
        now = {"samples": self.job.task.samples, "processes times accumulate": parts, **self.recipe.to_dict()}
        changed = [
            f"{name} was {before.get(name)} and is {value}"
            for name, value in now.items()
            if name not in _FREE_ON_RESUME and before.get(name) != value
        ]
        if changed:
            raise CheckpointError(
                f"{path} is of a run with another recipe or training set, which cannot be resumed with this one "
                f"({'; '.join(changed)}): use the same, or name another folder"
            )

    def _on_stream(self) -> Any:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


@contextmanager
def _started(job: Job, device: torch.device, display: Display) -> Iterator[_Run]:
    """A run, with its folder kept for it and batch statistics shared between processes while it lasts."""
    with ExitStack() as stack:
        if job.out is not None and processes.is_main():
            Path(job.out).mkdir(parents=True, exist_ok=True)
            stack.enter_context(holding(Path(job.out)))
        stack.enter_context(processes.sync_batch_norm(job.model))
        run = _Run(job, device, display)
        stack.callback(run.close)
        yield run


def _can_graph(job: Job, device: torch.device) -> bool:
    lazy = isinstance(job.task, LazyTask)
    return job.recipe.graph and device.type == "cuda" and processes.count() == 1 and not lazy


def _not_finite(model: nn.Module) -> list[str]:
    """Names of parameters and buffers with NaN or infinity in them; the host waits once."""
    tensors = {name: tensor for name, tensor in model_tensors(model).items() if tensor.is_floating_point()}
    finite = torch.stack([tensor.isfinite().all() for tensor in tensors.values()]).tolist()
    return [name for name, good in zip(tensors, finite, strict=True) if not good]


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """Leave torch's random state as it was, and let cuDNN look for the fastest kernels of the shapes that recur."""
    benchmark = torch.backends.cudnn.benchmark
    with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = benchmark
