"""The modules on a Hopper GPU: right whatever torch does around them, and by a kernel, not by the plain operations."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable

import pytest
import torch
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
from ktune.core.loading import load_family
from ktune.nn import winners

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.build,
    pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU"),
    pytest.mark.filterwarnings("error::ktune.nn.PlainPathWarning"),
]

SCAN_SHAPES = [
    (1, 1, 1, 1), (1, 2, 3, 1), (2, 130, 40, 16), (3, 257, 33, 5), (1, 63, 129, 64), (2, 100, 64, 17),
    (16, 512, 256, 16), (1, 300, 1536, 16),
]  # fmt: skip
LINEAR_SHAPES = [
    (1, 1, 1), (1, 129, 33), (127, 255, 257), (128, 256, 512), (129, 257, 511), (16, 101, 1000), (3, 4099, 64),
    (128, 4096, 4096), (1, 4096, 11008),
]  # fmt: skip

# Of R, P, S, K; with K a multiple of 4 and at most 1024 a kernel on tensor cores can serve them.
PROJECTION_SHAPES = [
    (1, 1, 1, 1), (7, 5, 3, 2), (64, 40, 16, 64), (131, 44, 8, 36), (2048, 41, 5, 37), (129, 144, 16, 4),
    (1000, 512, 16, 512), (300, 1024, 16, 1024), (32768, 256, 16, 256), (300, 1536, 16, 1536),
]  # fmt: skip


def linear_tensors(m: int, n: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(m, k, generator=generator, device="cuda")
    weight, bias = (torch.rand(*shape, generator=generator, device="cuda") * 2 - 1 for shape in ((n, k), (n,)))
    return x, weight / k**0.5, bias / k**0.5


def scan_layer(d_model: int = 64, d_state: int = 16) -> ktune.nn.SelectiveScan:
    torch.manual_seed(3)
    layer = ktune.nn.SelectiveScan(d_model, d_state, device="cuda").requires_grad_(False)
    layer.load_state_dict(PlainScan(d_model, d_state).state_dict())
    return layer


def scan_layer_in_float64(layer: ktune.nn.SelectiveScan, x: torch.Tensor) -> torch.Tensor:
    written = PlainScan(layer.d_model, layer.d_state).to("cuda", torch.float64)
    written.load_state_dict(layer.state_dict())
    with torch.no_grad():
        return written(x.double())


@pytest.mark.parametrize("shape", SCAN_SHAPES, ids=str)
def test_the_scan_is_within_tolerance_by_a_kernel(shape: tuple[int, int, int, int]) -> None:
    ktune.nn.prepare("selective_scan", **dict(zip("BLDN", shape, strict=True)))
    given = scan_tensors(*shape, device="cuda")
    assert_within_tolerance(ktune.nn.selective_scan(**given), scan_in_float64(**given)[0])
    given.pop("D")
    assert_within_tolerance(ktune.nn.selective_scan(**given), scan_in_float64(**given)[0])


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 4, 1), (3, 130, 40, 5), (2, 257, 512, 16), (1, 100, 64, 256)], ids=str)
def test_the_scan_with_all_options_is_within_tolerance_by_a_kernel(
    shape: tuple[int, int, int, int], dtype: torch.dtype, groups: int
) -> None:
    given = scan_options(scan_tensors(*shape, device="cuda"), groups)
    given = narrowed(given) if dtype == torch.bfloat16 else given
    expected, expected_state = scan_in_float64(**given, delta_softplus=True)
    y, state = ktune.nn.selective_scan(**given, delta_softplus=True, return_last_state=True)
    assert_within_tolerance(y, expected)
    assert_within_tolerance(state, expected_state)
    assert torch.equal(ktune.nn.selective_scan(**given, delta_softplus=True), y)


def test_two_calls_with_the_state_carried_over_are_one() -> None:
    given = scan_options(scan_tensors(2, 300, 256, 16, device="cuda"))
    expected, expected_state = scan_in_float64(**given, delta_softplus=True)
    state, parts = given.pop("initial_state"), []
    for rows in (slice(0, 101), slice(101, 300)):
        part = {name: given[name][:, rows] for name in ("u", "delta", "B", "C", "z")}
        y, state = ktune.nn.selective_scan(
            **{**given, **part}, initial_state=state, delta_softplus=True, return_last_state=True
        )
        parts.append(y)
    assert_within_tolerance(torch.cat(parts, 1), expected)
    assert_within_tolerance(state, expected_state)


@pytest.mark.parametrize("shape", LINEAR_SHAPES, ids=str)
@pytest.mark.parametrize("scale", [2.0, -0.75])
def test_the_linear_is_within_tolerance_by_a_kernel(shape: tuple[int, int, int], scale: float) -> None:
    ktune.nn.prepare("linear_swish_scale", scale=scale, **dict(zip("MNK", shape, strict=True)))
    x, weight, bias = linear_tensors(*shape)
    for given in ((x, weight, bias), (x, weight, None)):
        assert_within_tolerance(ktune.nn.linear_swish_scale(*given, scale), swish_in_float64(*given, scale))


@pytest.fixture
def on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `wgmma` had won the searches of the projections."""
    problems = load_family("projections").family.problems
    won = (
        winners.Recorded(problems["record"], {"algorithm": "wgmma", "vector_width": 4}),
        winners.Recorded(problems["d1024"], {"algorithm": "wgmma", "columns": 48, "stages": 2, "vector_width": 4}),
    )
    table = {**winners.shipped_winners(), "projections": {"NVIDIA H200": won}}
    monkeypatch.setattr(winners, "shipped_winners", lambda: table)
    monkeypatch.setattr("ktune.nn.kernels._found", {})


