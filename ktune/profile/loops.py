"""The loops of a function, by its control-flow graph: a back edge goes to a block that dominates its source.

Source: Aho, Lam, Sethi, Ullman, Compilers, 2nd ed., section 9.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ktune.profile.mix import WORK, class_of
from ktune.profile.sass import Function, Instruction

_ENDS = ("EXIT", "RET", "KILL")
_UNRESOLVED = ("BRX", "BRXU", "JMX", "JMXU")
_ALWAYS = ("", "PT", "UPT")

Graph = Mapping[int, Sequence[int]]


class IrregularFlow(Exception):
    """A function whose jumps are computed, so that its loops cannot be told from the listing."""


def main_loop(function: Function) -> tuple[Instruction, ...]:
    """The instructions of the largest innermost loop that does any work; empty if there is none.

    A loop that only polls a barrier counts as none. Raises IrregularFlow where jumps are computed.
    """
    at = {i.address: i for i in function.instructions}
    bodies = [tuple(at[a] for a in sorted(loop)) for loop in natural_loops(function)]
    working = [body for body in bodies if any(class_of(i) in WORK for i in body)]
    addresses = [frozenset(i.address for i in body) for body in working]
    innermost = [
        body for body, own in zip(working, addresses, strict=True) if not any(other < own for other in addresses)
    ]
    return max(innermost, key=len, default=())


def natural_loops(function: Function) -> list[frozenset[int]]:
    """The addresses of each loop's instructions, by the loops' heads; loops that share their head are one."""
    if not function.instructions:
        return []
    flow = _flow(function.instructions)
    dominators = _dominators(flow)
    before = _reversed(flow.graph)
    loops: dict[int, set[int]] = {}
    for node in dominators:
        for head in flow.graph[node]:
            if head in dominators[node]:
                loops.setdefault(head, {head}).update(_reaching(node, head, before))
    return [frozenset(a for block in blocks for a in flow.blocks[block]) for _, blocks in sorted(loops.items())]


def _reaching(node: int, head: int, before: Mapping[int, Sequence[int]]) -> set[int]:
    """Every block from which `node` is reached without passing through `head`."""
    found, open_ = {head}, [node]
    while open_:
        block = open_.pop()
        if block not in found:
            found.add(block)
            open_ += before[block]
    return found


@dataclass(frozen=True)
class _Flow:
    """Basic blocks by their first address: what they hold and what follows them.

    entries: the function's own, and those of subroutines inside it.
    """

    blocks: Mapping[int, Sequence[int]]
    graph: Graph
    entries: frozenset[int]


def _flow(instructions: Sequence[Instruction]) -> _Flow:
    next_of = {a.address: b.address for a, b in pairwise(instructions)}
    known = {i.address for i in instructions}
    successors = {i.address: [a for a in _successors(i, instructions, next_of) if a in known] for i in instructions}
    called = {i.target for i in instructions if i.base == "CALL" and i.target is not None}
    entries = frozenset({instructions[0].address, *(called & known)})
    leaders = set(entries)
    for address, after in successors.items():
        straight = [next_of[address]] if address in next_of else []
        if after != straight:
            leaders.update([*after, *straight])
    blocks: dict[int, list[int]] = {}
    for instruction in instructions:
        if instruction.address in leaders:
            block = blocks.setdefault(instruction.address, [])
        block.append(instruction.address)
    return _Flow(blocks, {first: successors[block[-1]] for first, block in blocks.items()}, entries)


def _successors(
    instruction: Instruction, instructions: Sequence[Instruction], following: Mapping[int, int]
) -> list[int]:
    after = [following[instruction.address]] if instruction.address in following else []
    conditional = instruction.guard not in _ALWAYS
    base = instruction.base
    if base in _UNRESOLVED:
        raise IrregularFlow(f"{instruction.opcode} at {instruction.address:#x} jumps to a computed address")
    if base in _ENDS:
        return after if conditional else []
    if base == "BSYNC":
        target = _joins_at(instruction, instructions)
        return after if target is None else [target]
    if base in ("BRA", "JMP", "WARPSYNC") and instruction.target is not None:
        # `BRA P2, 0x40` tests a second predicate
        if conditional or "," in instruction.operands:
            return list(dict.fromkeys([*after, instruction.target]))
        return [instruction.target]
    return after


def _joins_at(sync: Instruction, instructions: Sequence[Instruction]) -> int | None:
    """Where `BSYNC B0` goes on: the address that the last `BSSY B0` before it named."""
    barrier = sync.operands.split()[-1] if sync.operands else ""
    named = [
        i.target
        for i in instructions
        if i.base == "BSSY" and i.address < sync.address and i.operands.split(",")[0].split()[-1:] == [barrier]
    ]
    return named[-1] if named else None


def _dominators(flow: _Flow) -> dict[int, set[int]]:
    """{block: blocks that every way to it passes through, itself among them}, for blocks that are reached."""
    reached, open_ = set(), list(flow.entries)
    while open_:
        node = open_.pop()
        if node not in reached:
            reached.add(node)
            open_ += flow.graph[node]
    before = _reversed({node: flow.graph[node] for node in reached})
    found = {node: {node} if node in flow.entries else set(reached) for node in reached}
    order = sorted(reached - flow.entries)
    changed = True
    while changed:
        changed = False
        for node in order:
            common = set.intersection(*(found[b] for b in before[node])) | {node}
            if common != found[node]:
                found[node], changed = common, True
    return found


def _reversed(graph: Graph) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {node: [] for node in graph}
    for node, following in graph.items():
        for successor in following:
            before[successor].append(node)
    return before
