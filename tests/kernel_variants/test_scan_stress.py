"""benchmarks/scan_stress.py: its judges with scans in torch, and the quick checks with the kernels on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ktune.gpu.nvml import reason_no_gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import scan_stress as stress
from stress import Line, Run, Subject, Tensors, changed_kinds, kinds, outputs

NO_GPU = reason_no_gpu()
LAUNCHES = 20
QUICK = ("options", "continued", "lengths", "special", "small")
FAR_AWAY = stress.FAMILY.problem(B=8, L=70, D=16, N=4)

Change = Callable[[Tensors, Tensors], None]


def scan(given: Tensors, found: Tensors) -> None:
    """In fp32, with whatever options there are tensors for; with a bias there is softplus."""
    wide = {name: tensor.float() for name, tensor in given.items()}
    delta = wide["delta"]
    if "delta_bias" in wide:
        delta = F.softplus(delta + wide["delta_bias"], threshold=200.0)
    batch, length, channels = wide["x"].shape
    states = wide["A"].shape[1]
    rows = {name: wide[name].view(batch, length, -1, 1, states) for name in ("B_t", "C_t")}
    groups = (batch, length, rows["B_t"].shape[2], -1, states)
    decays = torch.exp(delta[..., None] * wide["A"])
    driven = ((delta * wide["x"]).view(*groups[:-1], 1) * rows["B_t"]).view(decays.shape)
    state = wide.get("initial_state", torch.zeros(batch, channels, states))
    kept = torch.empty_like(decays)
    for t in range(length):
        state = torch.addcmul(driven[:, t], decays[:, t], state, out=kept[:, t])
    y = (kept.view(groups) * rows["C_t"]).sum(-1).view(batch, length, channels)
    y += wide["x"] * wide["skip"] if "skip" in wide else 0.0
    y *= F.silu(wide["z"]) if "z" in wide else 1.0
    found["y"].copy_(y)
    if "final_state" in found:
        found["final_state"].copy_(state)


def without(*names: str) -> Run:
    """A scan that does not know of these inputs."""

    def run(given: Tensors, found: Tensors) -> None:
        scan({name: tensor for name, tensor in given.items() if name not in names}, found)

    return run


def then(change: Change) -> Run:
    """A scan whose outputs are changed."""

    def run(given: Tensors, found: Tensors) -> None:
        scan(given, found)
        change(given, found)

    return run


def lines(check: str, run: Run, name: str = "chunked bulk", number: int = 0) -> list[Line]:
    """number: which of the check's problems."""
    if check in ("repeat", "far"):
        problem = FAR_AWAY
        subject = stress.configured("direct", problem)
    else:
        subject = stress.configured(name, stress.problems_of(check)[number])
    assert subject is not None
    subjects = [subject]
    if check == "lengths":
        subjects = [Subject(name, subject.configuration, p) for p in stress.lengths_of(subject.configuration)]
    return [line for one in subjects for line in stress.judge(check, one, run, LAUNCHES, "cpu")]


