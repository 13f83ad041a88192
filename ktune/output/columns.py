"""The columns of a table of measurements: every name, its unit and its meaning, in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ktune.api import Cost, Family, KernelLaunch
from ktune.core.identity import configuration_id, value_text
from ktune.core.model import Accuracy, BuildFacts, Environment, Measurement, Timing
from ktune.output.limits import compulsory_bytes, dram_floor_us
from ktune.output.ranking import has_time

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """One column. kind: text, whole or real. cell: its value for a measurement, None where there is none."""

    name: str
    kind: str
    meaning: str
    cell: Callable[[Measurement, Family, Cost], Cell]


def columns(family: Family, measurements: Sequence[Measurement]) -> list[Column]:
    """All columns for these measurements: the fixed ones, one per parameter, one per phase that was timed."""
    return [*_RESULT, *_parameter_columns(family), *_ORIGIN, *_phase_columns(measurements)]


def glossary(family: Family, measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """(column, meaning) for each column of the table, in order."""
    return [(column.name, column.meaning) for column in columns(family, measurements)]


def _direct(name: str, kind: str, meaning: str, read: Callable[[Measurement], Cell]) -> Column:
    return Column(name, kind, meaning, lambda m, family, cost: read(m))


def _timed(name: str, kind: str, meaning: str, regime: str, read: Callable[[Timing], Cell]) -> Column:
    def cell(m: Measurement) -> Cell:
        timing = m.cold if regime == "cold" else m.hot
        return None if timing is None else read(timing)

    return _direct(name, kind, meaning, cell)


def _regime_columns(regime: str, state: str) -> list[Column]:
    def us(name: str, meaning: str, read: Callable[[Timing], Cell]) -> Column:
        return _timed(f"time_{regime}_{name}_us", "real", f"{meaning}, microseconds, {state}", regime, read)

    return [
        us("median", "median time of one execution", lambda t: t.median_us),
        us("ci_low", "lower end of the median's 95 % confidence interval", lambda t: t.ci_low_us),
        us("ci_high", "upper end of the median's 95 % confidence interval", lambda t: t.ci_high_us),
        us("min", "shortest sample", lambda t: t.min_us),
        us("q1", "lower quartile", lambda t: t.q1_us),
        us("q3", "upper quartile", lambda t: t.q3_us),
        us("mad", "median absolute deviation from the median", lambda t: t.mad_us),
        _timed(f"time_{regime}_samples", "whole", f"number of samples, {state}", regime, lambda t: len(t.samples_us)),
        _timed(f"time_{regime}_method", "text", f"how the samples were timed, {state}", regime, lambda t: t.method),
    ]


def _per_cold_us(m: Measurement, amount: float) -> Cell:
    return amount / m.cold.median_us if m.cold is not None and has_time(m) else None


def _dram_limit_percent(m: Measurement, cost: Cost) -> Cell:
    floor = dram_floor_us(cost, m.environment)
    return None if floor is None else _per_cold_us(m, 100.0 * floor)


def _accuracy(name: str, meaning: str, read: Callable[[Accuracy], Cell]) -> Column:
    return _direct(name, "real", meaning, lambda m: None if m.accuracy is None else read(m.accuracy))


def _build(name: str, kind: str, meaning: str, read: Callable[[BuildFacts], Cell]) -> Column:
    return _direct(name, kind, meaning, lambda m: None if m.build is None else read(m.build))


def _machine(name: str, kind: str, meaning: str, read: Callable[[Environment], Cell]) -> Column:
    return _direct(name, kind, meaning, lambda m: None if m.environment is None else read(m.environment))


def _smem_dynamic_bytes(m: Measurement, family: Family) -> int | None:
    # A configuration that never got as far as a binary may be one that `plan` cannot serve.
    if m.build is None:
        return None
    launches = family.plan(m.variant.configuration, m.problem).launches
    return max((x.smem_bytes for x in launches if isinstance(x, KernelLaunch)), default=None)


def _compiler(m: Measurement) -> Cell:
    if m.build is not None:
        return m.build.compiler
    return None if m.environment is None else m.environment.compiler


def _smem_bytes(m: Measurement, family: Family) -> Cell:
    dynamic = _smem_dynamic_bytes(m, family)
    return None if m.build is None or dynamic is None else m.build.smem_static_bytes + dynamic


_RESULT: tuple[Column, ...] = (
    _direct("trial", "whole", "number of the measurement in its study", lambda m: m.trial),
    Column(
        "configuration_id",
        "text",
        "readable name of the configuration, complete",
        lambda m, family, cost: configuration_id(family, m.variant.configuration),
    ),
    _direct("problem", "text", "sizes (and dtype, if not float32) of the problem", lambda m: m.problem.label),
    _direct("status", "text", "how the measurement ended; only `ok` may win", lambda m: m.status.value),
    _direct("source", "text", "where the figures come from: measured, replayed, cpu or fake", lambda m: m.source.value),
    _direct("effort", "text", "`search`: short timing; `full`: the finalists' protocol", lambda m: m.effort.value),
    _direct("detail", "text", "why it is not `ok`", lambda m: m.detail or None),
    *_regime_columns("cold", "L2 flushed before each execution"),
    *_regime_columns("hot", "data left in L2 by the execution before"),
    _direct("time_bound_us", "real", "lower bound of a culled variant's cold time, microseconds", lambda m: m.bound_us),
    Column(
        "dram_gbps",
        "real",
        "compulsory bytes (each read and written once) over the cold median, GB/s",
        lambda m, family, cost: _per_cold_us(m, compulsory_bytes(cost) / 1e3),
    ),
    Column(
        "gflops",
        "real",
        "floating-point operations of the problem over the cold median, GFLOP/s",
        lambda m, family, cost: _per_cold_us(m, cost.flops / 1e3),
    ),
    Column(
        "dram_limit_percent",
        "real",
        "compulsory bytes at the datasheet's bandwidth, per cent of the cold median",
        lambda m, family, cost: _dram_limit_percent(m, cost),
    ),
    _accuracy("max_abs_error", "largest |y - reference|", lambda a: a.max_abs),
    _accuracy("max_rel_error", "largest |y - reference| / |reference|, above a floor", lambda a: a.max_rel),
    _accuracy("max_ulp_error", "largest error in units in the last place", lambda a: a.max_ulp),
    _accuracy("normwise_error", "||y - reference|| / ||reference||", lambda a: a.normwise),
    _accuracy("worst_error_ratio", "largest error / tolerance; above 1 (or NaN) is wrong", lambda a: a.worst_ratio),
    _accuracy(
        "worst_bound_ratio",
        "largest error / the family's componentwise bound; above 1 (or NaN) is wrong, empty without a bound",
        lambda a: a.bound_ratio,
    ),
    _accuracy("fraction_bad", "fraction of elements beyond the tolerance or the bound", lambda a: a.fraction_bad),
    _build("registers", "whole", "registers per thread, most of any kernel", lambda b: b.registers),
    _build("spill_store_bytes", "whole", "bytes of registers spilled, all kernels", lambda b: b.spill_store_bytes),
    _build("spill_load_bytes", "whole", "bytes of registers read back, all kernels", lambda b: b.spill_load_bytes),
    _build("stack_bytes", "whole", "stack frame, all kernels", lambda b: b.stack_bytes),
    _build("smem_static_bytes", "whole", "static shared memory, all kernels", lambda b: b.smem_static_bytes),
    Column(
        "smem_dynamic_bytes",
        "whole",
        "dynamic shared memory of a block, most of any launch",
        lambda m, family, cost: _smem_dynamic_bytes(m, family),
    ),
    Column(
        "smem_bytes",
        "whole",
        "static and dynamic shared memory together",
        lambda m, family, cost: _smem_bytes(m, family),
    ),
    _timed("sm_clock_mhz", "whole", "SM clock during the cold samples", "cold", lambda t: t.sm_clock_mhz),
    _timed(
        "throttle",
        "text",
        "clock limits that NVML named during the cold samples",
        "cold",
        lambda t: "+".join(t.throttle) or None,
    ),
)

_ORIGIN: tuple[Column, ...] = (
    _machine("gpu", "text", "GPU model", lambda e: e.gpu_name),
    _machine("gpu_uuid", "text", "the one GPU", lambda e: e.gpu_uuid),
    _machine("driver", "text", "NVIDIA driver", lambda e: e.driver),
    _machine("cuda_driver", "text", "newest CUDA that the driver supports", lambda e: e.cuda_driver),
    _direct("compiler", "text", "what compiled it", _compiler),
    _machine("torch", "text", "PyTorch", lambda e: e.torch),
    _machine("ktune", "text", "this program's version", lambda e: e.ktune),
    _machine("power_limit_w", "real", "power limit, watts", lambda e: e.power_limit_w),
    _machine("foreign_processes", "whole", "other compute processes on the GPU", lambda e: e.foreign_processes),
    _direct("target", "text", "architecture compiled for", lambda m: m.variant.target),
    _build("build_key", "text", "digest of source, includes, compiler, flags and target", lambda b: b.key),
    _build("code_digest", "text", "digest of the machine code: equal digests run equal code", lambda b: b.code_digest),
    _build("compile_s", "real", "time of the compiler when this was built, seconds", lambda b: b.compile_s),
    _build("build_cached", "whole", "1 if the binary came from the cache", lambda b: int(b.cached)),
    _direct("finished_at", "text", "when the measurement ended, ISO 8601", lambda m: m.finished_at or None),
)


def parameter_column(family: Family, name: str) -> str:
    """The column that holds a parameter: its name, or `parameter_<name>` where that is another column's."""
    taken = {column.name for column in (*_RESULT, *_ORIGIN)}
    return f"parameter_{name}" if name in taken else name


def _parameter_columns(family: Family) -> list[Column]:
    found = []
    for parameter in family.parameters:
        whole = not any(isinstance(value, str) for value in parameter.values)

        def cell(m: Measurement, name: str = parameter.name, whole: bool = whole) -> Cell:
            value = m.variant.configuration.get(name)
            if value is None:
                return None
            return int(value) if whole else value_text(value)

        meaning = f"parameter: {parameter.help}; empty where it does not exist"
        found.append(_direct(parameter_column(family, parameter.name), "whole" if whole else "text", meaning, cell))
    return found


def _phase_columns(measurements: Sequence[Measurement]) -> list[Column]:
    return [_phase_column(phase) for phase in sorted({phase for m in measurements for phase in m.seconds})]


def _phase_column(phase: str) -> Column:
    return _direct(f"phase_{phase}_s", "real", f"time in the phase `{phase}`, seconds", lambda m: m.seconds.get(phase))
