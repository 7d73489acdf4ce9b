"""One rank's stream as prefixed lines, and the end of it for the report. Pure: bytes to bytes."""

from __future__ import annotations

LINE_BYTES_MAX = 65536
TAIL_BYTES_MAX = 8192
TAIL_LINES_MAX = 12


class Prefixer:
    """Puts a prefix before each line, and holds a line back until it is whole.

    A line longer than LINE_BYTES_MAX goes out in pieces, the first of them prefixed; `in_line` is
    True from then until its end, and nothing else may be written to the same place meanwhile.
    """

    def __init__(self, prefix: bytes) -> None:
        self.in_line: bool = False
        self._prefix = prefix
        self._partial: list[bytes] = []
        self._partial_bytes = 0

    def rename(self, prefix: bytes) -> None:
        """Put this before all lines from here on."""
        self._prefix = prefix

    def feed(self, data: bytes) -> bytes:
        """Take what the rank wrote; return what can be written now."""
        cut = data.rfind(b"\n") + 1
        whole = b""
        if cut:
            whole = self._finish_lines(data[:cut])
            data = data[cut:]
        if data:
            self._partial.append(data)
            self._partial_bytes += len(data)
        return whole + self._overlong()

    def finish(self) -> bytes:
        """Return what was held back, completed by a newline."""
        return self.feed(b"\n") if self._partial or self.in_line else b""

    def break_line(self) -> None:
        """Learn that another's line ended the one we were in: the rest gets its own prefix."""
        self.in_line = False

    def _finish_lines(self, lines: bytes) -> bytes:
        start = b"" if self.in_line else self._prefix
        body = b"".join((*self._partial, lines[:-1])).replace(b"\n", b"\n" + self._prefix)
        self._clear()
        self.in_line = False
        return start + body + b"\n"

    def _overlong(self) -> bytes:
        if self._partial_bytes <= LINE_BYTES_MAX:
            return b""
        start = b"" if self.in_line else self._prefix
        piece = start + b"".join(self._partial)
        self._clear()
        self.in_line = True
        return piece

    def _clear(self) -> None:
        self._partial.clear()
        self._partial_bytes = 0


class Tail:
    """The last lines of a stream."""

    def __init__(self) -> None:
        self._kept = b""
        self._cut = False

    def feed(self, data: bytes) -> None:
        """Take what the rank wrote."""
        self._cut = self._cut or len(self._kept) + len(data) > TAIL_BYTES_MAX
        self._kept = (self._kept + data[-TAIL_BYTES_MAX:])[-TAIL_BYTES_MAX:]

    def lines(self) -> tuple[str, ...]:
        """Return the last lines as text that is safe to print."""
        lines = self._kept.split(b"\n")
        if self._cut and len(lines) > 1:
            lines = lines[1:]
        texts = [printable(line) for line in lines]
        while texts and not texts[-1].strip():
            texts.pop()
        return tuple(texts[-TAIL_LINES_MAX:])


def printable(line: bytes | str) -> str:
    """Return a line with all that could act on a terminal escaped, cut at 400 characters."""
    text = line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
    text = text.expandtabs(4).rstrip()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 400 else text[:400] + " [cut]"
