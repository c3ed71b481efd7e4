"""The comparison of illuminant estimators: how they are made, trained on each split, tested and reported on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightfast._experiments import names_in
from lightfast._experiments.data.generated_scenes import draw_scenes
from lightfast._experiments.data.lit_scenes import LitScenes
from lightfast._experiments.data.mimo import is_mimo, load_mimo
from lightfast._experiments.data.scene_folder import load_scenes
from lightfast._experiments.engine import Job
from lightfast._experiments.illuminant.camera import (
    WIDTHS,
    errors_of_widths,
    groups_by_camera,
    priors,
    pulled,
    with_prior,
)
from lightfast._experiments.illuminant.evaluation import (
    LIT_SATURATIONS,
    added_lights,
    classical_estimates,
    confident_estimates,
    estimates_under_light,
    mean_light,
    measure,
)
from lightfast._experiments.illuminant.plans import GOING_ON, NETWORKS, PLANS
from lightfast._experiments.illuminant.protocols import PROTOCOLS, Split, left_out, splits_of
from lightfast._experiments.illuminant.report import evaluation_table, illuminant_report
from lightfast._experiments.illuminant.several_lights import evaluate_pictures
from lightfast._experiments.illuminant.task import IlluminantTask, even_weights
from lightfast._experiments.plan import scaled
from lightfast._experiments.provenance import provenance
from lightfast._experiments.records import SETTINGS, Record, Run, run_folder
from lightfast._experiments.report import Report
from lightfast._experiments.study import Study, Training, option
from lightfast._experiments.summary import Summary
from lightfast._pipelines.estimator import Estimator
from lightfast.constancy import CLASSICAL
from lightfast.metrics import recovery_error, reproduction_error

_FEW = 8
"""About as many images as C5 (Afifi et al. 2021) sees of a camera."""


@dataclass
class Illuminant(Study):
    """Estimators of the light under a protocol; of a network with parts, these are trained."""

    protocol: str = option("pooled", f"{', '.join(PROTOCOLS)}; or all.", "reproduce")
    tested: str = option(
        "",
        "Data sets that a protocol divides and tests on, comma-separated; the others are added to the training of "
        "every split. All by default.",
        "reproduce",
    )
    start: str = option(
        "",
        "The folder of a leave-one-set-out study, to go on with its networks that have not seen the data set tested.",
        "reproduce",
    )
    teacher: str = option("", "A trained estimator whose answers are learned beside the truth.", "train")
    calibrated: str = option(
        "", "The results.json of a study of the same networks, which says how far to believe their confidence.", "train"
    )
    members: int = option(1, "How many networks of each kind answer together.", "train", minimum=1)
    classical: dict[str, Tensor] = field(default_factory=dict)
    """What classical estimators say, the same in all protocols: filled when it is first asked for."""

    help = (
        "Compare estimators of the light: train, estimate under added light, measure, write a report for each protocol."
    )
    train_help = "Train an estimator of the light on all images, as `lightfast balance --estimator` takes it."
    data_help = (
        "Linear images with their light: a folder with index.csv and the PNG files or the packed shards that it names, "
        "or a folder of such folders; by default, scenes that lightfast draws itself."
    )
    kinds, plans = NETWORKS, PLANS
    usual = "original,wrapped,equivariant"
    together: ClassVar[int] = 12
    pipeline = Estimator

    @classmethod
    def load(cls, data: Path | None, options: Mapping[str, Any]) -> LitScenes:
        return draw_scenes() if data is None else load_scenes(data)

    def __post_init__(self) -> None:
        """Complain about a protocol that there is none of, and a recipe for networks that are not there."""
        if self.protocol not in (*PROTOCOLS, "all"):
            raise ValueError(f"the protocol is one of {', '.join(PROTOCOLS)}, or all; not {self.protocol!r}")
        if self.plan.name in GOING_ON and not self.start:
            raise ValueError(
                f"the recipe {self.plan.name} goes on with networks that were trained before: name the folder of their "
                "leave-one-set-out study with `lightfast reproduce illuminant --start`"
            )

    def parts(self) -> list[Illuminant]:
        """A study for each protocol, in a folder of its own; `all` are those that the data suits."""
        names = list(PROTOCOLS) if self.protocol == "all" else [self.protocol]
        if self.protocol == "all" and len(self.data.set_names) == 1:
            names.remove("leave-one-set-out")
        return [dataclasses.replace(self, protocol=name, out=self.out / name) for name in names]

    def about_data(self) -> dict[str, Any]:
        scenes = self.data
        about = {"data": scenes.name, "images": len(scenes), "cameras": scenes.camera_names}
        said = {"tested": self.tested, "start": self._settings_of_start()}
        return {**about, "protocol": self.protocol, **{name: text for name, text in said.items() if text}}

    def _settings_of_start(self) -> str:
        """What tells the networks that are gone on with from others: a digest of the settings of their study."""
        if not self.start:
            return ""
        settings = Path(self.start) / SETTINGS
        if not settings.is_file():
            raise ValueError(f"{self.start} is no study to go on with: it has no {SETTINGS}")
        return f"networks of other data sets, {sha256(settings.read_bytes()).hexdigest()[:12]}"

    @property
    def added(self) -> tuple[str, ...]:
        """The data sets that are in the training of every split; or were, of networks that are gone on with."""
        tested = names_in(self.tested)
        return tuple(name for name in self.data.set_names if tested and name not in tested)

    @cached_property
    def _scenes(self) -> LitScenes:
        return self.data.to(self.device)

    @cached_property
    def _splits(self) -> dict[str, Split]:
        tested = names_in(self.tested)
        return {
            split.name: split for split in splits_of(self.data, self.protocol, tested=tested, alone=bool(self.start))
        }

    def splits(self) -> list[str]:
        return list(self._splits)

    def trains(self) -> list[str]:
        """Parts instead of what they make together, each once."""
        return list(dict.fromkeys(part for name in self.chosen for part in _parts(name)))

    def keeps_model(self, run: Run) -> bool:
        """For the corrected images of the report, and to go on from for a camera of the data set that was left out."""
        pictured = run.kind in ("original", "equivariant") and run.seed == 0 and run.split == self.splits()[0]
        return pictured or self.protocol == "leave-one-set-out"

    def make(self, run: Run, folder: Path) -> Training:
        train = self._splits[run.split].train
        estimator = self.plan.estimator(run.kind, run.seed)
        if self.start:
            estimator = self._started(run, estimator)
        task, recipe = self._task(estimator, run.kind, train)
        share = self.plan.small if self.protocol == "per-camera" and not self.added else 1.0
        return Training(estimator, task, scaled(recipe, share), estimator.networks[0])

    def _started(self, run: Run, fresh: Estimator) -> Estimator:
        """The network of another study that is gone on with in place of a fresh one, which it has to be like."""
        before = run_folder(Path(self.start), (run.kind, run.seed, left_out(self.data, self._splits[run.split])))
        if not (before / "model.json").is_file():
            raise ValueError(f"{self.start} has no trained network {before.name}: finish that study first")
        estimator = Estimator.load(before).train()
        unlike = [name for name, value in fresh.config.items() if estimator.config[name] != value]
        if unlike:
            name = unlike[0]
            raise ValueError(
                f"{before.name} was made with {name} {estimator.config[name]}, and the recipe {self.plan.name} goes on "
                f"with {name} {fresh.config[name]}: train with the recipe that it belongs to"
            )
        return estimator

    def _task(self, estimator: Estimator, kind: str, train: Tensor) -> tuple[IlluminantTask, Any]:
        plan = self.plan.plan_for(kind)
        task = IlluminantTask(
            self._scenes,
            estimator.encoding,
            plan.augmentation_for(kind),
            plan.recovery,
            train,
            even_weights(self.data, train, plan.even) if plan.even else None,
            plan.confidence,
            self._teacher,
            plan.distill,
            plan.prior and NETWORKS[kind].network == "chroma-histogram",
        )
        return task, plan.recipe

    @cached_property
    def _teacher(self) -> Estimator | None:
        return Estimator.load(self.teacher) if self.teacher else None

    def measure(self, run: Run, pipeline: Estimator) -> Record:
        test = self._splits[run.split].test
        lights = added_lights(self.data)
        estimates = estimates_under_light(pipeline.to(self.device).eval(), self._scenes, test, lights)
        record = {"estimates": estimates, "test": test}
        if pipeline.says_spread:
            light, record["spread"] = confident_estimates(pipeline, self._scenes, test)
            if pipeline.made_for_prior:
                record |= self._known(pipeline, test, light, record["spread"])
        return record

    def _known(self, pipeline: Estimator, test: Tensor, light: Tensor, error: Tensor) -> Record:
        """Estimates of test images with the prior of each camera, and the errors to expect.

        They are as without one, as given, where the index has no other fold of the camera to know it by.
        """
        lights, spread = torch.zeros(len(self.data), 3), torch.zeros(len(self.data))
        lights[test], spread[test] = light, error
        for places, prior in priors(self.data, test):
            lights[places], spread[places] = confident_estimates(pipeline, self._scenes, places, prior.to(self.device))
        return {"known": lights[test], "known_spread": spread[test]}

    def line(self, record: Record) -> str:
        errors = reproduction_error(record["estimates"][0], self.data.illuminants.cpu()[record["test"]])
        return f"median reproduction error {float(errors.median()):.2f}°"

    def train_one(self, kind: str, seed: int, name: str = "model") -> str:
        """Train members of each part, each from its own seed, on all scenes."""
        made_of = {"data": self.data.name, "kind": kind, "plan": self.plan.to_dict(), "provenance": provenance()}
        if self.teacher:
            made_of["teacher"] = self.teacher
        estimator = self.plan.estimator(kind, seed, self.members, made_of)
        everything = torch.arange(len(self.data))
        jobs = []
        for part in _parts(kind):
            for member in range(seed, seed + self.members):
                task, recipe = self._task(estimator, part, everything)
                recipe = dataclasses.replace(recipe, seed=member)
                folder = run_folder(self.out, (part, member))
                network = estimator.networks[len(jobs)]
                jobs.append(Job(network, task, recipe, folder, self.resume, name=f"{part} {member}"))
        self.train_jobs(jobs)
        if self.calibrated:
            factors = [*(part for part in _parts(kind) for _ in range(self.members)), kind]
            estimator = estimator.with_calibration(read_calibration(Path(self.calibrated), factors))
        if self.main:
            estimator.eval().save(self.out, name, half=self.half)
            for job in jobs:
                assert job.checkpoint is not None
                job.checkpoint.unlink(missing_ok=True)
        return f"written: {self.out / name}.safetensors and {self.out / name}.json"

    @classmethod
    def evaluate(
        cls, pipeline: Estimator, data: Path | None, size: int | None, seed: int, device: torch.device
    ) -> tuple[str, Record]:
        """As for all studies; on pictures with the light of every pixel, the error over pixels."""
        if data is not None and is_mimo(data):
            text, errors = evaluate_pictures(pipeline, load_mimo(data), device)
            return text, {"errors": errors}
        # Of drawn scenes a few will do: several networks look at several views of each under every light.
        scenes = (draw_scenes(scenes=24) if data is None else load_scenes(data)).to(device)
        lights, everything = added_lights(scenes, seed=seed), torch.arange(len(scenes))
        estimates = estimates_under_light(pipeline.to(device).eval(), scenes, everything, lights)
        found = measure(scenes, estimates, lights)
        return evaluation_table(found), {"saturations": LIT_SATURATIONS, **found}

    def finished(self) -> dict[Run, Record]:
        """The records in the folder; also those of before records were folders, `NETWORK.SPLIT.SEED.npz`."""
        records = super().finished()
        for path in self.out.glob("runs/*.npz"):
            kind, rest = path.stem.split(".", 1)
            split, seed = rest.rsplit(".", 1)
            with np.load(path) as saved:
                tensors = {name: torch.from_numpy(saved[name]) for name in ("estimates", "test")}
                about = {"network": kind, "seed": int(seed), "split": split, **json.loads(str(saved["about"]))}
            records.setdefault(Run(kind, int(seed), split), {"evaluate_seconds": 0.0, **about, **tensors})
        return records

    def summaries(self, records: Sequence[Record]) -> list[Summary]:
        """Classical estimators, and networks whose runs cover all splits.

        Of several seeds there is, beside their mean, an ensemble: the errors of the joint answer. Of networks that say
        how sure they are there is also what is known of a camera: several or all test images of it together, and the
        prior of its lights.
        """
        if not self.classical:
            added = torch.tensor([self.data.set_names.index(name) for name in self.added], dtype=torch.int64)
            self.classical.update(classical_estimates(self._scenes, torch.where(~torch.isin(self.data.sets, added))[0]))
        lights = added_lights(self.data)
        tested = torch.cat([split.test for split in self._splits.values()]).sort().values

        def measured(estimates: Tensor) -> dict[str, Any]:
            return measure(self.data, estimates[:, tested], lights[: len(estimates)], tested)

        found = [
            dataclasses.replace(Summary.of(name, CLASSICAL[name].title, 0, [measured(estimates)]), seeds=0)
            for name, estimates in self.classical.items()
        ]
        sizes = {record["network"]: record["parameters"] for record in records}
        for name, kind in NETWORKS.items():
            seeds = self.answers(name, records)
            if not seeds:
                continue
            size, ours = sum(sizes[part] for part in _parts(name)), self.is_ours(name)

            def add(key: str, title: str, answers: Sequence[Answers], size: int = size, ours: bool = ours) -> None:
                numbers = [
                    {**measured(each.estimates), **self._confidence(each, tested), **each.about} for each in answers
                ]
                found.append(Summary.of(key, title, size, numbers, ours))

            add(name, kind.title, seeds)
            if len(seeds) > 1:
                title = f"{kind.title}, ensemble of {len(seeds)}"
                add(f"{name}-ensemble", title, [self._joint(seeds)], size * len(seeds))
                found[-1] = dataclasses.replace(found[-1], seeds=len(seeds))
            if any(answers.spread is None for answers in seeds):
                continue
            together, few = zip(*(self._together(answers) for answers in seeds), strict=True)
            add(f"{name}-for-camera", f"{kind.title}, images of a camera together", together, ours=False)
            add(f"{name}-for-camera-{_FEW}", f"{kind.title}, {_FEW} images of a camera together", few, ours=False)
            known = [self._with_prior(each) for each in seeds]
            add(f"{name}-prior", f"{kind.title}, with a prior of the camera", known, ours=False)
            if known := self.answers(name, records, known=True):
                add(f"{name}-prior-inside", f"{kind.title}, networks made for a prior of the camera", known, ours=False)
        return found

    def answers(self, name: str, records: Sequence[Record], known: bool = False) -> list[Answers]:
        """What the networks of that name say together, for each seed whose runs cover all splits.

        Of a `known` camera each answers with its prior: networks that were trained with it, as they did; the others by
        their spread, as do joint answers. Where none was trained with a prior, there are no such answers.
        """
        own = [known and any(r["network"] == part and "known" in r for r in records) for part in _parts(name)]
        if known and not any(own):
            return []
        parts = [self._answers(part, records, inside) for part, inside in zip(_parts(name), own, strict=True)]
        if known:
            parts = [
                part if inside else [self._calibrated(self._with_prior(each)) for each in part]
                for part, inside in zip(parts, own, strict=True)
            ]
        return [self._joint(answers) for answers in zip(*parts, strict=False)]

    def _with_prior(self, answers: Answers) -> Answers:
        """Without added light, and with the prior of each camera."""
        assert answers.spread is not None
        lights, spread = with_prior(self.data, answers.estimates[0], answers.spread)
        return Answers(lights[None], spread)

    def _answers(self, network: str, records: Sequence[Record], known: bool = False) -> list[Answers]:
        """The answers of each seed, from 0 on, whose runs cover all splits; spreads are calibrated on other splits.

        They are those of a `known` camera, if so, without added light.
        """
        by_seed: dict[int, dict[str, Record]] = {}
        for record in records:
            if record["network"] == network:
                by_seed.setdefault(record["seed"], {})[record["split"]] = record
        whole = []
        while len(by_seed.get(len(whole), ())) == len(self._splits):
            # Images that are never tested have a light too, so that all can be compared at once.
            estimates = torch.full((1 if known else len(LIT_SATURATIONS), len(self.data), 3), 3**-0.5)
            spread, runs = torch.ones(len(self.data)), by_seed[len(whole)]
            lights, sure = ("known", "known_spread") if known else ("estimates", "spread")
            for record in runs.values():
                estimates[:, record["test"]] = record[lights]
                spread[record["test"]] = record.get(sure, torch.ones(1))
            says = all(sure in record for record in runs.values())
            whole.append(self._calibrated(Answers(estimates, spread if says else None)))
        return whole

    def _joint(self, answers: Sequence[Answers]) -> Answers:
        """What several answer together, weighed by their spreads where all have one."""
        spreads = [each.spread for each in answers if each.spread is not None]
        if len(answers) == 1 or len(spreads) < len(answers):
            return Answers(mean_light([each.estimates for each in answers]), None) if len(answers) > 1 else answers[0]
        weights = (-2 * torch.stack(spreads).log()).softmax(0)
        joint = mean_light([each.estimates for each in answers], weights[:, None, :, None])
        apart = torch.stack([reproduction_error(each.estimates[0], joint[0]) for each in answers])
        expected = (weights * torch.stack(spreads)).sum(0).square() + (weights * apart.square()).sum(0)
        return self._calibrated(Answers(joint, expected.sqrt()))

    def _calibrated(self, answers: Answers) -> Answers:
        """With spreads times a factor for each split, found on the test images of the other splits.

        So that no test image has a say in its own spread; where there is but one split, they are as they come.
        """
        if answers.spread is None:
            return answers
        spread, tests = answers.spread.clone(), [split.test for split in self._splits.values()]
        for number, test in enumerate(tests):
            others = [each for place, each in enumerate(tests) if place != number]
            if others:
                spread[test] *= self._factor(answers, torch.cat(others))
        return Answers(answers.estimates, spread)

    def _factor(self, answers: Answers, places: Tensor) -> float:
        """By how much errors are larger than expected: `mean(θ / s)`, the factor of the greatest likelihood."""
        assert answers.spread is not None
        errors = reproduction_error(answers.estimates[0, places], self.data.illuminants.cpu()[places])
        return float((errors / answers.spread[places]).mean())

    def _confidence(self, answers: Answers, tested: Tensor) -> dict[str, Any]:
        """What the spreads are worth: errors over spreads, and the mean error of the surer half."""
        if answers.spread is None:
            return {}
        sure = tested[answers.spread[tested].argsort()[: len(tested) // 2]]
        errors = recovery_error(answers.estimates[0, sure], self.data.illuminants.cpu()[sure])
        return {
            "calibration": round(self._factor(answers, tested), 4),
            "recovery_of_surer_half": round(float(errors.mean()), 4),
        }

    def _together(self, answers: Answers) -> tuple[Answers, Answers]:
        """All test images of each camera in each split together, and a few of them at a time; without added light.

        How wide a light is, is found on the other splits, so that no test image has a say in its own.
        """
        assert answers.spread is not None
        truth, cameras, lights = self.data.illuminants.cpu(), self.data.cameras, answers.estimates[0]
        tests = [split.test for split in self._splits.values()]
        errors = torch.stack(
            [errors_of_widths(lights, answers.spread, truth, groups_by_camera(cameras, test)) for test in tests]
        )
        of_all = {"width": WIDTHS[int(errors.sum(0).argmin())]}
        together = []
        for size in (None, _FEW):
            pulled_lights = lights
            for number, test in enumerate(tests):
                others = errors.sum(0) - errors[number] if len(tests) > 1 else errors[0]
                width, groups = WIDTHS[int(others.argmin())], groups_by_camera(cameras, test, size)
                pulled_lights = pulled(pulled_lights, answers.spread, groups, width)
            together.append(Answers(pulled_lights[None], None, of_all))
        return together[0], together[1]

    def report(self, records: Sequence[Record]) -> Report:
        return illuminant_report(self, self.summaries(records), self._splits)


class Answers(NamedTuple):
    """What an estimator says of all images: (S, N, 3) under each light, and the error to expect (N,), in degrees.

    What images of a camera say together is without added light only, (1, N, 3). `about` is what else to record.
    """

    estimates: Tensor
    spread: Tensor | None
    about: Mapping[str, float] = MappingProxyType({})


def read_calibration(path: Path, kinds: Sequence[str]) -> list[float]:
    """The factors for the spreads of these kinds of network, from the results of a study."""
    summary = json.loads(path.read_text(encoding="utf-8"))["summary"]
    missing = [kind for kind in kinds if "calibration" not in summary.get(kind, {}).get("mean", {})]
    if missing:
        raise ValueError(
            f"{path} does not say how far to believe {missing[0]}: name the results of a study that has it"
        )
    return [summary[kind]["mean"]["calibration"] for kind in kinds]


def _parts(network: str) -> tuple[str, ...]:
    return NETWORKS[network].parts or (network,)
