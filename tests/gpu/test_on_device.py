"""Driver, buffers, timer and backend on a real GPU, with the smallest family."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ktune.api import KernelLaunch, Plan, Scalar, Tensor, TensorMap
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Effort, Problem, Status
from ktune.core.prelude import prelude, variant_flags
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.protocol import Job, LaunchFault

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: torch sees none"),
]

KERNELS = r"""
extern "C" __global__ void fill_through_shared(float* y, int n, float value) {
  extern __shared__ float tile[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = value + i;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tile[i];
}
extern "C" __global__ void rank_in_cluster(int* y) {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) y[blockIdx.x] = rank;
}
extern "C" __global__ void nothing() {}
extern "C" __global__ void stray(float* y) { y[1ll << 40] = 1.0f; }
"""

# `late_ramp` lets its successor start at once and writes late; `copy_box` waits for it and copies by TMA.
DEPENDENT_KERNELS = r"""
struct alignas(64) Map { char encoded[128]; };
extern "C" __global__ void late_ramp(float* t, int n) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  for (int i = 0; i < 200; ++i) __nanosleep(1000);
  for (int i = threadIdx.x; i < n; i += blockDim.x) t[i] = i;
}
extern "C" __global__ void copy_box(const __grid_constant__ Map map, float* y, int column, int row, int n) {
  __shared__ alignas(1024) float box[1024];
  __shared__ alignas(8) unsigned long long full;
  const unsigned barrier = static_cast<unsigned>(__cvta_generic_to_shared(&full));
  const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(box));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(4 * n) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier) : "memory");
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = box[i];
}
"""


def target() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"


def compile_cubin(source: str, folder: Path, name: str, flags: tuple[str, ...] = ()) -> Path:
    text, cubin = folder / f"{name}.cu", folder / f"{name}.cubin"
    text.write_text(source)
    arch = target()
    code = f"arch={arch.replace('sm', 'compute')},code={arch}"
    subprocess.run(["nvcc", "-cubin", "-O3", "-gencode", code, *flags, "-o", cubin, text], check=True)
    return cubin


@pytest.fixture(scope="module")
def toy(families: Path) -> LoadedFamily:
    return load_family(families / "toy")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_cubin(KERNELS, tmp_path_factory.mktemp("kernels"), "kernels")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("builds")


@pytest.fixture
def module(kernels: Path) -> Iterator[object]:
    from ktune.gpu.driver import Module

    torch.zeros(1, device="cuda")
    loaded = Module(kernels)
    yield loaded
    torch.cuda.synchronize()
    loaded.unload()


def job_of(toy: LoadedFamily, builds: Path, problem: Problem, effort: Effort = Effort.SEARCH, **values: object) -> Job:
    configuration = Space(toy.family, [problem]).complete(values)
    variant = make_variant(toy.family, configuration, problem, target())
    name = configuration_id(toy.family, configuration)
    source = prelude(toy.family, variant) + (toy.folder / toy.family.source(configuration)).read_text()
    cubin = compile_cubin(source, builds, name, variant_flags(toy.family, variant))
    return Job(0, variant, problem, str(cubin), effort)


@pytest.fixture(scope="module")
def backend(toy: LoadedFamily) -> Iterator[object]:
    from ktune.gpu.backend import cuda_backend

    made = cuda_backend(str(toy.folder), "")
    yield made
    made.close()


def test_a_kernel_with_100_kb_of_shared_memory_runs(module) -> None:
    from ktune.gpu.driver import BoundLaunch

    n = 25_600
    y = torch.zeros(n, device="cuda")
    launch = KernelLaunch(
        "fill_through_shared", (1, 1, 1), (256, 1, 1), ("y", Scalar(n), Scalar(0.5, "float32")), smem_bytes=4 * n
    )
    kernel = module.kernel(launch.kernel)
    run = BoundLaunch(kernel, launch, {"y": y.data_ptr()})
    for _ in range(2):
        run()
    assert torch.equal(y, torch.arange(n, device="cuda") + 0.5)
    assert kernel.registers > 0
    assert kernel.blocks_per_sm(256, 4 * n) >= 1


def test_a_cluster_launch_gives_each_block_its_rank(module) -> None:
    from ktune.gpu.driver import BoundLaunch

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    y = torch.full((8,), -1, dtype=torch.int32, device="cuda")
    launch = KernelLaunch("rank_in_cluster", (8, 1, 1), (32, 1, 1), ("y",), cluster=(4, 1, 1))
    BoundLaunch(module.kernel(launch.kernel), launch, {"y": y.data_ptr()})()
    assert y.tolist() == [0, 1, 2, 3] * 2


def test_a_dependent_launch_copies_a_swizzled_box_of_what_its_predecessor_wrote(tmp_path: Path) -> None:
    from ktune.gpu.buffers import Region
    from ktune.gpu.driver import Module
    from ktune.gpu.plans import bind_launch

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("tensor maps and dependent launches need compute capability 9.0")
    rows, columns, box_rows, row, column = 60, 64, 32, 40, 32
    whole = Region(Tensor("t", (rows, columns)), torch.device("cuda"))
    box = Region(Tensor("y", (box_rows, 32)), torch.device("cuda"))
    ramp = KernelLaunch("late_ramp", (1, 1, 1), (256, 1, 1), ("t", Scalar(rows * columns)))
    tile = TensorMap("t", (box_rows, 32), swizzle_bytes=128)
    sizes = (Scalar(column), Scalar(row), Scalar(box_rows * 32))
    copy = KernelLaunch("copy_box", (1, 1, 1), (128, 1, 1), (tile, "y", *sizes), programmatic=True)
    loaded = Module(compile_cubin(DEPENDENT_KERNELS, tmp_path, "dependent"))
    steps = [bind_launch(loaded.kernel(launch.kernel), launch, {"t": whole, "y": box}) for launch in (ramp, copy)]
    expected = torch.zeros(box_rows, 32)
    expected[: rows - row] = torch.arange(rows * columns).view(rows, columns)[row:, column:]
    for _ in range(3):
        whole.poison()
        box.poison()
        for step in steps:
            step()
        # 16-byte chunk c of row r lies at c xor r % 8
        chunks = box.tensor.cpu().view(box_rows, 8, 4)
        found = torch.stack([chunks[r, torch.arange(8) ^ (r % 8)] for r in range(box_rows)]).view(box_rows, 32)
        assert torch.equal(found, expected)
    assert not whole.broken_canary() and not box.broken_canary()
    loaded.unload()


def test_launches_follow_the_current_stream(module) -> None:
    from ktune.gpu.driver import BoundLaunch

    y = torch.zeros(64, device="cuda")
    launch = KernelLaunch(
        "fill_through_shared", (1, 1, 1), (64, 1, 1), ("y", Scalar(64), Scalar(1.0, "float32")), smem_bytes=256
    )
    run = BoundLaunch(module.kernel(launch.kernel), launch, {"y": y.data_ptr()})
    run()
    y.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    torch.cuda.synchronize()
    assert not bool(y.any()), "captured, not executed"
    graph.replay()
    torch.cuda.synchronize()
    assert y[63].item() == 64.0


def test_refused_launches_leave_the_process_sound(module, tmp_path: Path) -> None:
    from ktune.gpu.driver import BoundLaunch, Module

    nothing = module.kernel("nothing")
    with pytest.raises(LaunchFault, match="NOT_FOUND"):
        module.kernel("no_such_kernel")
    with pytest.raises(LaunchFault, match="dynamic shared memory"):
        BoundLaunch(nothing, KernelLaunch("nothing", (1, 1, 1), (32, 1, 1), (), smem_bytes=10**6), {})
    with pytest.raises(LaunchFault, match="block \\(2048, 1, 1\\)"):
        BoundLaunch(nothing, KernelLaunch("nothing", (1, 1, 1), (2048, 1, 1), ()), {})()
    garbage = tmp_path / "garbage.cubin"
    garbage.write_bytes(b"not a cubin" * 100)
    with pytest.raises(LaunchFault, match=r"loading garbage\.cubin"):
        Module(garbage)
    BoundLaunch(nothing, KernelLaunch("nothing", (1, 1, 1), (32, 1, 1), ()), {})()
    torch.cuda.synchronize()


def test_a_stray_write_is_a_sticky_fault(kernels: Path) -> None:
    script = """
