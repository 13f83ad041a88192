"""A winner as a CUDA file that needs nothing else: its kernels, configured, and a launcher for C and C++."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path

from ktune.api import KernelLaunch, Scalar, Tensor, TensorMap, TorchOperation
from ktune.build.source import variant_source
from ktune.core.errors import UsageError
from ktune.core.model import Source
from ktune.core.tensor_map import map_layout
from ktune.output.c_text import comment, identifier, integer, macro
from ktune.output.files import write_file
from ktune.output.header import MARK
from ktune.output.provenance import provenance_lines
from ktune.output.winner import Winner, tensor_bytes, workspace_layout

_POINTERS = {
    "float64": "double", "float32": "float", "int64": "long long", "int32": "int", "int16": "short",
    "int8": "signed char", "uint8": "unsigned char", "bool": "unsigned char",
}  # fmt: skip
_SCALARS = {"int32": "int", "int64": "long long", "uint32": "unsigned int", "uint64": "unsigned long long"}


def write_kernel(winner: Winner, folder: Path, name: str, *, label: str = "", force: bool = False) -> list[Path]:
    """Write `<name>_kernel.cu` and `<name>_kernel.cuh`, its declaration.

    label: set apart from the family's other problems in the same program: part of the launcher's and macros' names.
    """
    source, declaration = kernel_text(winner, name, label), declaration_text(winner, name, label)
    return [
        write_file(folder / f"{name}_kernel.cu", source, MARK, force=force),
        write_file(folder / f"{name}_kernel.cuh", declaration, MARK, force=force),
    ]


def kernel_text(winner: Winner, name: str, label: str = "") -> str:
    """The `.cu`: prelude and source with local includes in place, then the launcher.

    UsageError where the plan calls PyTorch.
    """
    launches = kernel_launches(winner)
    family = winner.loaded.name
    # The source comes before the launcher's names, so that it compiles as it was measured.
    lines = [
        *comment([f"{MARK}: {family} with its tuned configuration.", "", *_how_to_compile(winner, name, label)]),
        "",
        # Not every kernel of a family reads every parameter.
        "#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__",
        "#pragma nv_diag_suppress 177",
        "#endif",
        _source(winner, label),
        "",
        *(["#include <cuda.h>"] if _maps(launches) else []),
        "#include <cuda_runtime.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        *_macros(winner, label),
        _SUPPORT,
        *([_MAP_SUPPORT] if _maps(launches) else []),
        *comment(_contract(winner, label)),
        f'extern "C" {signature(winner, label)} {{',
        *_checks(winner),
        *_pointers(winner),
        "  cudaError_t status = cudaSuccess;",
    ]
    tensors = {t.name: t for t in (*_problem_tensors(winner), *winner.plan.workspace)}
    for launch in launches:
        lines += _launch(launch, tensors)
    return "\n".join([*lines, "  return status;", "}", ""])


def declaration_text(winner: Winner, name: str, label: str = "") -> str:
    """The `.cuh`: the launcher's declaration and the sizes it expects, for C, C++ and CUDA."""
    kernel_launches(winner)
    guard = macro(winner.loaded.name, name, "kernel", "cuh")
    lines = [
        *comment([f"{MARK}: launcher of {winner.loaded.name}.", "", *_how_to_compile(winner, name, label)]),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <cuda_runtime_api.h>",
        "#include <stddef.h>",
        "",
        *_macros(winner, label),
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *comment(_contract(winner, label)),
        f"{signature(winner, label)};",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif  /* {guard} */",
    ]
    return "\n".join([*lines, ""])


def launcher_name(winner: Winner, label: str = "") -> str:
    return "_".join(["ktune", identifier(winner.loaded.name), "launch", *([label] if label else [])])


def labelled_macro(winner: Winner, label: str, name: str) -> str:
    """`KTUNE_TOY_N1000_SIZE_N`; without a label `KTUNE_TOY_SIZE_N`."""
    return macro(winner.loaded.name, *([label] if label else []), name)


