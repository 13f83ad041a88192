"""The small pieces of HTML that the report is made of. Every text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ktune.core.model import Environment, Measurement
from ktune.output.summary import source_note


def paragraph(text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f"<p{kind}>{escape(text)}</p>"


def card(name: str, value: str, note: str) -> str:
    """One headline figure: what it is, its value, and what it is to be seen against."""
    return f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(note)}</span></div>'


def figure(content: str, caption: str, measurements: Iterable[Measurement]) -> str:
    """`content` (markup) with its caption and where its figures come from."""
    source = escape(source_note(measurements))
    return f"<figure>{content}<figcaption>{escape(caption)} Source: {source}.</figcaption></figure>"


def identity(text: str) -> str:
    """A configuration's id in the text: set as code, and broken after dots where the line ends."""
    return f"<code>{_breakable(escape(text))}</code>"


def table(head: Sequence[str], rows: Sequence[str], style: str = "") -> str:
    """A table of rows made by `row`."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    kind = f' class="{style}"' if style else ""
    body = "".join(rows)
    return f'<div class="scroll"><table{kind}><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'


def row(*texts: str, style: str = "") -> str:
    """A table row. Ids may break after each of their dots."""
    kind = f' class="{style}"' if style else ""
    cells = "".join(f"<td>{_breakable(escape(text))}</td>" for text in texts)
    return f"<tr{kind}>{cells}</tr>"


def environment_tables(measurements: Iterable[Measurement]) -> list[str]:
    """One table for each distinct machine state."""
    environments = dict.fromkeys(m.environment for m in measurements if m.environment is not None)
    return [table(("what", "value"), [row(*pair) for pair in _environment_rows(e)]) for e in environments]


def _breakable(text: str) -> str:
    return text.replace(".", ".<wbr>") if "_" in text and " " not in text else text


def _environment_rows(e: Environment) -> list[tuple[str, str]]:
    def amount(value: float | None, unit: str, scale: float = 1.0) -> str:
        return "not known" if value is None else f"{value / scale:,.4g} {unit}".strip()

    return [
        ("GPU", f"{e.gpu_name} ({e.gpu_uuid})"),
        ("driver", f"{e.driver} (CUDA {e.cuda_driver})"),
        ("compiler", e.compiler),
        ("PyTorch", e.torch),
        ("ktune", e.ktune),
        ("power limit", amount(e.power_limit_w, "W")),
        ("multiprocessors", amount(e.sm_count, "")),
        ("L2", amount(e.l2_bytes, "MiB", 1 << 20)),
        ("memory", amount(e.memory_bytes, "GiB", 1 << 30)),
        ("other compute processes", amount(e.foreign_processes, "")),
    ]