@pytest.mark.parametrize("shape", PROJECTION_SHAPES, ids=str)
def test_the_projections_are_within_tolerance_by_a_kernel(shape: tuple[int, int, int, int]) -> None:
    ktune.nn.prepare("projections", **dict(zip("RPSK", shape, strict=True)))
    check_projections(shape)


@pytest.mark.parametrize(
    "shape", [s for s in PROJECTION_SHAPES if not any(v % 4 for v in s[1:]) and s[3] <= 1024], ids=str
)
def test_the_projections_are_within_tolerance_on_tensor_cores(
    on_tensor_cores: None, shape: tuple[int, int, int, int]
) -> None:
    assert ktune.nn.prepare("projections", **dict(zip("RPSK", shape, strict=True))).startswith("wgmma.")
    check_projections(shape)


def check_projections(shape: tuple[int, int, int, int]) -> None:
    for given in (
        projection_tensors(*shape, device="cuda"),
        {**projection_tensors(*shape, device="cuda"), "bias": None},
    ):
        found = ktune.nn.projections(**given)
        for one, expected in zip(found, projections_in_float64(**given), strict=True):
            assert_within_tolerance(one, expected)
        again = ktune.nn.projections(**given)
        assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))


def test_the_scan_layer_is_within_tolerance_with_projections_on_tensor_cores(on_tensor_cores: None) -> None:
    scan = scan_layer()
    x = torch.randn(3, 257, 64, device="cuda")
    assert_within_tolerance(scan(x), scan_layer_in_float64(scan, x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scan(x)
    x.normal_()
    scan.proj_delta.weight.mul_(0.9)
    graph.replay()
    assert_within_tolerance(y, scan_layer_in_float64(scan, x))


def test_infinities_and_nan_of_one_row_stay_in_it(on_tensor_cores: None) -> None:
    given = projection_tensors(200, 40, 16, 64, device="cuda")
    expected = ktune.nn.projections(**given)
    for value in (torch.inf, -torch.inf, torch.nan):
        spoilt = given["x"].clone()
        spoilt[70, 5] = value
        found = ktune.nn.projections(**{**given, "x": spoilt})
        for one, clean in zip(found, expected, strict=True):
            others = torch.arange(200, device="cuda") != 70
            assert torch.equal(one[others], clean[others])
        wanted = projections_in_float64(**{**given, "x": spoilt})
        for one, exact in zip(found, wanted, strict=True):
            torch.testing.assert_close(one[70].double(), exact[70], equal_nan=True)


def test_the_layers_of_record_give_what_the_plain_ones_give() -> None:
    torch.manual_seed(4)
    scan = ktune.nn.SelectiveScan(256, 16, batch=16, seq_len=2048, device="cuda")
    written = PlainScan(256, 16).cuda()
    scan.load_state_dict(written.state_dict(), strict=True)
    scan.prepare()
    linear = ktune.nn.LinearSwishScale(32768, 32768, 2.0, device="cuda")
    linear.prepare(128)
    x, wide = torch.randn(16, 2048, 256, device="cuda"), torch.randn(128, 32768, device="cuda")
    with torch.no_grad():
        found = scan(x)
        for batch in range(0, 16, 4):
            part = x[batch : batch + 4]
            assert_within_tolerance(found[batch : batch + 4], scan_layer_in_float64(scan, part))
        found = linear(wide)
        for first in range(0, 32768, 4096):
            rows = slice(first, first + 4096)
            expected = swish_in_float64(wide, linear.matmul.weight[rows], linear.matmul.bias[rows], 2.0)
            assert_within_tolerance(found[:, rows], expected)


def test_leading_dimensions_of_the_linear_are_kept() -> None:
    x, weight, bias = linear_tensors(24, 40, 64)
    expected = swish_in_float64(x, weight, bias, 2.0)
    found = ktune.nn.linear_swish_scale(x.view(2, 3, 4, 64), weight, bias)
    assert found.shape == (2, 3, 4, 40)
    assert_within_tolerance(found.view(24, 40), expected)
    assert_within_tolerance(ktune.nn.linear_swish_scale(x[0], weight, bias), expected[0])


def offset(tensor: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """The same values, starting 4 bytes off a multiple of 16."""
    room = torch.empty(tensor.numel() + elements, device=tensor.device)
    return room[elements:].view(tensor.shape).copy_(tensor)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every other element of a tensor twice as wide, whose gaps are NaN."""
    room = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan, device=tensor.device)
    room[..., ::2] = tensor
    return room[..., ::2]


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, stored in the opposite order of dimensions."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


@pytest.mark.parametrize("laid_out", [offset, strided, turned])
def test_inputs_of_any_layout_give_the_same_bits(laid_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
    given = scan_tensors(2, 70, 64, 16, device="cuda")
    y = ktune.nn.selective_scan(**given)
    assert torch.equal(y, ktune.nn.selective_scan(**{name: laid_out(tensor) for name, tensor in given.items()}))


@pytest.mark.parametrize("laid_out", [offset, strided, turned])
@pytest.mark.parametrize("shape", [(24, 40, 64), (1, 1024, 2048), (128, 1024, 2048), (128, 257, 1029)], ids=str)
def test_inputs_of_the_linear_of_any_layout_give_the_same_bits(
    laid_out: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, int, int]
) -> None:
    x, weight, bias = linear_tensors(*shape)
    y = ktune.nn.linear_swish_scale(x, weight, bias)
    assert_within_tolerance(y, swish_in_float64(x, weight, bias, 2.0))
    assert torch.equal(y, ktune.nn.linear_swish_scale(laid_out(x), laid_out(weight), laid_out(bias)))
    projected = projection_tensors(24, 40, 16, 64, device="cuda")
    turned_around = {name: laid_out(tensor) for name, tensor in projected.items()}
    for one, other in zip(ktune.nn.projections(**projected), ktune.nn.projections(**turned_around), strict=True):
        assert torch.equal(one, other)


def test_inputs_are_not_changed() -> None:
    given = scan_tensors(2, 70, 64, 16, device="cuda")
    before = {name: tensor.clone() for name, tensor in given.items()}
    ktune.nn.selective_scan(**given)
    assert all(torch.equal(before[name], given[name]) for name in given)


def test_a_captured_graph_replays_on_new_inputs_and_new_parameters() -> None:
    scan, linear = scan_layer(), ktune.nn.LinearSwishScale(64, 96, device="cuda").requires_grad_(False)
    x = torch.randn(2, 50, 64, device="cuda")
    linear(scan(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = linear(scan(x))
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        scan.proj_delta.weight.mul_(0.9)
        scan.proj_B.weight.data.add_(0.01)
        linear.matmul.bias.add_(0.1)
        y.fill_(torch.nan)
        graph.replay()
        middle = scan_layer_in_float64(scan, x)
        expected = swish_in_float64(middle, linear.matmul.weight, linear.matmul.bias, 2.0)
        assert_within_tolerance(y, expected)


def test_a_kernel_that_is_not_loaded_is_refused_during_capture() -> None:
    x, weight, bias = linear_tensors(5, 43, 77)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(UsageError, match=r"ktune\.nn\.prepare"), torch.cuda.graph(graph):
        ktune.nn.linear_swish_scale(x, weight, bias)
    torch.cuda.synchronize()
    assert_within_tolerance(ktune.nn.linear_swish_scale(x, weight, bias), swish_in_float64(x, weight, bias, 2.0))


def test_kernels_wait_for_a_producer_on_their_own_stream() -> None:
    """Inputs are NaN until long after the call; only a launch on the producer's stream sees them filled."""
    given, (x, weight, bias) = scan_tensors(2, 70, 64, 16, device="cuda"), linear_tensors(24, 40, 64)
    y, z = ktune.nn.selective_scan(**given), ktune.nn.linear_swish_scale(x, weight, bias)
    projected = projection_tensors(24, 40, 16, 64, device="cuda")
    delta, _, _ = ktune.nn.projections(**projected)
    projected_late = {**projected, "x": torch.full_like(projected["x"], torch.nan)}
    late = {name: torch.full_like(tensor, torch.nan) for name, tensor in given.items()}
    x_late = torch.full_like(x, torch.nan)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # about half a second: enough for a busy host to enqueue the rest
        torch.cuda._sleep(1_000_000_000)
        for name, tensor in given.items():
            late[name].copy_(tensor)
        x_late.copy_(x)
        projected_late["x"].copy_(projected["x"])
        y_late = ktune.nn.selective_scan(**late)
        delta_late, _, _ = ktune.nn.projections(**projected_late)
        z_late = ktune.nn.linear_swish_scale(x_late, weight, bias)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(y_late, y)
    assert torch.equal(z_late, z)
    assert torch.equal(delta_late, delta)


# A first compilation takes a minute beside others.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_module_gives_the_same(mode: str) -> None:
    pytest.importorskip("triton")
    scan, linear = scan_layer(), ktune.nn.LinearSwishScale(64, 96, device="cuda").requires_grad_(False)
    model = torch.nn.Sequential(scan, linear)
    compiled = torch.compile(model, fullgraph=True, mode=mode)
    for _ in range(4):
        x = torch.randn(2, 50, 64, device="cuda")
        expected = swish_in_float64(scan_layer_in_float64(scan, x), linear.matmul.weight, linear.matmul.bias, 2.0)
        assert_within_tolerance(compiled(x).clone(), expected)


def test_threads_on_their_own_streams_do_not_disturb_each_other() -> None:
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            length = 40 + 30 * (number // 2)
            given = scan_tensors(2, length, 64, 16, device="cuda", seed=number)
            x, weight, bias = linear_tensors(8 + number, 48, 64, seed=number)
            expected, expected_linear = scan_in_float64(**given)[0], swish_in_float64(x, weight, bias, 2.0)
            torch.cuda.synchronize()
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(50):
                    y, z = ktune.nn.selective_scan(**given), ktune.nn.linear_swish_scale(x, weight, bias)
                torch.cuda.current_stream().synchronize()
            assert_within_tolerance(y, expected)
            assert_within_tolerance(z, expected_linear)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_a_thread_that_has_not_used_the_gpu_can_call() -> None:
    given = scan_tensors(2, 70, 64, 16, device="cuda")
    expected = ktune.nn.selective_scan(**given)
    found: list[object] = []

    def work() -> None:
        try:
            found.append(ktune.nn.selective_scan(**given))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert isinstance(found[0], torch.Tensor), found[0]
    assert torch.equal(found[0], expected)


def test_results_are_the_same_bits_every_time() -> None:
    given = scan_tensors(4, 200, 256, 16, device="cuda")
    first = ktune.nn.selective_scan(**given)
    assert all(torch.equal(ktune.nn.selective_scan(**given), first) for _ in range(20))


def test_changes_to_parameters_count() -> None:
    scan = scan_layer()
    x = torch.randn(2, 50, 64, device="cuda")
    scan(x)
    scan.proj_C.weight.data.normal_()
    scan.proj_delta.bias.sub_(1)
    assert_within_tolerance(scan(x), scan_layer_in_float64(scan, x))
    scan.load_state_dict(PlainScan(64, 16).cuda().state_dict(), assign=True)
    with torch.no_grad():
        assert_within_tolerance(scan(x), scan_layer_in_float64(scan, x))
    copied = copy.deepcopy(scan)
    with torch.no_grad():
        assert torch.equal(copied(x), scan(x))


def test_asking_for_a_gradient_says_that_there_is_none() -> None:
    layer = ktune.nn.SelectiveScan(64, 16, device="cuda")
    with pytest.raises(UsageError, match="no backward pass"):
        layer(torch.randn(2, 50, 64, device="cuda")).sum().backward()


def test_autocast_widens() -> None:
    scan, written = scan_layer(), PlainSwish(64, 32).cuda().requires_grad_(False)
    linear = ktune.nn.LinearSwishScale(64, 32, device="cuda").requires_grad_(False)
    linear.load_state_dict(written.state_dict())
    x = torch.randn(2, 50, 64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, z = scan(x), linear(x)
    assert_within_tolerance(y, scan_layer_in_float64(scan, x))
    assert_within_tolerance(z, swish_in_float64(x, linear.matmul.weight, linear.matmul.bias, 2.0))


def test_empty_inputs_need_no_kernel() -> None:
    assert scan_layer()(torch.zeros(0, 50, 64, device="cuda")).shape == (0, 50, 64)
    assert ktune.nn.linear_swish_scale(*linear_tensors(3, 4, 5)[:1], torch.zeros(0, 5, device="cuda")).shape == (3, 0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_device_is_that_of_the_inputs() -> None:
    given = {name: tensor.to("cuda:1") for name, tensor in scan_tensors(2, 70, 64, 16).items()}
    with torch.cuda.device(0):
        y = ktune.nn.selective_scan(**given)
    assert y.device == torch.device("cuda", 1)
    assert_within_tolerance(y, scan_in_float64(**given)[0])


@pytest.mark.slow
def test_beyond_2_to_the_31_elements_a_batch_gives_what_its_parts_give() -> None:
    given = scan_tensors(1, 32768, 4096, 16, device="cuda")
    rows = ("u", "delta", "B", "C")
    batch = {name: tensor.expand(17, -1, -1).contiguous() if name in rows else tensor for name, tensor in given.items()}
    assert batch["u"].numel() > 2**31
    y = ktune.nn.selective_scan(**batch)
    alone = ktune.nn.selective_scan(**{**given, **{name: batch[name][16:] for name in rows}})
    torch.testing.assert_close(y[16:], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(y[:1], alone, rtol=1e-4, atol=1e-4)