def kernel_launches(winner: Winner) -> list[KernelLaunch]:
    """The plan's launches; UsageError if one of them is a torch operation."""
    found = []
    for launch in winner.plan.launches:
        if isinstance(launch, TorchOperation):
            raise UsageError(
                f"{winner.identity} calls the PyTorch operation {launch.function!r}, which a CUDA program cannot; "
                "export it without --with-kernel, or choose a configuration of kernels alone"
            )
        found.append(launch)
    return found


def _source(winner: Winner, label: str) -> str:
    """The variant's source; with a label, its kernels are seen in their own file only."""
    text = variant_source(winner.loaded, winner.measurement.variant).rstrip("\n")
    if not label:
        return text
    if _C_BLOCK.search(text):
        raise UsageError(
            f'the kernels of {winner.loaded.name} stand in an extern "C" {{ }} block, so that those of two problems '
            'have the same names; write extern "C" before each kernel, or export one problem at a time'
        )
    return _C_LINKAGE.sub("static", text)


_C_BLOCK = re.compile(r'extern\s+"C"\s*\{')
_C_LINKAGE = re.compile(r'extern\s+"C"(?=[^;{]*__global__)')


def _how_to_compile(winner: Winner, name: str, label: str) -> list[str]:
    flags = " ".join(winner.flags)
    share = (
        "Each tuned problem has a file of its own; compile them without -rdc=true."
        if label
        else "One program can hold one tuned problem of a family."
    )
    return [
        *provenance_lines(winner),
        "",
        f"Compile:  nvcc {flags} -c {name}_kernel.cu",
        f"Use:      include {name}_kernel.cuh, call {launcher_name(winner, label)}, link {name}_kernel.o and cudart.",
        f"The flags are part of what was {_judged(winner)}. {share}",
    ]


def _judged(winner: Winner) -> str:
    return "measured and verified" if winner.measurement.source is Source.MEASURED else "recorded"


def _contract(winner: Winner, label: str) -> list[str]:
    family = winner.loaded.family
    tensors = [("input", t) for t in family.inputs(winner.problem)]
    tensors += [("output", t) for t in family.outputs(winner.problem)]
    described = [f"  {t.name}: {kind}, {t.dtype} [{', '.join(map(str, t.shape))}], row-major" for kind, t in tensors]
    return [
        f"Enqueues {winner.identity}",
        f"on `stream`, for the problem {winner.problem.label}.",
        "Device pointers, 16-byte aligned; outputs overlap nothing else. Sizes must be the tuned ones.",
        *described,
        f"  workspace: {labelled_macro(winner, label, 'workspace_bytes')} bytes, 256-byte aligned; NULL if that is 0",
        "Returns cudaErrorInvalidValue for other sizes, null or overlapping pointers, cudaErrorMisalignedAddress,",
        "or what the launch returned. Errors of the running kernel show at the stream's next synchronisation.",
    ]


def _macros(winner: Winner, label: str) -> list[str]:
    values = {f"size_{name}": integer(size) for name, size in winner.problem.sizes}
    values["workspace_bytes"] = f"{winner.workspace_bytes}ull"
    return [*(f"#define {labelled_macro(winner, label, name)} {value}" for name, value in values.items()), ""]


def _parameter(name: str) -> str:
    """A tensor's name as a parameter, apart from the launcher's own."""
    text = identifier(name)
    return (
        f"{text}_"
        if text in ("workspace", "stream", "status", "tensor", "tensors") or text.startswith("size_")
        else text
    )


def signature(winner: Winner, label: str = "", sizes: Sequence[str] = ()) -> str:
    """The launcher's declaration, without its semicolon. sizes: those it takes, by name; the problem's if not given."""
    family = winner.loaded.family
    names = sizes or [name for name, _ in winner.problem.sizes]
    parameters = [f"const {_pointer(t)}* {_parameter(t.name)}" for t in family.inputs(winner.problem)]
    parameters += [f"{_pointer(t)}* {_parameter(t.name)}" for t in family.outputs(winner.problem)]
    parameters.append("void* workspace")
    parameters += [f"long long size_{identifier(name)}" for name in names]
    listed = ",\n    ".join([*parameters, "cudaStream_t stream"])
    return f"cudaError_t {launcher_name(winner, label)}(\n    {listed})"


