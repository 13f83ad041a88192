"""The drop-in modules and their functions on the CPU, where plain PyTorch operations compute them."""

from __future__ import annotations

import copy
import io
import itertools
import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from plain_layers import (
    PlainScan,
    PlainSwish,
    assert_within_tolerance,
    narrowed,
    projection_tensors,
    projections_in_float64,
    scan_in_float64,
    scan_options,
    scan_tensors,
    swish_in_float64,
)

import ktune.nn
from ktune.core.errors import UsageError
from ktune.nn import plain

pytestmark = pytest.mark.filterwarnings("ignore::ktune.nn.PlainPathWarning")


def scan_pair(d_model: int = 12, d_state: int = 5) -> tuple[PlainScan, ktune.nn.SelectiveScan]:
    torch.manual_seed(1)
    written, ours = PlainScan(d_model, d_state), ktune.nn.SelectiveScan(d_model, d_state)
    ours.load_state_dict(written.state_dict(), strict=True)
    return written, ours


def swish_pair(scale: float = 2.0) -> tuple[PlainSwish, ktune.nn.LinearSwishScale]:
    torch.manual_seed(1)
    written, ours = PlainSwish(7, 9, scale), ktune.nn.LinearSwishScale(7, 9, scale)
    ours.load_state_dict(written.state_dict(), strict=True)
    return written, ours


def test_importing_the_modules_loads_neither_the_builder_nor_the_driver() -> None:
    code = "import sys, ktune.nn; print([m for m in sys.modules if m.startswith(('ktune.gpu', 'ktune.build'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_state_dict_of_the_plain_scan_gives_the_same_output() -> None:
    written, ours = scan_pair()
    x = torch.randn(3, 17, 12)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), written(x))
    assert set(ours.state_dict()) == set(written.state_dict())


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7), (0, 7)])
def test_a_state_dict_of_the_plain_linear_gives_the_same_output(shape: tuple[int, ...]) -> None:
    written, ours = swish_pair(-0.5)
    x = torch.randn(shape)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), written(x))
    assert set(ours.state_dict()) == set(written.state_dict())


def test_projections_by_the_operator_and_by_the_layers_agree() -> None:
    written, ours = scan_pair()
    apart = ktune.nn.SelectiveScan(12, 5, tuned_projections=False)
    apart.load_state_dict(written.state_dict())
    x = torch.randn(2, 9, 12)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), apart(x))


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 7)])
@pytest.mark.parametrize("biased", [True, False])
def test_the_projections_are_within_tolerance_of_float64(shape: tuple[int, ...], biased: bool) -> None:
    given = projection_tensors(24, 5, 3, 7)
    given["x"] = given["x"][: math.prod(shape[:-1])].reshape(shape)
    if not biased:
        given["bias"] = None
    for found, expected in zip(ktune.nn.projections(**given), projections_in_float64(**given), strict=True):
        assert_within_tolerance(found, expected)
        assert found.is_contiguous()


@pytest.mark.parametrize("changed", ["a bias of B", "a subclass"])
def test_projections_that_do_more_than_the_kernel_are_called(changed: str) -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    _, ours = scan_pair()
    x = torch.randn(2, 4, 12)
    with torch.no_grad():
        expected_b = 2 * ours.proj_B(x) if changed == "a subclass" else ours.proj_B(x) + 1
        weight = ours.proj_B.weight
        ours.proj_B = Doubled(12, 5, bias=False) if changed == "a subclass" else torch.nn.Linear(12, 5)
        ours.proj_B.weight.copy_(weight)
        if changed == "a bias of B":
            ours.proj_B.bias.fill_(1)
        delta, c = F.softplus(ours.proj_delta(x)), ours.proj_C(x)
        expected = ktune.nn.selective_scan(x, delta, -torch.exp(ours.A_log), expected_b, c, ours.D)
        torch.testing.assert_close(ours(x), expected)


def test_a_projection_with_a_hook_is_called() -> None:
    _, ours = scan_pair()
    x = torch.randn(2, 4, 12)
    with torch.no_grad():
        ours.proj_B.register_forward_hook(lambda layer, given, found: torch.zeros_like(found))
        torch.testing.assert_close(ours(x), x * ours.D)


def test_a_matmul_with_a_hook_is_called() -> None:
    _, ours = swish_pair()
    ours.matmul.register_forward_hook(lambda layer, given, found: torch.ones_like(found))
    with torch.no_grad():
        torch.testing.assert_close(ours(torch.randn(2, 7)), torch.full((2, 9), 2.0 * torch.sigmoid(torch.tensor(1.0))))


