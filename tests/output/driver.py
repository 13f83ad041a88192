"""A C++ program around an exported kernel: reads inputs from files, launches, compares with expected outputs.

`build_program` and `run_program` work for any family whose tensors are float32, float64, int32 or int64:

    folder = build_program(winner, folder)
    write_case(winner, folder, seed=0)
    run_program(folder)
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from ktune.api import Tensor
from ktune.output.c_text import macro
from ktune.output.kernel import launcher_name, write_kernel
from ktune.output.winner import Winner, tensor_bytes

_TYPES = {"float32": "float", "float64": "double", "int32": "int", "int64": "long long"}
NAME = "export"


def build_program(winner: Winner, folder: Path) -> Path:
    """Write the export and `main.cpp` into `folder`, compile both and link them with the static runtime."""
    write_kernel(winner, folder, NAME)
    (folder / "main.cpp").write_text(main_text(winner))
    compile_kernel(winner, folder)
    run(["nvcc", "-std=c++17", "-cudart", "static", "-o", "program", "main.cpp", f"{NAME}_kernel.o"], folder)
    return folder


def compile_kernel(winner: Winner, folder: Path) -> None:
    """Compile the exported kernel with its own flags and every warning an error."""
    strict = ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror"]
    run(["nvcc", *winner.flags, *strict, "-c", f"{NAME}_kernel.cu"], folder)


def write_case(winner: Winner, folder: Path, seed: int = 0) -> None:
    """The inputs of a seed, and what the family's float64 reference says of them, as raw files."""
    reference = winner.loaded.module("reference")
    inputs = reference.inputs(winner.problem, seed)
    for name, tensor in inputs.items():
        (folder / f"{name}.bin").write_bytes(tensor.contiguous().numpy().tobytes())
    for name, tensor in reference.reference(winner.problem, inputs).items():
        (folder / f"{name}_expected.bin").write_bytes(tensor.contiguous().double().numpy().tobytes())


def run_program(folder: Path) -> str:
    """What the program printed; AssertionError with it unless it ended well."""
    done = subprocess.run([str(folder / "program"), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def main_text(winner: Winner) -> str:
    """The program's source. It also checks that other sizes and null pointers are refused."""
    family, problem = winner.loaded.family, winner.problem
    inputs, outputs = family.inputs(problem), family.outputs(problem)
    sizes = [macro(family.name, f"size_{name}") for name, _ in problem.sizes]
    body = [f"  auto* {t.name} = static_cast<{_TYPES[t.dtype]}*>(to_device(folder, {_file(t)}));" for t in inputs]
    body += [f"  auto* {t.name} = static_cast<{_TYPES[t.dtype]}*>(poisoned({tensor_bytes(t)}ull));" for t in outputs]
    workspace = macro(family.name, "workspace_bytes")
    body.append(f"  void* workspace = {workspace} ? poisoned({workspace}) : nullptr;")
    tensors = ", ".join([t.name for t in (*inputs, *outputs)] + ["workspace"])
    launch = launcher_name(winner)
    body.append(f'  check({launch}({tensors}, {", ".join(sizes)}, nullptr), "launch");')
    body.append('  check(cudaDeviceSynchronize(), "kernel");')
    limits = f"{family.tolerance.absolute}, {family.tolerance.relative}"
    body += [f"  compare(folder, {_file(t)}, {t.name}, {limits});" for t in outputs]
    refused = ", ".join([f"{sizes[0]} + 1", *sizes[1:]])
    body.append(f'  if ({launch}({tensors}, {refused}, nullptr) != cudaErrorInvalidValue) fail("took other sizes");')
    nulls = ", ".join(["nullptr", *tensors.split(", ")[1:]])
    body.append(f'  if ({launch}({nulls}, {", ".join(sizes)}, nullptr) != cudaErrorInvalidValue) fail("took a null");')
    main = ["int main(int, char** arguments) {", "  const std::string folder = arguments[1];", *body]
    return "\n".join([f'#include "{NAME}_kernel.cuh"', _SUPPORT, *main, '  std::puts("OK");', "}", ""])


def _file(tensor: Tensor) -> str:
    return f'"{tensor.name}", {tensor_bytes(tensor)}ull'


_SUPPORT = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

static void fail(const std::string& why) {
  std::printf("FAILED: %s\n", why.c_str());
  std::exit(1);
}

static void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(status));
}

static std::vector<char> read(const std::string& path, size_t bytes) {
  std::vector<char> data(bytes);
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(data.data(), static_cast<std::streamsize>(bytes)) || stream.peek() != EOF) {
    fail(path + " does not hold " + std::to_string(bytes) + " bytes");
  }
  return data;
}

static void* to_device(const std::string& folder, const char* name, size_t bytes) {
  const std::vector<char> data = read(folder + "/" + name + ".bin", bytes);
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "cudaMalloc");
  check(cudaMemcpy(pointer, data.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return pointer;
}

// All bits set: NaN for every floating type.
static void* poisoned(size_t bytes) {
  void* pointer = nullptr;
  check(cudaMalloc(&pointer, bytes), "cudaMalloc");
  check(cudaMemset(pointer, 0xff, bytes), "cudaMemset");
  return pointer;
}

template <class T>
static void compare(const std::string& folder, const char* name, size_t bytes, const T* device, double absolute,
                    double relative) {
  const size_t count = bytes / sizeof(T);
  std::vector<T> actual(count);
  check(cudaMemcpy(actual.data(), device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  const std::vector<char> raw = read(folder + "/" + name + "_expected.bin", count * sizeof(double));
  const double* expected = reinterpret_cast<const double*>(raw.data());
  double largest = 0.0, worst = 0.0;
  size_t bad = 0;
  for (size_t i = 0; i < count; ++i) {
    const double error = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    const double allowed = absolute + relative * std::fabs(expected[i]);
    if (!(error <= allowed)) ++bad;
    if (!(error <= largest)) largest = error;
    if (!(error / allowed <= worst)) worst = error / allowed;
  }
  std::printf("%s: max |error| %.3g, %.3g of the tolerance, %zu of %zu bad\n", name, largest, worst, bad, count);
  if (bad) fail(name);
}
"""