def argument_names(winner: Winner) -> list[str]:
    """What the launcher's declaration calls its tensors, in order."""
    family = winner.loaded.family
    return [_parameter(t.name) for t in (*family.inputs(winner.problem), *family.outputs(winner.problem))]


def _pointer(tensor: Tensor) -> str:
    # 16-bit and 8-bit floating types have a header each, which a user of void* is spared.
    return _POINTERS.get(tensor.dtype, "void")


def _checks(winner: Winner) -> list[str]:
    family = winner.loaded.family
    lines = [
        f"  if (size_{identifier(name)} != {integer(size)}) return cudaErrorInvalidValue;"
        for name, size in winner.problem.sizes
    ]
    spans = [(_parameter(t.name), tensor_bytes(t)) for t in family.inputs(winner.problem)]
    outputs = [(_parameter(t.name), tensor_bytes(t)) for t in family.outputs(winner.problem)]
    pointers = ", ".join(name for name, _ in [*spans, *outputs])
    lines += [
        f"  const void* const tensors[] = {{{pointers}}};",
        "  for (const void* tensor : tensors) {",
        "    if (!tensor) return cudaErrorInvalidValue;",
        "    if (!ktune_export::aligned(tensor, 16)) return cudaErrorMisalignedAddress;",
        "  }",
    ]
    if winner.workspace_bytes:
        lines.append("  if (!workspace) return cudaErrorInvalidValue;")
        lines.append("  if (!ktune_export::aligned(workspace, 256)) return cudaErrorMisalignedAddress;")
        spans.append(("workspace", winner.workspace_bytes))
    for index, (name, size) in enumerate(outputs):
        for other, other_size in [*spans, *outputs[:index]]:
            overlap = f"ktune_export::overlap({name}, {size}ull, {other}, {other_size}ull)"
            lines.append(f"  if ({overlap}) return cudaErrorInvalidValue;")
    return lines


def _problem_tensors(winner: Winner) -> tuple[Tensor, ...]:
    family = winner.loaded.family
    return (*family.inputs(winner.problem), *family.outputs(winner.problem))


def _maps(launches: list[KernelLaunch]) -> bool:
    return any(isinstance(argument, TensorMap) for launch in launches for argument in launch.arguments)


def _pointers(winner: Winner) -> list[str]:
    lines = []
    for tensor in _problem_tensors(winner):
        found = f"const_cast<void*>(static_cast<const void*>({_parameter(tensor.name)}))"
        lines.append(f"  [[maybe_unused]] void* at_{identifier(tensor.name)} = {found};")
    for name, offset in workspace_layout(winner.plan.workspace)[0].items():
        lines.append(f"  [[maybe_unused]] void* at_{identifier(name)} = static_cast<char*>(workspace) + {offset}ull;")
    return [*lines, "  (void)workspace;"]


def _launch(launch: KernelLaunch, tensors: dict[str, Tensor]) -> list[str]:
    lines = ["  {"]
    taken = []
    for position, argument in enumerate(launch.arguments):
        if isinstance(argument, Scalar):
            lines.append(f"    {_scalar(argument, position)}")
            taken.append(f"&scalar_{position}")
        elif isinstance(argument, TensorMap):
            lines += _tensor_map(argument, tensors[argument.tensor], position)
            taken.append(f"&map_{position}")
        else:
            taken.append(f"&at_{identifier(argument)}")
    grid, block, cluster = (
        f"dim3({', '.join(map(str, extent))})" for extent in (launch.grid, launch.block, launch.cluster)
    )
    lines += [
        f"    void* arguments[] = {{{', '.join(taken) or 'nullptr'}}};",
        f"    const void* kernel = reinterpret_cast<const void*>(::{launch.kernel});",
        f"    const dim3 grid = {grid}, block = {block}, cluster = {cluster};",
        f"    const bool programmatic = {'true' if launch.programmatic else 'false'};",
        "    status = ktune_export::launch("
        f"kernel, grid, block, cluster, programmatic, {launch.smem_bytes}, arguments, stream);",
        "    if (status != cudaSuccess) return status;",
        "  }",
    ]
    return lines


