"""Progress of a long run: one line that is redrawn on a terminal, plain lines in a pipe."""

import sys
import time


class Progress:
    def __init__(self, total, first=0, every=50, stream=sys.stderr):
        """total: units of work in all, of which `first` were done before; every: calls between
        plain lines."""
        self.total, self.first, self.every, self.stream = total, first, every, stream
        self.start = time.monotonic()
        self.calls = 0
        self.live = stream.isatty()

    def update(self, done, text):
        self.calls += 1
        if not self.live and self.calls % self.every and done < self.total:
            return
        seconds = max(time.monotonic() - self.start, 1e-9)
        rate = (done - self.first) / seconds
        left = _clock((self.total - done) / rate) if rate > 0 else "?"
        line = f"{text}  {rate:,.0f} tok/s  {100 * done / self.total:.1f} %  {left} left"
        if self.live:
            self.stream.write("\r\x1b[K" + line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def say(self, line):
        """A line that stays."""
        self.stream.write(("\r\x1b[K" if self.live else "") + line + "\n")
        self.stream.flush()


def _clock(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
