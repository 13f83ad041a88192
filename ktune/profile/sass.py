"""Reading SASS as cuobjdump or nvdisasm print it: functions, their instructions, and where branches go."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_FUNCTION = re.compile(r"^\s*Function : (\S+)|^\.text\.([^\s:]+):")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*"
    r"(?:@(?P<guard>!?\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
_ADDRESS = re.compile(r"\b0x([0-9a-f]+)\s*$")
_REFERENCE = re.compile(r"`\(([.$\w]+)\)")
_BRANCHES = ("BRA", "JMP", "CALL", "BSSY", "WARPSYNC")


@dataclass(frozen=True)
class Instruction:
    """One SASS instruction. target: the address that it names, for those that can jump."""

    address: int
    opcode: str
    operands: str = ""
    guard: str = ""
    target: int | None = None

    @property
    def base(self) -> str:
        """`IMAD` of `IMAD.MOV.U32`."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Function:
    """A kernel, or a device function that was not inlined, in the order of addresses."""

    name: str
    instructions: tuple[Instruction, ...]


def parse_sass(text: str) -> dict[str, Function]:
    """{name: function} of a listing of either tool; lines of no known form are skipped. Empty if there are none."""
    functions: dict[str, list[Instruction]] = {}
    labels: dict[str, dict[str, int]] = {}
    waiting: list[str] = []
    name = ""
    for line in text.splitlines():
        if named := _FUNCTION.match(line):
            name = named[1] or named[2]
            functions.setdefault(name, [])
            labels.setdefault(name, {})
            waiting = []
        elif not name:
            continue
        elif label := _LABEL.match(line):
            waiting.append(label[1])
        elif found := _INSTRUCTION.match(line):
            address = int(found["address"], 16)
            labels[name].update(dict.fromkeys(waiting, address))
            waiting = []
            functions[name].append(
                Instruction(address, found["opcode"], found["operands"].strip(), found["guard"] or "")
            )
    return {
        name: Function(name, _without_padding([_resolved(i, labels[name]) for i in instructions]))
        for name, instructions in functions.items()
        if instructions
    }


def _resolved(instruction: Instruction, labels: dict[str, int]) -> Instruction:
    if instruction.base not in _BRANCHES:
        return instruction
    reference = _REFERENCE.search(instruction.operands)
    if reference:
        return replace(instruction, target=labels.get(reference[1]))
    address = _ADDRESS.search(instruction.operands)
    return replace(instruction, target=int(address[1], 16)) if address else instruction


def _without_padding(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """Without the branch to itself and the NOPs that fill a function's last cache line."""
    end = len(instructions)
    while end and instructions[end - 1].opcode == "NOP":
        end -= 1
    while end and instructions[end - 1].base == "BRA" and instructions[end - 1].target == instructions[end - 1].address:
        end -= 1
    return tuple(instructions[:end])