import sys, torch
from pathlib import Path
from ktune.api import KernelLaunch
from ktune.gpu.driver import BoundLaunch, Module, named_faults
from ktune.gpu.protocol import StickyFault
y = torch.zeros(8, device="cuda")
module = Module(Path(sys.argv[1]))
run = BoundLaunch(module.kernel("stray"), KernelLaunch("stray", (1, 1, 1), (32, 1, 1), ("y",)), {"y": y.data_ptr()})
for again in ("torch.cuda.synchronize()", "run(); torch.cuda.synchronize()", "Module(Path(sys.argv[1]))"):
    try:
        with named_faults("checking"):
            run()
            exec(again)
    except StickyFault as fault:
        print("sticky:", fault)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, kernels], capture_output=True, text=True, timeout=120, cwd=root
    )
    assert done.stdout.count("sticky:") == 3, done.stdout + done.stderr
    assert "illegal" in done.stdout.lower()


def test_the_environment_names_the_gpu_by_nvmls_uuid(backend) -> None:
    from ktune.gpu import nvml

    environment = backend.environment()
    gpu = nvml.select_gpu(environment.gpu_uuid)
    assert gpu.name == environment.gpu_name and environment.driver == gpu.driver
    assert environment.l2_bytes and environment.sm_count and environment.memory_bytes
    assert environment.torch == torch.__version__