def _tensor_map(wanted: TensorMap, tensor: Tensor, position: int) -> list[str]:
    layout = map_layout(wanted, tensor)
    # A tensor of one dimension has no strides; an array has at least one element.
    listed = {
        "cuuint64_t dimensions": [f"{extent}ull" for extent in layout.dimensions],
        "cuuint64_t strides": [f"{stride}ull" for stride in layout.stride_bytes] or ["0"],
        "cuuint32_t box": [f"{extent}u" for extent in layout.box],
    }
    return [
        f"    CUtensorMap map_{position};",
        "    {",
        *(f"      const {name}[] = {{{', '.join(values)}}};" for name, values in listed.items()),
        f"      status = ktune_export::encode(&map_{position}, CU_TENSOR_MAP_DATA_TYPE_{layout.type_name},",
        f"                                    {len(layout.dimensions)}, at_{identifier(tensor.name)}, dimensions, "
        "strides, box,",
        f"                                    CU_TENSOR_MAP_SWIZZLE_{layout.swizzle_name},",
        f"                                    CU_TENSOR_MAP_L2_PROMOTION_{layout.promotion_name});",
        "      if (status != cudaSuccess) return status;",
        "    }",
    ]


def _scalar(scalar: Scalar, position: int) -> str:
    if scalar.ctype == "float32":
        bits = struct.unpack("<I", struct.pack("<f", scalar.value))[0]
        return f"float scalar_{position} = ktune_export::float_of(0x{bits:08x}u);  // {scalar.value!r}"
    if scalar.ctype not in _SCALARS:
        raise UsageError(f"scalar of type {scalar.ctype!r}; kernel arguments are {', '.join([*_SCALARS, 'float32'])}")
    ctype = _SCALARS[scalar.ctype]
    suffix = "ull" if scalar.ctype == "uint64" else "ll"
    return f"{ctype} scalar_{position} = static_cast<{ctype}>({int(scalar.value)}{suffix});"


_SUPPORT = """
namespace ktune_export {
namespace {

bool aligned(const void* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

[[maybe_unused]] bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const uintptr_t a_first = reinterpret_cast<uintptr_t>(a), b_first = reinterpret_cast<uintptr_t>(b);
  return a_first < b_first + b_bytes && b_first < a_first + a_bytes;
}

[[maybe_unused]] float float_of(unsigned int bits) {
  float value;
  static_assert(sizeof value == sizeof bits, "float has 32 bits");
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

cudaError_t launch(const void* kernel, dim3 grid, dim3 block, dim3 cluster, bool programmatic, size_t smem_bytes,
                   void** arguments, cudaStream_t stream) {
  cudaError_t status = cudaSuccess;
  if (smem_bytes > 0) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem_bytes));
    if (status != cudaSuccess) return status;
  }
  const unsigned int cluster_blocks = cluster.x * cluster.y * cluster.z;
  // More than 8 blocks in a cluster is beyond what every GPU of the architecture supports.
  if (cluster_blocks > 8) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (status != cudaSuccess) return status;
  }
  cudaLaunchAttribute attributes[2] = {};
  unsigned int count = 0;
  if (cluster_blocks > 1) {
    cudaLaunchAttribute& clustered = attributes[count++];
    clustered.id = cudaLaunchAttributeClusterDimension;
    clustered.val.clusterDim.x = cluster.x;
    clustered.val.clusterDim.y = cluster.y;
    clustered.val.clusterDim.z = cluster.z;
  }
  if (programmatic) {
    cudaLaunchAttribute& early = attributes[count++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t how = {};
  how.gridDim = grid;
  how.blockDim = block;
  how.dynamicSmemBytes = smem_bytes;
  how.stream = stream;
  how.attrs = attributes;
  how.numAttrs = count;
  return cudaLaunchKernelExC(&how, kernel, arguments);
}

}  // namespace
}  // namespace ktune_export
"""

_MAP_SUPPORT = """
namespace ktune_export {
namespace {

// The driver's encoder is found at run time, so that the program need not be linked with libcuda.
cudaError_t encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base,
                   const cuuint64_t* dimensions, const cuuint64_t* strides, const cuuint32_t* box,
                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult answer = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &answer);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &answer);
#endif
  if (status != cudaSuccess) return status;
  if (answer != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const CUresult done = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
      map, type, rank, base, dimensions, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return done == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace ktune_export
"""