@pytest.mark.parametrize("shape", [(0, 5, 12), (2, 0, 12)])
def test_an_empty_batch_or_length_gives_an_empty_output(shape: tuple[int, ...]) -> None:
    _, ours = scan_pair()
    with torch.no_grad():
        assert ours(torch.zeros(shape)).shape == shape


def test_without_inputs_or_states_what_is_left_of_the_formula_remains() -> None:
    bias = torch.randn(3)
    found = ktune.nn.linear_swish_scale(torch.zeros(2, 0), torch.zeros(3, 0), bias)
    torch.testing.assert_close(found, (2 * bias * torch.sigmoid(bias)).expand(2, 3))
    given = scan_tensors(2, 4, 3, 0)
    torch.testing.assert_close(ktune.nn.selective_scan(**given), given["u"] * given["D"])


def test_the_scan_is_within_tolerance_of_float64() -> None:
    given = scan_tensors(2, 130, 6, 3)
    y, state = ktune.nn.selective_scan(**given, return_last_state=True)
    expected, expected_state = scan_in_float64(**given)
    assert_within_tolerance(y, expected)
    assert_within_tolerance(state, expected_state)


def test_the_last_state_after_strong_decay_is_within_tolerance() -> None:
    given = scan_tensors(1, 600, 3, 2)
    given["delta"] = given["delta"] * 20
    assert_within_tolerance(ktune.nn.selective_scan(**given, return_last_state=True)[1], scan_in_float64(**given)[1])


def test_bias_softplus_and_gate_are_applied_around_the_scan() -> None:
    given = scan_tensors(2, 11, 6, 3)
    raw, z, bias = torch.randn(2, 11, 6), torch.randn(2, 11, 6), torch.randn(6)
    found = ktune.nn.selective_scan(**{**given, "delta": raw}, z=z, delta_bias=bias, delta_softplus=True)
    expected, _ = scan_in_float64(**{**given, "delta": F.softplus(raw.double() + bias.double())})
    assert isinstance(found, torch.Tensor)
    assert_within_tolerance(found, expected * F.silu(z.double()))


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_options_together_are_within_tolerance_of_the_definition(dtype: torch.dtype, groups: int) -> None:
    given = scan_options(scan_tensors(2, 11, 6, 3), groups)
    given = narrowed(given) if dtype == torch.bfloat16 else given
    y, state = ktune.nn.selective_scan(**given, delta_softplus=True, return_last_state=True)
    expected, expected_state = scan_in_float64(**given, delta_softplus=True)
    assert y.dtype == dtype and state.dtype == torch.float32
    assert_within_tolerance(y, expected)
    assert_within_tolerance(state, expected_state)
    found = ktune.nn.selective_scan(**given, delta_softplus=True)
    assert isinstance(found, torch.Tensor) and torch.equal(found, y)


def test_two_calls_with_the_state_carried_over_are_one() -> None:
    given = scan_options(scan_tensors(2, 11, 6, 3), groups=2)
    whole, last = ktune.nn.selective_scan(**given, delta_softplus=True, return_last_state=True)
    state, parts = given.pop("initial_state"), []
    for rows in (slice(0, 4), slice(4, 11)):
        part = {name: given[name][:, rows] for name in ("u", "delta", "B", "C", "z")}
        y, state = ktune.nn.selective_scan(
            **{**given, **part}, initial_state=state, delta_softplus=True, return_last_state=True
        )
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    torch.testing.assert_close(state, last)


def test_time_last_with_groups_is_the_same_scan_turned() -> None:
    given = scan_options(scan_tensors(2, 11, 6, 3), groups=2)
    turned = {name: given[name].movedim(1, -1) for name in ("u", "delta", "B", "C", "z")}
    y = ktune.nn.selective_scan(**given)
    y_turned = ktune.nn.selective_scan(**{**given, **turned}, layout="BDL")
    torch.testing.assert_close(y_turned, y.transpose(1, 2))


def test_time_last_is_the_same_scan_turned() -> None:
    given = scan_tensors(2, 11, 6, 3)
    z = torch.randn(2, 11, 6)
    y, state = ktune.nn.selective_scan(**given, z=z, return_last_state=True)
    turned = {name: given[name].transpose(1, 2) for name in ("u", "delta", "B", "C")}
    y_turned, state_turned = ktune.nn.selective_scan(
        **{**given, **turned}, z=z.transpose(1, 2), return_last_state=True, layout="BDL"
    )
    torch.testing.assert_close(y_turned, y.transpose(1, 2))
    torch.testing.assert_close(state_turned, state)


