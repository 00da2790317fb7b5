"""Pages that behave badly, as a site inside the process, and an environment that opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from turngym.environments.core.env import Outcome
from turngym.environments.web.base import WebEnv
from turngym.environments.web.browser import BrowserHost
from turngym.environments.web.egress import Response, Site
from turngym.environments.web.settings import Settings

HOST = "pages.test"
QUICK = Settings(width=400, height=300, cap_ms=1_000)

PAGES = {
    "/slow-keys": """<!doctype html><title>Slow</title><input aria-label="Name"><script>
        onkeydown = () => { const end = Date.now() + 350; while (Date.now() < end); }
        </script>""",
    "/plain": """<title>Plain</title><h1>Hello</h1><button>One</button>
        <a href='/form'>to the form</a>""",
    "/form": """<title>Form</title><form action='/sent'>
        <label>Name <input name=name></label>
        <label>Bio <textarea name=bio></textarea></label>
        <label>Size <select name=size><option>small<option>large</select></label>
        <label><input type=checkbox name=ok> agree</label>
        <label>Day <input type=date name=day></label>
        <label>File <input type=file name=file></label>
        <button>Send</button></form>""",
    "/moving-field": """<label>Name <input id=name></label><div id=place></div><script>
        document.getElementById("name").addEventListener("input", (event) => {
            place.append(event.target) }, { once: true })</script>""",
    "/sent": "<title>Sent</title><p>Thank you</p>",
    "/alert-loop": "<button onclick='while (true) alert(\"again\")'>Loop</button>",
    "/alert-storm": "<p>calm</p><script>for (let i = 0; i < 200; i++) alert(i)</script>",
    "/dialogs": """<button onclick='document.title = confirm("Sure?") + "/" + prompt("Who?")'>
        Ask</button>""",
    "/reload": "<p>loading</p><script>location.reload()</script>",
    "/busy": "<button onclick='while (true) {}'>Hang</button>",
    "/never-quiet": """<p id=n>0</p><button>Still here</button>
        <script>setInterval(() => { n.textContent = +n.textContent + 1 }, 5)</script>""",
    "/hanging-fetch": "<button>Still here</button><script>fetch('/never')</script>",
    "/saving": """<button onclick="fetch('/save')">Save</button>""",
    "/fetching": """<title>Empty</title><script>fetch('/late').then((r) => r.text())
        .then((text) => { document.title = text })</script>""",
    "/late": "Filled",
    "/popups": """<button onclick='for (let i = 0; i < 30; i++) window.open("/plain?" + i)'>
        Open</button>""",
    "/link": "<a href='/plain' target='_blank'>Open</a>",
    "/download": "<a href='/file.bin'>small</a> <a href='/huge.bin'>huge</a>",
    "/elsewhere": """<p>here</p><script>
        new Image().src = "http://127.0.0.1:" + location.search.slice(1) + "/x.png";
        fetch('http://elsewhere.test/').then((r) => { document.title = r.status })
        .catch(() => { document.title = "refused" })</script>""",
    "/progress": """<label>Upload <progress value=30 max=120></progress></label>
        <progress title=Waiting></progress><label>Disk <meter value=6 max=8></meter></label>
        <div role=progressbar aria-label=Steps aria-valuenow=3></div>""",
    "/styled": """<label><input type=checkbox hidden> Terms, <a href=/plain>read them</a></label>
        <p><input type=radio name=size hidden id=s><label for=s>Small</label></p>
        <div role=slider tabindex=0 aria-label=Volume aria-valuenow=5>&bull;</div>
        <select aria-label=Colour><option>red<option disabled>grey</select>
        <div inert><button>Behind</button></div>""",
    "/live": """<p id=news>none</p><script>
        const socket = new WebSocket("ws://live.test/news")
        socket.onopen = () => socket.send("any?")
        socket.onmessage = (event) => { news.textContent = event.data }</script>""",
    "/memory": """<p id=seen></p><script>
        seen.textContent = "seen " + (localStorage.seen || "no") + " " + document.cookie;
        localStorage.seen = "yes"; document.cookie = "seen=yes"</script>""",
    "/long": "".join(f"<p>Paragraph {n} of many words in a row</p>" for n in range(400)),
    "/gone": "<button id=a onclick='a.remove(); b.hidden = false'>First</button>"
    "<button id=b hidden>Second</button>",
    "/covered": "<button onclick='document.title = 1'>Under</button>"
    "<div style='position:fixed; inset:0; background:#ccc'>Cover</div>",
    "/rim": "<style>button { position:absolute; left:20px; width:40px; height:40px }</style>"
    "<button style='top:20px' onclick='document.title = 1'>Under</button>"
    "<button style='top:23px' onclick='document.title = 2'>Over</button>",
    "/frame": "<h1>Outside</h1><iframe src='/form' width=300 height=200></iframe>",
    "/low-frame": "<iframe src='/low' width=300 height=900></iframe>",
    "/low": "<div style='height:700px'></div>"
    "<button onclick='this.textContent = \"Reached\"'>Below</button>",
    "/slow-part": """<p id=place></p><button>Second</button><script>fetch('/slow')
        .then((r) => r.text()).then((text) => { place.innerHTML = text })</script>""",
    "/slow": "<button>First</button>",
    "/shadow": "<div id=host></div><script>host.attachShadow({mode: 'open'}).innerHTML ="
    '"<button onclick=\\"document.title = 7\\">Inside</button>"</script>',
}


async def site(path: str) -> Response:
    """Answer like a site that was not made for robots."""
    name = urlsplit(path).path
    if name == "/redirect":
        return Response(status=302, headers=(("Location", "/redirect"),))
    if name == "/never":
        await asyncio.sleep(3_600)
    if name == "/slow":
        await asyncio.sleep(0.5)
    if name == "/fifty-megabytes":
        body = b"<p>" + b"long " * (10 << 20) + b"</p><button>End</button>"
        return Response(body=body)
    if name == "/save":
        return Response(body=b"true", headers=(("Cache-Control", "no-store"),))
    if name in ("/file.bin", "/huge.bin"):
        size = 1_000 if name == "/file.bin" else 21 << 20
        header = (("Content-Disposition", f"attachment; filename=../..{name}"),)
        return Response(body=b"x" * size, type="application/octet-stream", headers=header)
    if name in PAGES:
        return Response(body=PAGES[name].encode())
    return Response(status=404, body=b"nothing here")


class PagesEnv(WebEnv):
    """Opens one of ``PAGES``; ends with an answer, which is right when it is ``yes``."""

    name = "pages"

    def __init__(
        self,
        page: str = "/plain",
        *,
        settings: Settings = QUICK,
        others: Mapping[str, Site] = MappingProxyType({}),
        **kwargs: object,
    ) -> None:
        super().__init__(settings=settings, **kwargs)
        self.start = page
        self.others = others
        self.said: str | None = None

    def sites(self):
        return {HOST: site, **self.others}

    async def prepare(self, task):
        self.said = None
        return "Look around.", f"http://{HOST}{self.start}"

    async def judge(self, action):
        if action.name not in ("answer", "stop"):
            return None
        self.said = str(action.arguments.get("text", ""))
        return Outcome(text="thank you", reward=self.score(), terminated=True)

    def score(self):
        return float(self.said == "yes")


async def kill_browser(host: BrowserHost) -> None:
    """Kill the browser process, as a crash would; in the host's loop."""
    browser = host._browser
    assert browser is not None
    gone = asyncio.Event()
    browser.once("disconnected", lambda _: gone.set())
    session = await browser.new_browser_cdp_session()
    crash = asyncio.ensure_future(session.send("Browser.crash"))  # the answer never comes
    try:
        await asyncio.wait_for(gone.wait(), 60.0)
    finally:
        crash.cancel()
        await asyncio.gather(crash, return_exceptions=True)