def only(tensor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Special values are put there alone, which takes a quarter of the time."""
    monkeypatch.setattr(stress, "PLACES", {tensor: stress.PLACES[tensor]})


def wrong(found: list[Line]) -> dict[str, str]:
    return {line.problem: line.detail for line in found if not line.right}


@pytest.mark.parametrize("check", stress.CHECKS)
def test_a_right_scan_passes_every_check(check: str) -> None:
    problems = 1 if check in ("repeat", "far") else len(stress.problems_of(check))
    assert [wrong(lines(check, scan, number=number)) for number in range(problems)] == [{}] * problems


def test_a_bit_that_differs_at_every_tenth_launch_is_counted() -> None:
    calls = iter(range(10**6))

    def flip(_: Tensors, found: Tensors) -> None:
        if next(calls) % 10 == 9:
            found["y"].view(torch.int32)[3, 5, 2] ^= 1

    assert lines("repeat", then(flip))[0].detail.startswith(f"{LAUNCHES // 10} of {LAUNCHES} launches differ")
    assert not lines("repeat", then(flip))[0].right


def test_a_bit_of_the_final_state_that_differs_is_counted() -> None:
    subject = stress.configured("direct", stress.problems_of("special")[0])
    assert subject is not None
    calls = iter(range(10**6))

    def flip(_: Tensors, found: Tensors) -> None:
        found["final_state"].view(torch.int32)[1, 5, 2] ^= next(calls) % 2

    found = list(stress.judge("repeat", subject, then(flip), 2, "cpu"))
    assert found[0].detail.startswith("1 of 2 launches differ") and not found[0].right


def test_a_result_that_is_wrong_every_time_is_found() -> None:
    assert lines("repeat", without("skip"))[0].detail.startswith(f"0 of {LAUNCHES} launches differ; y[")
    assert not lines("repeat", without("skip"))[0].right


def test_outputs_are_poisoned() -> None:
    found = outputs(stress.FAMILY, stress.problems_of("options")[1], "cpu")
    assert {name: output.dtype for name, output in found.items()} == {"y": torch.bfloat16, "final_state": torch.float32}
    assert all(output.isnan().all() for output in found.values())


def test_long_problems_are_launched_less_often() -> None:
    problems = stress.LOADED.named_problems
    assert stress.launches_within(problems["record"], 1000) == 1000
    assert stress.FEWEST_LAUNCHES < stress.launches_within(problems["long"], 1000) < 1000
    assert stress.launches_within(problems["beyond"], 1000) == stress.FEWEST_LAUNCHES
    assert stress.launches_within(problems["beyond"], 7) == 7


@pytest.mark.parametrize("name", ["delta_bias", "z", "initial_state"])
def test_an_option_that_a_scan_forgets_is_found(name: str) -> None:
    assert wrong(lines("options", without(name)))


def test_channels_with_the_rows_of_another_group_are_found() -> None:
    def first_group(given: Tensors, found: Tensors) -> None:
        scan({**given, **{name: given[name][:, :, :1].expand_as(given[name]) for name in ("B_t", "C_t")}}, found)

    assert wrong(lines("options", first_group))


@pytest.mark.parametrize("check", ["options", "continued", "special", "small"])
def test_a_final_state_that_is_not_written_is_found(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only("C_t", monkeypatch)

    def run(given: Tensors, found: Tensors) -> None:
        scan(given, {"y": found["y"]})

    found = wrong(lines(check, run, number=-1))
    assert found and all("final_state" in detail for detail in found.values())


def test_a_final_state_as_coarse_as_bfloat16_is_found() -> None:
    def round_state(_: Tensors, found: Tensors) -> None:
        found["final_state"].copy_(found["final_state"].bfloat16())

    assert "final_state" in next(iter(wrong(lines("options", then(round_state), number=1)).values()))


def test_a_second_call_that_starts_anew_is_found() -> None:
    """What one call alone would not show: only the sequence's second part starts from 0."""

    def run(given: Tensors, found: Tensors) -> None:
        second = given["x"].shape[1] == stress.CONTINUED[1]
        (without("initial_state") if second else scan)(given, found)

    found = lines("continued", run)[0]
    assert not found.right and "; one: y elementwise" in found.detail


def test_a_wrong_state_after_the_first_call_is_found() -> None:
    def one_step_early(given: Tensors, found: Tensors) -> None:
        if given["x"].shape[1] == stress.CONTINUED[0]:
            found["final_state"] *= 1.01

    assert wrong(lines("continued", then(one_step_early)))


def test_one_call_that_is_wrong_where_two_are_right_is_found() -> None:
    def astray(given: Tensors, found: Tensors) -> None:
        if given["x"].shape[1] == sum(stress.CONTINUED):
            found["y"][1, 200] += 1.0

    assert wrong(lines("continued", then(astray)))


def test_how_far_one_call_and_two_differ_is_told() -> None:
    def shift(given: Tensors, found: Tensors) -> None:
        if given["x"].shape[1] == sum(stress.CONTINUED):
            found["final_state"] += 2.0**-17

    found = lines("continued", then(shift))[0]
    assert found.right and found.detail.startswith("apart: y 0, final_state 7.6e-06")


@pytest.mark.parametrize(
    ("name", "over"), [("direct", 1), ("staged", -1), ("piped lanes", 0), ("blockscan", 1), ("chunked lanes", -1)]
)
def test_a_step_left_out_around_a_tile_is_found(name: str, over: int) -> None:
    subject = stress.configured(name, stress.problems_of("lengths")[0])
    assert subject is not None
    tile = stress.tile_of(subject.configuration)

    def leave_out(_: Tensors, found: Tensors) -> None:
        if found["y"].shape[1] == tile + over:
            found["y"][:, -1] = 0.0

    assert f"L{tile + over}-" in next(iter(wrong(lines("lengths", then(leave_out), name))))


def test_a_channel_that_no_block_divides_is_found() -> None:
    def leave_out(_: Tensors, found: Tensors) -> None:
        found["y"][:, :, 32 * (found["y"].shape[2] // 32) :] = 0.0

    found = wrong(lines("lengths", then(leave_out)))
    assert len(found) > 5 and not any("-D32-" in label for label in found)


# ---- special values


def leak_to_the_step_before(given: Tensors, found: Tensors) -> None:
    found["y"][:, :-1] += 0.0 * given["x"][:, 1:]


def leak_to_other_channels(given: Tensors, found: Tensors) -> None:
    found["y"] += 0.0 * given["x"].sum(2, keepdim=True)


def leak_to_other_batches(given: Tensors, found: Tensors) -> None:
    found["final_state"] += 0.0 * given["delta"].sum(0).sum(0)[:, None]


def leak_to_the_other_group(given: Tensors, found: Tensors) -> None:
    found["y"] += 0.0 * given["B_t"].sum((2, 3))[:, :, None]


def leak_to_the_next_step(given: Tensors, found: Tensors) -> None:
    found["y"][:, 1:] += 0.0 * given["C_t"][:, :-1].sum((2, 3))[:, :, None]


def flip_a_bit_of_earlier_steps(given: Tensors, found: Tensors) -> None:
    """Finite, and within any tolerance."""
    if not given["x"].isfinite().all():
        found["y"].view(torch.int32)[:, :64] ^= 1


@pytest.mark.parametrize(
    ("leak", "tensor"),
    [
        (leak_to_the_step_before, "x"),
        (leak_to_other_channels, "x"),
        (leak_to_other_batches, "delta"),
        (leak_to_the_other_group, "B_t"),
        (leak_to_the_next_step, "C_t"),
        (flip_a_bit_of_earlier_steps, "x"),
    ],
)
def test_what_a_special_value_must_not_reach_is_found(
    leak: Change, tensor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tensor, monkeypatch)
    found = wrong(lines("special", then(leak)))
    assert list(found) == [f"{value} in {tensor}" for value in stress.VALUES]
    assert all("changed out of its reach" in detail for detail in found.values())


def test_a_special_value_that_is_swallowed_is_found_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "TOLD_OF_SPECIAL", {"chunked": ("x",)})
    only("x", monkeypatch)

    def clamped(given: Tensors, found: Tensors) -> None:
        scan({name: tensor.clamp(-1e4, 1e4) for name, tensor in given.items()}, found)

    found = {line.problem: line for line in lines("special", clamped)}
    assert "Inf became finite" in found["Inf in x"].detail and not found["Inf in x"].told
    assert found["NaN in x"].right


def test_a_nan_that_does_not_last_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    only("x", monkeypatch)

    def forget(given: Tensors, found: Tensors) -> None:
        found["y"][:, 180:].nan_to_num_(0.0)

    assert "NaN became finite" in wrong(lines("special", then(forget)))["NaN in x"]


def lose_infinities(given: Tensors, found: Tensors) -> None:
    """As a product of decays that underflows does, a chunk later."""
    late = found["y"][:, 150:]
    late[late.isinf()] = torch.nan


def test_every_change_of_kind_is_counted() -> None:
    wanted, found = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf]), torch.tensor([torch.inf, 1.0, -torch.inf, 2])
    changes = {("finite", "Inf"): 1, ("NaN", "finite"): 1, ("Inf", "-Inf"): 1, ("-Inf", "finite"): 1}
    assert changed_kinds(kinds(wanted), kinds(found)) == changes


