"""The report's style sheet: light and dark, no outside fonts."""

STYLE = """
:root { --ink: #1c2330; --dim: #626c7c; --line: #d9dee6; --page: #ffffff; --panel: #f5f7fa; --accent: #2563c9;
  --strong: #0e3f8f; --good: #1d8a4f; --bad: #c2412d; --warm: #b7791f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e5e9f0; --dim: #98a2b3; --line: #333c4a; --page: #14181f;
  --panel: #1d232d; --accent: #6ea3f5; --strong: #b8d2fb; --good: #58c98b; --bad: #ef8574; --warm: #e0ac55; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { margin: 0; font-size: 30px; letter-spacing: -.01em; }
h2 { margin: 36px 0 12px; font-size: 21px; border-bottom: 1px solid var(--line); padding-bottom: 4px; }
h3 { margin: 30px 0 8px; font-size: 17px; }
h4 { margin: 0 0 2px; font: 600 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.lead, .source, figcaption, footer { color: var(--dim); }
.lead { margin: 2px 0 0; }
.source, figcaption { font-size: 13px; margin: 6px 0 0; }
.warning { border-left: 4px solid var(--warm); background: var(--panel); padding: 8px 12px; }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.card { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.card span { display: block; color: var(--dim); font-size: 13px; }
.card b { display: block; font-size: 23px; line-height: 1.3; font-weight: 650; font-variant-numeric: tabular-nums; }
.card b { white-space: nowrap; } .card span:last-child { font-size: 12.5px; }
li ul { padding-left: 18px; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--dim); font-weight: 600; font-size: 13px; vertical-align: bottom; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); }
td:first-child { white-space: nowrap; }
.numbers td:nth-child(2) { font-size: 13px; font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  padding-right: 20px; width: 100%; }
.winner td { font-weight: 700; background: var(--panel); }
@media (max-width: 600px) { main { padding: 20px 14px 40px; } .numbers td:nth-child(2) { min-width: 190px; }
  figure { overflow-x: auto; } figure > svg { min-width: 760px; } }
.numbers td:nth-child(n+3), .numbers th:nth-child(n+3) { text-align: right; white-space: nowrap; }
.numbers th:nth-child(n+3) { white-space: normal; }
.matrix td { white-space: nowrap; }
.values { font-size: 12.5px; } .values th, .values td { padding-right: 8px; }
.changed td:nth-child(2) { font-weight: 700; color: var(--accent); }
figure { margin: 8px 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(400px, 100%), 1fr)); gap: 16px 24px; }
svg { max-width: 100%; height: auto; display: block; }
svg text { fill: var(--ink); font-size: 12px; font-family: inherit; font-variant-numeric: tabular-nums; }
svg .label { text-anchor: end; } svg .tick-x { text-anchor: middle; fill: var(--dim); }
.frame { fill: none; stroke: var(--line); } .grid line, line.grid, .guide { stroke: var(--line); }
.mark { fill: var(--accent); fill-opacity: .55; }
.mark.full { fill: var(--strong); fill-opacity: 1; }
.mark.best { fill: var(--good); fill-opacity: 1; }
.mark.won { fill: none; stroke: var(--good); stroke-width: 2; }
.mark.culled { fill: none; stroke: var(--dim); }
.incumbent { fill: none; stroke: var(--good); stroke-width: 1.6; }
.level { stroke-dasharray: 5 4; } .level.default { stroke: var(--warm); } .level.floor { stroke: var(--bad); }
svg text.default { fill: var(--warm); } svg text.floor { fill: var(--bad); }
svg text.default, svg text.floor { stroke: var(--page); stroke-width: 4px; paint-order: stroke; font-weight: 600; }
.bar { fill: var(--bad); fill-opacity: .8; } .bar.ok { fill: var(--good); } .bar.culled { fill: var(--dim); }
details { margin-top: 30px; } summary { cursor: pointer; font-weight: 600; }
footer { margin-top: 36px; border-top: 1px solid var(--line); padding-top: 10px; font-size: 13px; }
@media print { main { max-width: none; } }
"""
