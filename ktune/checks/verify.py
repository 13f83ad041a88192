"""Verification: what a variant must show before its time counts. Knows nothing of CUDA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import torch

from ktune.api import Tolerance
from ktune.checks.compare import compare, explain, passes, same_bits, worst
from ktune.core.model import Accuracy, Status
from ktune.gpu.protocol import Verdict


class Computed(Protocol):
    """Outputs of one problem, seed and kind of inputs, beside what they should be, within `tolerance`."""

    label: str
    tolerance: Tolerance

    def outputs(self) -> Mapping[str, torch.Tensor]: ...

    def damage(self) -> str:
        """What was changed that may not be (canaries, inputs, memory of others), put right again; empty if nothing."""
        ...

    def reference(self) -> Mapping[str, torch.Tensor]:
        """float64; trustworthy after `damage`."""
        ...

    def bound(self) -> Mapping[str, torch.Tensor]:
        """The family's componentwise bound, float64, as trustworthy; empty where it states none."""
        ...


class Subject(Computed, Protocol):
    """A variant's plan bound to the buffers of one problem, seed and kind of inputs.

    usual: the inputs are of the usual kind; errors on others are of another scale.
    """

    usual: bool

    def poison(self) -> None:
        """Fill outputs and workspace with NaN."""
        ...

    def run(self) -> None:
        """Execute the plan once; need not wait for it."""
        ...

    def keep(self) -> None:
        """Copy the outputs aside."""
        ...

    def kept(self) -> Mapping[str, torch.Tensor]:
        """What the last `keep` copied."""
        ...


def verify(subjects: Iterable[Subject]) -> Verdict:
    """Each subject in turn, up to the first that is wrong. UNSTABLE: within tolerance, but two runs differ.

    The accuracy is the worst on usual inputs, or that on the kind of inputs that are wrong.
    """
    accuracy: Accuracy | None = None
    unstable = ""
    for subject in subjects:
        verdict = verify_one(subject)
        if subject.usual:
            found = [each for each in (accuracy, verdict.accuracy) if each is not None]
            accuracy = worst(found, subject.tolerance)
            verdict = replace(verdict, accuracy=accuracy)
        if verdict.status is Status.WRONG:
            return verdict
        unstable = unstable or verdict.detail
    return Verdict(Status.UNSTABLE if unstable else Status.OK, unstable, accuracy)


def verify_one(subject: Subject) -> Verdict:
    """Two runs, each on poisoned outputs: no damage, both within tolerance, bit for bit the same."""
    # damage is looked for after each run: a second one can undo what the first did to an input
    damage = _run_poisoned(subject)
    if not damage:
        subject.keep()
        damage = _run_poisoned(subject)
    if damage:
        return _damaged(subject, damage)
    return _judge_pair(subject, _accuracy(subject.kept(), subject), "two runs")


def judge(subject: Computed, damage: str) -> Verdict:
    """The outputs as they are now. `damage`: what `subject.damage` has just told, which makes them wrong."""
    if damage:
        return _damaged(subject, damage)
    accuracy = _accuracy(subject.outputs(), subject)
    reason = explain(accuracy, subject.tolerance)
    return Verdict(Status.WRONG if reason else Status.OK, reason, accuracy)


def recheck(subject: Subject) -> Verdict:
    """The outputs that are in the buffers now, against the reference and against the run kept aside."""
    damage = subject.damage()
    if damage:
        return _damaged(subject, f"{damage}, while timed")
    return _judge_pair(subject, _accuracy(subject.kept(), subject), "the timed and the verified run")


def _damaged(subject: Computed, damage: str) -> Verdict:
    return Verdict(Status.WRONG, _at(subject, damage), _accuracy(subject.outputs(), subject), damaged=True)


def _run_poisoned(subject: Subject) -> str:
    subject.poison()
    subject.run()
    return subject.damage()


def _judge_pair(subject: Subject, first: Accuracy, runs: str) -> Verdict:
    """`first` is the accuracy of the run kept aside; the other run is the one in the output buffers."""
    tolerance = subject.tolerance
    if not passes(first, tolerance):
        return Verdict(Status.WRONG, explain(first, tolerance), first)
    differs = _first_difference(subject)
    if not differs:
        return Verdict(Status.OK, "", first)
    second = _accuracy(subject.outputs(), subject)
    both = worst([first, second], tolerance)
    if not passes(second, tolerance):
        return Verdict(Status.WRONG, f"{explain(second, tolerance)}; right only sometimes", both)
    return Verdict(Status.UNSTABLE, _at(subject, f"{runs} differ in {differs}, both within tolerance"), both)


def _accuracy(outputs: Mapping[str, torch.Tensor], subject: Computed) -> Accuracy:
    reference, bound, tolerance = subject.reference(), subject.bound(), subject.tolerance
    found = [
        compare(tensor, reference[name], tolerance, bound=bound.get(name), output=name, check=subject.label)
        for name, tensor in outputs.items()
    ]
    accuracy = worst(found, tolerance)
    assert accuracy is not None, "a family has at least one output"
    return accuracy


def _first_difference(subject: Subject) -> str:
    kept = subject.kept()
    return next((name for name, tensor in subject.outputs().items() if not bool(same_bits(tensor, kept[name]))), "")


def _at(subject: Computed, sentence: str) -> str:
    return f"{sentence} in check {subject.label}" if subject.label else sentence
