"""How the page looks: one sheet, light or dark as the reader's system is."""

from __future__ import annotations

SHEET = """
:root{color-scheme:light dark;--back:#fbfaf7;--card:#fff;--ink:#1f2328;--dim:#6a6f76;
--line:#e3e1da;--user:#eef3fb;--code:#f4f2ed;--accent:#2f6fd0;--sent:#b9c9e6;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--back:#16181c;--card:#1d2025;--ink:#e4e6e9;--dim:#979da6;
--line:#31353c;--user:#222b3a;--code:#14161a;--accent:#7fb0ff;--sent:#3d4f70;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);
font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
.page{max-width:860px;margin:0 auto;padding:2.5rem 1.25rem 4rem;display:flex;
flex-direction:column}
.head{order:0}.tokens{order:1}main{order:2}footer{order:3}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .35rem;overflow-wrap:anywhere}
.dim,time,footer{color:var(--dim);font-size:.84rem}
.tokens{margin:1.4rem 0 .4rem;padding:.8rem 1rem .4rem;background:var(--card);
border:1px solid var(--line);border-radius:10px}
.tokens svg{display:block;width:100%;height:auto;margin-top:.4rem}
.tokens h2{font-size:.9rem;margin:0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}
.tokens h2 span{font-weight:400;color:var(--dim)}
.tokens h2 span::before{content:"";display:inline-block;width:.7em;height:.7em;
margin-right:.4em;border-radius:2px;background:var(--accent)}
.tokens h2 .in::before{background:var(--sent)}
svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
svg .end{text-anchor:end}svg .mid{text-anchor:middle}
svg .grid{stroke:var(--line);stroke-dasharray:2 4}svg .floor{stroke:var(--line)}
svg .sent{fill:var(--sent)}svg .received{fill:var(--accent)}
.turn{margin-top:1.6rem;scroll-margin-top:1rem}
.turn:target{outline:2px solid var(--accent);outline-offset:8px;border-radius:10px}
.message{margin-top:.75rem;padding:.75rem 1rem;background:var(--card);
border:1px solid var(--line);border-radius:10px;unicode-bidi:isolate}
.message>header{display:flex;flex-wrap:wrap;gap:.1rem .8rem;align-items:baseline;
margin-bottom:.3rem}
.message>header b{font-size:.9rem}
.message>header time{margin-left:auto}
.user{background:var(--user);border-color:transparent}
.user .said{white-space:pre-wrap;overflow-wrap:anywhere}
.notice{border-style:dashed;color:var(--dim);font-size:.92rem}
.notice .said{white-space:pre-wrap;overflow-wrap:anywhere}
.bad{color:var(--bad);font-size:.84rem}
.said>:first-child{margin-top:0}.said>:last-child{margin-bottom:0}
.said{overflow-wrap:anywhere}
.said h1,.said h2,.said h3,.said h4{font-size:1.08rem;line-height:1.35;margin:1.1em 0 .4em}
.said h1{font-size:1.25rem}.said h2{font-size:1.15rem}
.said blockquote{margin:.6em 0;padding-left:1em;border-left:3px solid var(--line);
color:var(--dim)}
.said ul,.said ol{padding-left:1.5em}
.said table{border-collapse:collapse;display:block;overflow-x:auto}
.said th,.said td{border:1px solid var(--line);padding:.3em .7em;text-align:left}
.said .right{text-align:right}.said .center{text-align:center}
.said hr{border:0;border-top:1px solid var(--line)}
a{color:var(--accent)}
pre{background:var(--code);border:1px solid var(--line);border-radius:8px;padding:.7rem .9rem;
overflow-x:auto;font-size:.86rem;line-height:1.5;margin:.6em 0}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
:not(pre)>code{background:var(--code);border-radius:4px;padding:.1em .35em;font-size:.9em}
details{margin:.5rem 0;border:1px solid var(--line);border-radius:8px;background:var(--code)}
summary{cursor:pointer;padding:.35rem .8rem;font-size:.88rem;overflow-wrap:anywhere}
details[open]>summary{border-bottom:1px solid var(--line)}
details h3{font-size:.78rem;font-weight:600;color:var(--dim);margin:.6rem .8rem 0}
details pre{border:0;margin:0;padding:.3rem .8rem .7rem;background:none;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:32rem;overflow-y:auto}
footer{margin-top:2.5rem;padding-top:.8rem;border-top:1px solid var(--line)}
@media print{body{background:none}.page{max-width:none;padding:0}
.message,.tokens{break-inside:avoid-page}details pre{max-height:none}}
"""
