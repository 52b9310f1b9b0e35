"""Headless Chromium, driven through a pipe by its DevTools protocol."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    *("--headless", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--no-sandbox", "--disable-dev-shm-usage"),  # Docker has neither
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ),
)
FACTS = (Path(__file__).parent / "facts.js").read_text()


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class NoBrowserError(Exception):
    """Raised if a program does not start, or ends."""


class Browser:
    """One tab. `open` loads a page and returns the facts of `facts.js`, at each width of the window.

    Raises:
        NoBrowserError: if the program does not answer.
    """

    def __init__(self, program: str):
        self._profile = TemporaryDirectory(ignore_cleanup_errors=True)
        reading, self._commands = os.pipe()
        answers, writing = os.pipe()
        # The protocol has descriptors 3 and 4.
        shell = ["bash", "-c", f'exec "$@" 3<&{reading} 4>&{writing}', "chromium"]
        self._process = subprocess.Popen(
            [*shell, program, *OPTIONS, f"--user-data-dir={self._profile.name}"],
            pass_fds=(reading, writing),
            stderr=subprocess.DEVNULL,
        )
        os.close(reading)
        os.close(writing)
        self._answers = os.fdopen(answers, "rb")
        self._rest, self._count, self._events, self._session = b"", 0, [], None
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
        except NoBrowserError:
            self.__exit__()
            raise
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()
        os.close(self._commands)
        self._answers.close()
        self._profile.cleanup()

    def open(self, url, widths=(1280, 420)):
        self._events.clear()
        self._resize(widths[0])
        self._call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()
        facts = []
        for width in widths:
            self._resize(width)
            facts.append(self._evaluate(FACTS))
        return facts, [*self._events]

    def _resize(self, width):
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def _evaluate(self, expression):
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def _call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._commands, json.dumps(message).encode() + b"\0")
        except BrokenPipeError as error:
            raise NoBrowserError("it has ended") from error
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self):
        while b"\0" not in self._rest:
            part = self._answers.read1(1 << 16)
            if not part:
                raise NoBrowserError("it has ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        answer = json.loads(message)
        if "method" in answer:
            self._events.append(answer)
        return answer
