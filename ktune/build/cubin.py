"""Reading a cubin (a 64-bit ELF file): is it whole, which kernels, and a digest of what they execute."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ktune.core.errors import KtuneError
from ktune.core.identity import digest

# Layouts and constants: System V ABI, "Object Files"; the machine number and the entry flag are NVIDIA's.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT_BYTES = 56
_SYMBOL = struct.Struct("<IBBHQQ")
_EM_CUDA = 190
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_STT_FUNC = 2
_STO_ENTRY = 0x10


class CubinFault(KtuneError):
    """A file that is not a whole cubin with a kernel in it."""


@dataclass(frozen=True)
class Cubin:
    """kernels: names of the entry functions, sorted. code_digest: of instructions and constant data."""

    kernels: tuple[str, ...]
    code_digest: str


@dataclass(frozen=True)
class _Section:
    name: str
    type: int
    link: int
    data: bytes


def read_cubin(path: Path) -> Cubin:
    """Raises CubinFault if the file is missing, cut short, or holds no kernel."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CubinFault(f"{path} can't be read: {error}; build it again") from error
    return parse_cubin(data, str(path))


def parse_cubin(data: bytes, name: str) -> Cubin:
    """What a cubin holds. `name` is for the message of CubinFault."""
    sections = _sections(data, name)
    kernels = sorted(_kernels(sections, name))
    if not kernels:
        raise CubinFault(f'{name} holds no kernel; the family\'s source needs an extern "C" __global__ function')
    executed = sorted((s.name, s.data) for s in sections if _is_executed(s.name))
    return Cubin(tuple(kernels), digest(part for pair in executed for part in pair))


def _is_executed(section: str) -> bool:
    """Instructions, and data that kernels are loaded with; `.nv.constant0` is room for arguments."""
    if section.startswith(".nv.constant"):
        return not section.startswith(".nv.constant0")
    return section.startswith((".text.", ".nv.global.init"))


def _sections(data: bytes, name: str) -> list[_Section]:
    if len(data) < _HEADER.size or data[:5] != b"\x7fELF\x02":
        raise CubinFault(f"{name} ({len(data)} bytes) is not a 64-bit ELF file; build it again")
    fields = _HEADER.unpack_from(data)
    machine, segments_at, sections_at = fields[2], fields[5], fields[6]
    segments, section_bytes, count, names_index = fields[10], fields[11], fields[12], fields[13]
    if machine != _EM_CUDA or section_bytes != _SECTION.size or names_index >= count:
        raise CubinFault(f"{name} is an ELF file but not a cubin (machine {machine}, not {_EM_CUDA}); build it again")
    _require(data, name, segments_at, segments * _SEGMENT_BYTES, "segment table")
    _require(data, name, sections_at, count * _SECTION.size, "section table")
    headers = [_SECTION.unpack_from(data, sections_at + i * _SECTION.size) for i in range(count)]
    contents = []
    for header in headers:
        kind, offset, size = header[1], header[4], 0 if header[1] == _SHT_NOBITS else header[5]
        _require(data, name, offset, size, f"section of type {kind}")
        contents.append(data[offset : offset + size])
    names = contents[names_index]
    return [
        _Section(_string(names, header[0]), header[1], header[6], content)
        for header, content in zip(headers, contents, strict=True)
    ]


def _require(data: bytes, name: str, offset: int, size: int, what: str) -> None:
    if offset + size > len(data):
        raise CubinFault(f"{name} is cut short: its {what} ends at {offset + size}, the file at {len(data)} bytes")


def _kernels(sections: list[_Section], name: str) -> list[str]:
    """Entry functions whose code is in the file."""
    found = []
    for section in sections:
        if section.type != _SHT_SYMTAB:
            continue
        if section.link >= len(sections) or len(section.data) % _SYMBOL.size:
            raise CubinFault(f"{name} has a damaged symbol table; build it again")
        for name_at, info, other, index, _, _ in _SYMBOL.iter_unpack(section.data):
            symbol = _string(sections[section.link].data, name_at)
            is_entry = info & 0xF == _STT_FUNC and other & _STO_ENTRY
            if is_entry and index < len(sections) and sections[index].name == f".text.{symbol}":
                found.append(symbol)
    return found


def _string(table: bytes, offset: int) -> str:
    return table[offset : max(offset, table.find(b"\0", offset))].decode("utf-8", "replace")