def test_the_linear_function_takes_no_bias_and_any_strides() -> None:
    x, weight = torch.randn(5, 3).t(), torch.randn(5, 8).t()
    found = ktune.nn.linear_swish_scale(x, weight, None, 3.0)
    assert_within_tolerance(found, swish_in_float64(x, weight, None, 3.0))
    assert found.is_contiguous()


def test_autocast_widens_and_the_result_is_float32() -> None:
    written, ours = scan_pair()
    linear, our_linear = swish_pair()
    x, narrow = torch.randn(2, 9, 12), torch.randn(4, 7).bfloat16()
    given = scan_tensors(2, 9, 4, 3)
    projected = projection_tensors(6, 4, 3, 5)
    with torch.no_grad():
        expected, expected_linear = written(x), linear(narrow.float())
        expected_projections = ktune.nn.projections(**projected)
        state = ktune.nn.selective_scan(**given, return_last_state=True)[1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(ours(x), expected)
            torch.testing.assert_close(our_linear(narrow), expected_linear)
            torch.testing.assert_close(ktune.nn.projections(**projected), expected_projections)
            torch.testing.assert_close(ktune.nn.selective_scan(**given, return_last_state=True)[1], state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match="x must be float32"):
        ktune.nn.linear_swish_scale(torch.zeros(2, 3, dtype=dtype), torch.zeros(4, 3), torch.zeros(4))
    given = scan_tensors(2, 5, 4, 3)
    with pytest.raises(UsageError, match="B must be float32"):
        ktune.nn.selective_scan(**{**given, "B": given["B"].to(dtype)})
    with pytest.raises(UsageError, match="A must be float32"):
        ktune.nn.selective_scan(**{**narrowed(given), "A": given["A"].to(dtype)})
    with pytest.raises(UsageError, match=r"delta must be bfloat16, got torch\.float32"):
        ktune.nn.selective_scan(**{**narrowed(given), "delta": given["delta"]})
    with pytest.raises(UsageError, match=r"x must be float32 or bfloat16, got torch\.float16"):
        ktune.nn.selective_scan(**{name: tensor.half() for name, tensor in given.items()})


def test_shapes_that_do_not_fit_are_refused() -> None:
    given = scan_tensors(2, 5, 4, 3)
    with pytest.raises(UsageError, match=r"B must be \[2, 5, 3\].*layout"):
        ktune.nn.selective_scan(**{**given, "B": given["B"].transpose(1, 2)})
    with pytest.raises(UsageError, match=r"D must be \[4\]"):
        ktune.nn.selective_scan(**{**given, "D": torch.zeros(5)})
    with pytest.raises(UsageError, match=r"x must be \[\.\.\., K\]"):
        ktune.nn.linear_swish_scale(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(UsageError, match=r"bias must be \[4\]"):
        ktune.nn.linear_swish_scale(torch.zeros(2, 5), torch.zeros(4, 5), torch.zeros(1))
    projected = projection_tensors(6, 4, 3, 5)
    with pytest.raises(UsageError, match=r"x must be \[\.\.\., K\] and W_delta"):
        ktune.nn.projections(**{**projected, "x": torch.zeros(6, 4)})
    with pytest.raises(UsageError, match=r"W_B and W_C must be \[S, 5\]"):
        ktune.nn.projections(**{**projected, "W_C": torch.zeros(2, 5)})
    with pytest.raises(UsageError, match=r"bias must be \[4\]"):
        ktune.nn.projections(**{**projected, "bias": torch.zeros(3)})
    with pytest.raises(UsageError, match="layout must be"):
        ktune.nn.selective_scan(**given, layout="LBD")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"C must be \[2, 5, 2, 3\]"):
        ktune.nn.selective_scan(**{**given, "B": torch.zeros(2, 5, 2, 3)})
    with pytest.raises(UsageError, match="groups of B and C must divide the 4 channels, got 3"):
        ktune.nn.selective_scan(**{**given, "B": torch.zeros(2, 5, 3, 3)})
    with pytest.raises(UsageError, match=r"z must be \[2, 5, 4\]"):
        ktune.nn.selective_scan(**given, z=torch.zeros(2, 5, 3))
    with pytest.raises(UsageError, match=r"initial_state must be \[2, 4, 3\]"):
        ktune.nn.selective_scan(**given, initial_state=torch.zeros(2, 3, 4))


def test_asking_for_a_gradient_says_that_there_is_none() -> None:
    _, scan = scan_pair()
    _, linear = swish_pair()
    with pytest.raises(UsageError, match=r"no backward pass.*torch\.no_grad\(\).*ktune\.nn\.plain\.selective_scan"):
        scan(torch.randn(2, 4, 12)).sum().backward()
    with pytest.raises(UsageError, match=r"no backward pass.*ktune\.nn\.plain\.linear_swish_scale"):
        torch.autograd.grad(linear(torch.randn(2, 7)).sum(), linear.matmul.weight)
    given = projection_tensors(6, 4, 3, 5)
    for name, output in itertools.product(given, range(3)):
        wanted = given[name].clone().requires_grad_()
        with pytest.raises(UsageError, match=r"no backward pass.*ktune\.nn\.plain\.projections"):
            ktune.nn.projections(**{**given, name: wanted})[output].sum().backward()


def test_without_gradients_nothing_is_recorded() -> None:
    _, scan = scan_pair()
    with torch.no_grad():
        assert not scan(torch.randn(2, 4, 12)).requires_grad
    assert not scan.requires_grad_(False)(torch.randn(2, 4, 12)).requires_grad
    with torch.inference_mode():
        assert scan(torch.randn(2, 4, 12)).is_inference()


def test_the_plain_functions_have_the_gradients_of_the_definition() -> None:
    given = {name: tensor.double().requires_grad_() for name, tensor in scan_tensors(1, 3, 2, 2).items()}
    assert torch.autograd.gradcheck(plain.selective_scan, tuple(given.values()))


@pytest.mark.parametrize("states", [0, 3])
def test_the_scan_operator_keeps_the_contract_of_operators(states: int) -> None:
    given = tuple(scan_tensors(2, 5, 4, states).values())
    torch.library.opcheck(torch.ops.ktune.selective_scan.default, given)
    torch.library.opcheck(torch.ops.ktune.selective_scan.default, (*given[:-1], None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_scan_operators_with_options_keep_the_contract_of_operators(dtype: torch.dtype) -> None:
    given = scan_options(scan_tensors(2, 5, 4, 3), groups=2)
    given = narrowed(given) if dtype == torch.bfloat16 else given
    given["x"] = given.pop("u")
    for operator in (torch.ops.ktune.selective_scan, torch.ops.ktune.selective_scan_with_state):
        torch.library.opcheck(operator.default, (), {**given, "delta_softplus": True})


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (0, 7)])
@pytest.mark.parametrize("states", [0, 3])
def test_the_projections_operator_keeps_the_contract_of_operators(shape: tuple[int, ...], states: int) -> None:
    weights = torch.randn(5, 7), torch.randn(states, 7), torch.randn(states, 7)
    torch.library.opcheck(torch.ops.ktune.projections.default, (torch.randn(shape), *weights, torch.randn(5)))
    torch.library.opcheck(torch.ops.ktune.projections.default, (torch.randn(shape), *weights, None))


@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (0, 7)])
def test_the_linear_operator_keeps_the_contract_of_operators(shape: tuple[int, ...]) -> None:
    given = (torch.randn(shape), torch.randn(9, 7), torch.randn(9), 2.0)
    torch.library.opcheck(torch.ops.ktune.linear_swish_scale.default, given)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module_is_one_graph_and_gives_the_same(backend: str) -> None:
    _, scan = scan_pair()
    _, linear = swish_pair()
    with torch.no_grad():
        for layer, x in ((scan, torch.randn(2, 9, 12)), (linear, torch.randn(2, 3, 7))):
            compiled = torch.compile(layer, fullgraph=True, backend=backend)
            torch.testing.assert_close(compiled(x), layer(x))


def test_a_compiled_module_takes_other_lengths() -> None:
    _, scan = scan_pair()
    compiled = torch.compile(scan, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.no_grad():
        for length in (3, 8, 21):
            x = torch.randn(2, length, 12)
            torch.testing.assert_close(compiled(x), scan(x))


def test_a_compiled_module_under_autocast_gives_the_same() -> None:
    written, scan = scan_pair()
    x = torch.randn(2, 9, 12)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.compile(scan, fullgraph=True, backend="aot_eager")(x)
    with torch.no_grad():
        torch.testing.assert_close(found, written(x))


def test_modules_are_copied_and_saved_whole() -> None:
    _, scan = scan_pair()
    x = torch.randn(2, 4, 12)
    file = io.BytesIO()
    torch.save(scan, file)
    file.seek(0)
    with torch.no_grad():
        for other in (copy.deepcopy(scan), torch.load(file, weights_only=False)):
            torch.testing.assert_close(other(x), scan(x))
