"""The report as one HTML page: words and data from Python, pictures by the script in `report.js`."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
"""What the browser may load: nothing but what is in the page, and, for a live page, events of its own server."""


def html_page(content: dict[str, Any], live: bool = False) -> str:
    """The page. `live`: it listens for events of the server that sent it."""
    room = files("protofed.report")
    style, script = (room.joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    data = json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = f"protofed: {content['title']}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#verdict">Skip to the verdict</a>
<header>
<p class="kind">protofed report</p>
<h1>{escape(content["title"])}</h1>
<div id="live" role="status"{"" if live else " hidden"}></div>
</header>
<main>
<section id="verdict" aria-labelledby="verdict-title">
<h2 id="verdict-title">Verdict</h2>
<div id="verdict-words">{verdict_words(content)}</div>
</section>
<div id="sections"></div>
<noscript><p>The tables and pictures of this page need JavaScript. All data are in this file, as JSON.</p></noscript>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def verdict_words(content: dict[str, Any]) -> str:
    """The verdict, which can be read without JavaScript."""
    sentences = "".join(f"<p>{escape(text)}</p>" for text in content["verdict"])
    notes = "".join(f"<li>{escape(text)}</li>" for text in content["cautions"])
    careful = f"<ul>{notes}</ul>" if notes else "<p>Nothing was found that speaks against these figures.</p>"
    return f'{sentences}<h3>Before you believe it</h3><div class="cautions">{careful}</div>'
