"""The styles of the report's page, for light and dark."""

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2024;--dim:#5f6770;--line:#dfe3e8;
--card:#f6f7f9;--waited:#9aa3ad;--copy:#3f7fbf;--reduce:#3a9a6a;--encode:#d1495b;--decode:#e08e2b;--other:#c9ced4;
--network:#3f7fbf;--memory:#3a9a6a;--bad:#b3261e;
--compute:#8d7fc7;--straggler:#8c5a2b;--reduction:#1f7a8c;--launch:#c9a227}
@media (prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--dim:#9aa3ad;--line:#2c3238;
--card:#1d2125;--waited:#6f7882;--copy:#5b9bd8;--reduce:#55b888;--encode:#e56b7c;--decode:#f0a650;
--other:#40474e;--network:#5b9bd8;--memory:#55b888;--bad:#ff8a80;
--compute:#a396dd;--straggler:#c08a55;--reduction:#4fb3c4;--launch:#e3c15c}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.45 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:24px 16px 64px}
main.wider{max-width:1500px}
h1{font-size:24px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 2px}
section{margin-top:36px}
.note{color:var(--dim);margin:0 0 12px;font-size:14px}
.failed{border-left:4px solid var(--bad);padding-left:12px}
.failed h2{color:var(--bad)}
.failed ul{margin:4px 0;padding-left:18px;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:10px;margin-top:20px}
.tiles div{background:var(--card);border-radius:8px;padding:10px 12px}
.tiles b{display:block;font-size:20px;font-variant-numeric:tabular-nums}
.tiles span{color:var(--dim);font-size:13px}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;color:var(--dim);margin-bottom:10px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px}
.waited{background:var(--waited)}.copy{background:var(--copy)}.reduce{background:var(--reduce)}
.encode{background:var(--encode)}.decode{background:var(--decode)}.other{background:var(--other)}
.compute{background:var(--compute)}.straggler{background:var(--straggler)}.launch{background:var(--launch)}
.serialisation{background:var(--encode)}.queueing{background:var(--other)}.wire{background:var(--network)}
.reduction{background:var(--reduction)}
.network{background:var(--network)}.memory{background:var(--memory)}
.chart{display:flex;height:220px}
.axis{display:flex;flex-direction:column;justify-content:space-between;text-align:right;width:54px;
padding-right:8px;font-size:12px;color:var(--dim);margin:-8px 0;white-space:nowrap}
.columns{flex:1;display:flex;align-items:stretch;gap:1px;border-left:1px solid var(--line);
border-bottom:1px solid var(--line);
background:linear-gradient(var(--line),var(--line)) 0 50%/100% 1px no-repeat}
.columns div{flex:1;min-width:0;display:flex;flex-direction:column;justify-content:flex-end}
.columns i{display:block}
.columns svg{width:100%;height:100%}
.columns polyline{fill:none;stroke:var(--copy);stroke-width:2;vector-effect:non-scaling-stroke}
ol{margin:0;padding-left:22px}
.bars+.legend{margin-top:22px}
.times{display:flex;justify-content:space-between;margin:6px 0 0 54px;font-size:12px;
color:var(--dim)}
.bars{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 12px;
align-items:center;font-size:14px}
.bars>span{overflow-wrap:anywhere}
.bars div{display:flex;height:16px;background:var(--card);border-radius:3px;overflow:hidden}
.bars b{font-weight:500;text-align:right;font-variant-numeric:tabular-nums}
.scatter{display:grid;grid-template-columns:max-content minmax(0,420px);gap:6px 8px;font-size:12px;
color:var(--dim)}
.up{display:flex;flex-direction:column;justify-content:space-between;text-align:right;margin:-8px 0}
.field{position:relative;aspect-ratio:1;border:1px solid var(--line)}
.field svg{position:absolute;inset:0;width:100%;height:100%}
.field line{stroke:var(--dim);stroke-dasharray:3 3;vector-effect:non-scaling-stroke}
.field i{position:absolute;width:10px;height:10px;margin:0 0 -5px -5px;border-radius:50%;
background:var(--copy);border:1px solid var(--back)}
.across{grid-column:2;display:flex;justify-content:space-between}
.name{grid-column:2;text-align:center}
.wide{overflow-x:auto;margin-bottom:12px}
.multiples,.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:16px 32px}
.pair>div>section{margin-top:28px}
.pair>div:has(>h2.run):before{display:none}
.pair .tiles{grid-template-columns:repeat(2,1fr)}
h3{font-size:14px;font-weight:500;color:var(--dim);margin:0 0 12px}
h2.run{margin-top:28px;overflow-wrap:anywhere}
ul{margin:0 0 12px;padding-left:22px;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:500}
.heat{margin-top:16px}
.heat th,.heat td{padding:0;width:26px;height:26px;text-align:center;border:1px solid var(--back)}
.heat td{background:color-mix(in srgb,var(--encode) calc(var(--share)*100%),var(--card))}
@media (max-width:700px){.multiples,.pair{grid-template-columns:minmax(0,1fr)}
h2.run{display:none}.pair>div::before{content:attr(data-job);font-size:13px;color:var(--dim);
border-top:1px solid var(--line);padding-top:8px;margin-top:12px;display:block}
.tiles{grid-template-columns:repeat(2,1fr)}}
@media (max-width:520px){.bars{grid-template-columns:minmax(70px,max-content) 1fr max-content;
font-size:13px}.chart{height:180px}h1{font-size:20px}
.wide th,.wide td{padding:5px 6px}.wide td:first-child{white-space:normal}}
"""