@pytest.mark.timed
@pytest.mark.parametrize("effort", [Effort.SEARCH, Effort.FULL])
@pytest.mark.parametrize(
    "values", [{}, {"algorithm": "unrolled", "items": 4, "unroll": 2}, {"block_size": 32, "fast_math": True}]
)
def test_right_variants_are_verified_timed_and_verified_again(backend, toy, builds, effort, values) -> None:
    problem = toy.named_problems["default"]
    backend.prepare(problem)
    backend.load(job_of(toy, builds, problem, effort, **values))
    verdict = backend.verify()
    assert verdict.status is Status.OK, verdict
    timings = backend.time()
    assert timings.status is Status.OK, timings
    assert timings.cold is not None and timings.hot is not None
    assert len(timings.cold.samples_us) >= (30 if effort is Effort.FULL else 8)
    assert "host-bound" not in timings.cold.method
    assert timings.cold.sm_clock_mhz
    assert backend.recheck().status is Status.OK
    backend.unload()


def test_a_hopeless_variant_is_culled(backend, toy, builds) -> None:
    problem = toy.named_problems["default"]
    backend.prepare(problem)
    backend.load(dataclasses.replace(job_of(toy, builds, problem), cull_above_us=0.01))
    timings = backend.time()
    assert timings.status is Status.CULLED and timings.bound_us is not None and timings.bound_us > 0.01
    backend.unload()


def judged(toy: LoadedFamily, builds: Path, arguments, monkeypatch: pytest.MonkeyPatch, backend):
    """The verdict on the toy kernel launched with other arguments than the plan's."""
    problem = toy.named_problems["small"]
    real = toy.family.plan

    def plan(configuration, given):
        launch = real(configuration, given).launches[0]
        blocks = (launch.grid[0] + 1, 1, 1)
        return Plan((dataclasses.replace(launch, grid=blocks, arguments=arguments(given)),))

    backend.prepare(problem)
    with monkeypatch.context() as patch:
        patch.setitem(toy.family.__dict__, "plan", plan)
        backend.load(job_of(toy, builds, problem))
    try:
        return backend.verify()
    finally:
        backend.unload()


def test_a_real_kernel_that_goes_wrong_is_found_out_and_the_next_is_not_blamed(
    backend, toy, builds, monkeypatch
) -> None:
    def size(problem, more: int) -> Scalar:
        return Scalar(problem["N"] + more, "int64")

    cases = {
        "y[1000] was overwritten": lambda p: ("x", "y", size(p, 1)),
        "input x was changed": lambda p: ("x", "x", size(p, 0)),
        "y[999]": lambda p: ("x", "y", size(p, -1)),
        "y[0]": lambda p: ("x", "y", Scalar(0, "int64")),
    }
    for words, arguments in cases.items():
        verdict = judged(toy, builds, arguments, monkeypatch, backend)
        assert verdict.status is Status.WRONG and words in verdict.detail, (words, verdict)
    verdict = judged(toy, builds, lambda p: ("x", "y", size(p, 0)), monkeypatch, backend)
    assert verdict.status is Status.OK, verdict


def test_samples_of_a_kernel_of_known_length_are_no_shorter(backend) -> None:
    timer = backend._timer
    # 300,000 SM clocks last 100 us at 3 GHz, beyond any Hopper
    timer.bind(lambda: torch.cuda._sleep(300_000))
    for reading in (timer.cold(10), timer.hot(5, 3)):
        assert min(reading.samples_us) > 100.0
    assert timer.empty_pair_us > 0.0


def test_regions_are_aligned_and_guarded_in_device_memory() -> None:
    from ktune.gpu.buffers import Region, any_canary_broken

    region = Region(Tensor("y", (1001,)), torch.device("cuda"))
    assert region.pointer % 256 == 0
    region.poison()
    assert bool(region.tensor.isnan().all()) and not bool(any_canary_broken([region]))
