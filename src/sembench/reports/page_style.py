"""The report page's style: light and dark, no web fonts, colors most people can tell apart."""

STYLE = """
:root{color-scheme:light dark;--ground:#fbfaf8;--card:#fff;--ink:#1d1b19;--soft:#6b665f;
--line:#e3dfd8;--exact:#3b6ea8;--semantic:#c8641b;--candidate:#d8a93a;--both:#7d5ba6;
--confirmed:#1f7f6b;--quality:#5d6f8f;--nothing:#e9e5de;--cold:#3b6ea8;--warm:#c8641b;
--negative:#8a8580;--good:#1f7f4c;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--ground:#15161a;--card:#1e2026;--ink:#eceae6;
--soft:#a09b93;--line:#33363e;--exact:#6fa3e0;--semantic:#f0964d;--candidate:#e3c05f;
--both:#b394dd;--confirmed:#4fc0a6;--quality:#93a8cf;--nothing:#2c2f37;--cold:#6fa3e0;
--warm:#f0964d;--negative:#8d8a86;--good:#58c78b;--bad:#f2827b}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px}
h2{font-size:18px;margin:36px 0 12px}
p{margin:0 0 8px}
.soft,.note{color:var(--soft)}
.note{font-size:13px}
.questions{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,1fr));gap:14px;
margin-top:20px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px}
.card h3{font-size:15px;margin:0 0 6px}
.bar{display:grid;grid-template-columns:1fr auto;gap:2px 8px;font-size:13px;margin-top:8px}
.bar b{font-weight:600;font-variant-numeric:tabular-nums}
.bar svg{height:10px;grid-column:1/-1}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(380px,1fr));gap:14px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--line);
font-variant-numeric:tabular-nums;vertical-align:top}
th{font-weight:600;color:var(--soft);white-space:nowrap}
td.num,th.num{text-align:right}
td.break{overflow-wrap:anywhere}
.facts th{width:190px}
svg.strip{display:block;width:100%;height:14px;background:var(--nothing);border-radius:3px}
svg.chart{width:100%;height:auto;display:block}
.requests td.wide{width:36%;min-width:220px}
.requests td.answer{white-space:nowrap}
.keys>span:first-child{margin-left:0}
.exact{fill:var(--exact)}.semantic{fill:var(--semantic)}.candidate{fill:var(--candidate)}
.both{fill:var(--both)}.confirmed{fill:var(--confirmed)}.quality{fill:var(--quality)}
.nothing{fill:var(--nothing)}
.frame{fill:none;stroke:var(--line)}
.grid{stroke:var(--line);stroke-width:.7}
.equal{stroke:var(--soft);stroke-dasharray:5 4}
.limit{stroke:var(--bad);stroke-dasharray:4 3;stroke-width:1.5}
.tick{font-size:11px;fill:var(--soft)}.middle{text-anchor:middle}.end{text-anchor:end}
.label{font-size:12px;fill:var(--ink);text-anchor:middle}
.dot{fill-opacity:.7;stroke:var(--card);stroke-width:.8}
.dot.in-time{fill:var(--confirmed)}.dot.late{fill:var(--warm)}.dot.failed{fill:var(--bad)}
.pile.in-time{fill:var(--confirmed)}.pile.late{fill:var(--warm)}.pile.failed{fill:var(--bad)}
.pile.uncounted{fill:var(--negative)}.dot.uncounted{fill:var(--negative)}
.dot.hit{fill:var(--warm)}.dot.miss{fill:var(--exact)}.dot.negative{fill:var(--negative)}
.step{fill:none;stroke-width:2}.step.cold{stroke:var(--cold)}.step.warm{stroke:var(--warm)}
.step.negative{stroke:var(--negative)}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 14px;
vertical-align:-1px}
.key.exact{background:var(--exact)}.key.semantic{background:var(--semantic)}
.key.candidate{background:var(--candidate)}.key.both{background:var(--both)}
.key.nothing{background:var(--nothing)}.key.hit{background:var(--warm)}
.key.cold{background:var(--cold)}.key.warm{background:var(--warm)}
.key.in-time{background:var(--confirmed)}.key.late{background:var(--warm)}
.key.failed{background:var(--bad)}.key.uncounted{background:var(--negative)}
.key.limit{height:0;border-top:2px dashed var(--bad);border-radius:0;vertical-align:3px}
.key.miss{background:var(--exact)}.key.negative{background:var(--negative)}
.verdict{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}.unknown{color:var(--soft)}
"""
