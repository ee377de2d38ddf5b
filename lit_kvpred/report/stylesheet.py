"""The looks of the HTML report, light and dark, from a phone's width on."""

from __future__ import annotations

from lit_kvpred.report.plots import COLOURS

_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--text); line-height: 1.55;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
    sans-serif;
}
header, main { max-width: 1080px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
main { padding-bottom: 64px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 12px; overflow-wrap: anywhere; }
.headline { font-size: 1.1rem; max-width: 48rem; margin: 0 0 24px; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 0 0 12px; }
h3 { font-size: .95rem; margin: 24px 0 8px; overflow-wrap: anywhere; }
p { max-width: 48rem; margin: 0 0 12px; }
section { border-top: 1px solid var(--line); padding: 28px 0 12px; margin-top: 24px; }
a { color: var(--link); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); }
.tile {
  display: flex; flex-direction: column; padding: 14px 16px; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px;
}
.tile .label, .tile .detail { color: var(--muted); font-size: .85rem; line-height: 1.4; }
.tile .value { font-size: 1.7rem; font-weight: 650; line-height: 1.35; }
nav { margin: 24px 0 0; font-size: .9rem; }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0; padding: 0; list-style: none; }
.facts { columns: 3 300px; column-gap: 16px; }
.card {
  break-inside: avoid; margin: 0 0 16px; padding: 12px 16px 6px; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px;
}
.card h3 { margin: 0 0 4px; }
.card table { width: 100%; font-size: .85rem; }
.card th { width: 42%; font-weight: 400; color: var(--muted); padding-right: 12px; }
.card td { padding-right: 0; }
.card tr:last-child > * { border-bottom: 0; }
.gallery {
  display: grid; gap: 16px; margin: 12px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr));
}
figure {
  margin: 0; padding: 12px 14px; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; max-width: 540px; min-width: 0;
}
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: 6px; overflow-wrap: anywhere; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; margin: 0 0 12px; }
.scroll:focus-visible, pre:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td {
  padding: 6px 20px 6px 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line);
}
th { font-weight: 600; }
thead th { color: var(--muted); vertical-align: bottom; border-bottom-color: var(--muted); }
tbody th { min-width: 6rem; max-width: 16rem; overflow-wrap: break-word; }
tbody th:has(+ .raw) { min-width: 10rem; font-weight: 400; color: var(--muted); }
td { min-width: 3rem; overflow-wrap: anywhere; }
th.number, td.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
thead th.number { white-space: normal; min-width: 5.5rem; }
td.raw { width: 100%; padding-right: 0; }
code, pre {
  font: .85rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
td.raw code { white-space: pre-wrap; overflow-wrap: anywhere; tab-size: 4; }
code i { color: var(--faint); font-style: normal; }
details { margin: 8px 0; }
summary { cursor: pointer; color: var(--link); font-size: .9rem; margin-bottom: 8px; }
pre {
  margin: 0; padding: 14px 16px; overflow-x: auto; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px;
}
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 20px; font-size: .9rem; }
dt { font-weight: 600; }
dd { margin: 0; max-width: 44rem; }
@media (max-width: 600px) {
  header, main { padding-left: 14px; padding-right: 14px; }
  header { padding-top: 22px; }
  h1 { font-size: 1.4rem; }
  .tiles { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 8px; }
  .tile { padding: 10px 12px; }
  .tile .value { font-size: 1.35rem; }
  figure { padding: 10px 6px; }
  figcaption { padding: 0 4px; }
  tbody th { max-width: 9rem; }
  tbody th:has(+ .raw) { min-width: 5.5rem; }
  th, td { padding-right: 12px; }
  dl { display: block; }
  dd { margin-bottom: 8px; }
}
@media print {
  nav { display: none; }
  figure, .tile, tr { break-inside: avoid; }
}
"""

_LIGHT = {
    "--page": "#ffffff",
    "--card": "#f8f9fb",
    "--text": "#1b2229",
    "--muted": "#5a6672",
    "--faint": "#8b97a3",
    "--line": "#dfe3e8",
    "--link": "#0b62a8",
}
_DARK = {
    "--page": "#12171d",
    "--card": "#1a2028",
    "--text": "#e4e9ee",
    "--muted": "#9fabb7",
    "--faint": "#75818d",
    "--line": "#2d3640",
    "--link": "#74b9f2",
}


def stylesheet() -> str:
    """The CSS, the colours of the plots included."""
    light = _LIGHT | {colour.name: colour.light for colour in COLOURS}
    dark = _DARK | {colour.name: colour.dark for colour in COLOURS}
    return (
        f":root {{ color-scheme: light dark; {_declarations(light)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_declarations(dark)} }} }}"
        f"{_RULES}"
    ).strip()


def _declarations(variables: dict[str, str]) -> str:
    return " ".join(f"{name}: {value};" for name, value in variables.items())
