import pytest
from fake_compiler import make_cubin

from ktune.build.cubin import CubinFault, parse_cubin


def test_kernels_are_the_entry_functions_by_name() -> None:
    assert parse_cubin(make_cubin({"scan": b"12", "combine": b"34"}), "x").kernels == ("combine", "scan")


def test_the_code_digest_depends_on_code_names_and_constant_data_alone() -> None:
    def digest_of(kernels: dict[str, bytes], constants: bytes = b"") -> str:
        return parse_cubin(make_cubin(kernels, constants), "x").code_digest

    same = digest_of({"a": b"1", "b": b"2"})
    assert digest_of({"b": b"2", "a": b"1"}) == same
    others = [
        digest_of({"a": b"1", "b": b"3"}),
        digest_of({"a": b"1", "c": b"2"}),
        digest_of({"a": b"1", "b": b"2"}, b"7"),
    ]
    assert len({same, *others}) == 4


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = make_cubin({"k": b"code"})
    for size in range(len(whole)):
        with pytest.raises(CubinFault):
            parse_cubin(whole[:size], "x")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a 64-bit ELF file"),
        (b"\0" * 4096, "not a 64-bit ELF file"),
        (make_cubin({"k": b"code"}, machine=62), "not a cubin"),
        (make_cubin({}), "holds no kernel"),
    ],
    ids=["empty", "zeros", "x86", "no kernel"],
)
def test_what_is_not_a_cubin_with_a_kernel_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(CubinFault, match=reason):
        parse_cubin(data, "some.cubin")