def test_a_wrong_value_is_found_where_the_change_is_finite() -> None:
    plain = torch.arange(4.0)
    truth = torch.tensor([0.0, 1.0, 5.0, torch.inf])
    assert stress.judged_special(truth, truth.double(), plain, plain.double()) == ([], False)
    details, other = stress.judged_special(truth + torch.tensor([0, 0, 0.1, 0]), truth.double(), plain, plain.double())
    assert other and "max error 0.1" in details[0]


def test_an_infinity_that_becomes_nan_is_wrong_unless_the_readme_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "PLACES", {name: stress.PLACES[name] for name in ("x", "delta")})
    monkeypatch.setattr(stress, "TOLD_OF_SPECIAL", {})
    found = [line for line in lines("special", then(lose_infinities)) if not line.right]
    assert found and not any(line.told for line in found) and "Inf became NaN" in found[0].detail
    monkeypatch.setattr(stress, "TOLD_OF_SPECIAL", {"chunked": ("x",)})
    found = [line for line in lines("special", then(lose_infinities)) if not line.right]
    assert {(line.problem.split()[-1], line.told) for line in found} == {("x", True), ("delta", False)}


def test_a_leak_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stress, "TOLD_OF_SPECIAL", {"chunked": ("x",)})
    only("x", monkeypatch)

    def both(given: Tensors, found: Tensors) -> None:
        lose_infinities(given, found)
        leak_to_the_step_before(given, found)

    found = [line for line in lines("special", then(both)) if not line.right]
    assert found and not any(line.told for line in found)


