"""`moe serve` as a process: started on a free port of the loopback, ended with SIGTERM."""

import os
import re
import signal
import subprocess
import time
import urllib.request

START_SECONDS = 120
DRAIN_SECONDS = 40


class Serve:
    """A running `moe serve MODEL`; `with` ends it with SIGTERM and checks the exit code."""

    def __init__(self, binary, model, log, *options):
        self.log = log
        self.asked = False  # to end
        self.command = [binary, "serve", model, "--port", "0", *options]
        with open(log, "wb") as errors:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        self.url = self._wait()

    def _wait(self):
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            found = re.search(r"listening on (http://\S+)\s", self.said())
            if found:
                return found[1].rstrip("/")
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        code = self.process.poll()
        self.process.kill()
        ended = f"ended with status {code}" if code is not None else "is still silent"
        raise SystemExit(
            f"{' '.join(self.command)} {ended} and printed no 'listening on http://HOST:PORT':\n"
            + self.said()[-2000:]
        )

    def said(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    @property
    def pid(self):
        return self.process.pid

    def healthy(self):
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=10) as reply:
                return reply.status == 200
        except OSError:
            return False

    def terminate(self):
        """Sends SIGTERM once, as a second one ends at once; `stop` waits for the end."""
        if self.process.poll() is None and not self.asked:
            self.asked = True
            os.kill(self.process.pid, signal.SIGTERM)

    def stop(self):
        """The exit code after SIGTERM; the process is killed and None returned when it stays."""
        self.terminate()
        try:
            return self.process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        early = self.process.poll()
        by_itself = early is not None and not self.asked
        code = self.stop()
        if kind is not None:
            return
        if by_itself:
            raise SystemExit(
                f"the server ended by itself with status {early}:\n{self.said()[-2000:]}"
            )
        if code is None:
            raise SystemExit(f"the server was still there {DRAIN_SECONDS} s after SIGTERM")
        if code != 0:
            raise SystemExit(
                f"the server ended with status {code} after SIGTERM:\n{self.said()[-2000:]}"
            )


class Running:
    """A server that somebody else started, such as a stand-in: the same form, and it goes on."""

    process = None
    pid = None

    def __init__(self, url):
        self.url = url.rstrip("/")

    healthy = Serve.healthy

    def stop(self):
        return 0

    def terminate(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        pass
