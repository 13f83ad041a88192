from ktune.build.ptxas import KernelResources, first_error, parse_resources, serialised_wgmma

LOG = """\
ptxas warning : Registers are spilled to local memory in function 'two', 484 bytes spill stores, 928 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'two' for 'sm_90a'
ptxas info    : Function properties for two
    512 bytes stack frame, 484 bytes spill stores, 928 bytes spill loads
ptxas info    : Used 24 registers, used 0 barriers, 512 bytes cumulative stack size
ptxas info    : Compile time = 26.027 ms
ptxas info    : Function properties for _Z1ffi
    8 bytes stack frame, 4 bytes spill stores, 2 bytes spill loads
ptxas info    : Compiling entry function 'one' for 'sm_90a'
ptxas info    : Function properties for one
    256 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size, 1024 bytes smem
"""


def test_resources_are_read_per_kernel_with_the_functions_that_it_calls() -> None:
    assert parse_resources(LOG) == {
        "two": KernelResources(24, 520, 488, 930, 0),
        "one": KernelResources(32, 256, 0, 0, 1024),
    }


def test_the_first_error_of_each_compiler_stage_is_found() -> None:
    assert first_error('note\nx.cu(3): error: static assertion failed\n  code\n2 errors detected in "x.cu".') == (
        "x.cu(3): error: static assertion failed"
    )
    assert first_error("ptxas /tmp/x.ptx, line 23; error   : Unknown modifier '.bar'") is not None
    assert first_error("x.cu:1:10: fatal error: no.h: No such file or directory") is not None
    assert first_error("nvcc fatal   : Unsupported gpu architecture 'compute_70'") is not None
    assert first_error("x.cu(3): warning #177-D: variable was declared but never referenced") is None


def test_serialised_tensor_core_instructions_are_noticed_whatever_their_number() -> None:
    line = "(C75{}) Potential Performance Loss: wgmma.mma_async instructions are serialized due to {} in function 'w'"
    for number, reason in (
        (10, "insufficient register resources"),
        (11, "non wgmma instructions"),
        (14, "ill formed stage"),
    ):
        assert serialised_wgmma("ptxas info    : " + line.format(number, reason)) == "ptxas info : " + line.format(
            number, reason
        )
    assert serialised_wgmma(LOG) is None