def test_nothing_is_told_that_the_readme_does_not_speak_of() -> None:
    readme = (stress.LOADED.folder / "README.md").read_text(encoding="utf-8")
    assert "NaN" in readme or not stress.TOLD_OF_SPECIAL


# ---- far


def test_errors_of_the_last_batch_alone_are_found() -> None:
    """Each within the tolerance of an element, and as a whole within that of the norm."""

    def astray(_: Tensors, found: Tensors) -> None:
        found["y"][-1] *= 1.0 + 2e-5

    detail = lines("far", then(astray))[0].detail
    assert detail.startswith("all: y elementwise") and "last batch: y: normwise" in detail
    assert not lines("far", then(astray))[0].right


def test_a_last_step_that_is_wrong_is_found() -> None:
    def astray(_: Tensors, found: Tensors) -> None:
        found["y"][2, -1, 3] += 0.01

    assert "last 64 steps: y[2, 63, 3]" in lines("far", then(astray))[0].detail


def test_the_far_problems_have_more_than_2_to_the_31_elements() -> None:
    problems = stress.problems_of("far")
    assert all(p["B"] * p["L"] * p["D"] > 2**31 for p in problems)
    assert {subject.name for subject in stress.subjects_of("far", "")} == set(stress.FAR_SUBJECTS)
    algorithms = [str(subject.configuration["algorithm"]) for subject in stress.subjects_of("far", "")]
    assert set(algorithms) == set(stress.FAMILY.parameter("algorithm").values)


# ---- what is run


@pytest.mark.parametrize("check", QUICK)
def test_every_subject_is_run_somewhere(check: str) -> None:
    assert {subject.name for subject in stress.subjects_of(check, "")} == set(stress.SUBJECTS)


def test_every_option_is_asked_for_in_both_dtypes() -> None:
    problems = stress.problems_of("options")
    for dtype in stress.FAMILY.dtypes:
        for name, default in stress.FAMILY.defaults:
            assert any(p[name] != default and p.dtype == dtype for p in problems), name


def test_a_sanitizer_sees_few_launches() -> None:
    found = stress.subjects_of("small", "")
    assert sum(len(stress.FAMILY.plan(s.configuration, s.problem).launches) for s in found) <= 40


def test_lengths_are_of_one_binary() -> None:
    for name in stress.SUBJECTS:
        found = [subject for subject in stress.subjects_of("lengths", name) if subject.name == name]
        assert len({tuple(stress.FAMILY.constants(s.configuration, s.problem).items()) for s in found}) == 1


def test_a_run_of_a_subject_takes_every_length_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(_: object, subjects: list[Subject]) -> object:
        def only(length: int) -> Run:
            def run(given: Tensors, found: Tensors) -> None:
                assert given["x"].shape[1] == length
                scan(given, found)

            return run

        return iter([(subject, only(subject.problem["L"])) for subject in subjects])

    monkeypatch.setattr("stress.runs", made)
    wanted = stress.subjects_of("continued", "16x")
    found = list(stress.runs_of("continued", wanted))
    assert [subject for subject, _ in found] == wanted
    subject, run = found[-1]
    assert all(line.right for line in stress.judge("continued", subject, run, 1, "cpu"))


@pytest.mark.gpu
@pytest.mark.build
@pytest.mark.skipif(bool(NO_GPU), reason=f"needs a CUDA GPU: {NO_GPU}")
@pytest.mark.parametrize("name", stress.SUBJECTS)
@pytest.mark.parametrize("check", QUICK)
def test_the_kernels_stand_it(check: str, name: str) -> None:
    with torch.no_grad():
        subjects = [subject for subject in stress.subjects_of(check, name) if subject.name == name]
        found = [
            line
            for subject, run in stress.runs_of(check, subjects)
            for line in stress.judge(check, subject, run, 1, "cuda")
        ]
    assert found
    assert [str(line) for line in found if not (line.right or line.told)] == []
