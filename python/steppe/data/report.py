"""What became of the documents: nothing is dropped, split or cut without being counted here."""

from dataclasses import dataclass, field

_NAMED = 5  # undecodable documents listed by name


@dataclass
class DatasetReport:
    name: str
    over_length: str  # split, truncate or drop
    seq_length: int | None
    read_bytes: int = 0
    kept: int = 0
    tokens: int = 0
    over: int = 0  # documents of more than seq_length + 1 tokens
    empty: int = 0
    undecodable: int = 0
    undecodable_names: list[str] = field(default_factory=list)
    histogram: dict[int, int] = field(default_factory=dict)  # documents by bit length of their token count

    def count_length(self, length: int) -> None:
        bits = length.bit_length()
        self.histogram[bits] = self.histogram.get(bits, 0) + 1

    def count_undecodable(self, name: str) -> None:
        self.undecodable += 1
        if len(self.undecodable_names) < _NAMED:
            self.undecodable_names.append(name)

    @property
    def dropped(self) -> int:
        return self.empty + self.undecodable + (self.over if self.over_length == "drop" else 0)

    def text(self) -> str:
        lines = [
            f"{self.name}: {self.kept + self.dropped:,} documents, {self.read_bytes / 1e6:,.1f} MB of text"
        ]
        lines.append(f"  kept     {self.kept:>12,}   {self.tokens:,} tokens, end tokens included")
        if self.seq_length is not None:
            what = {
                "split": "longer than a sequence; they go on in the next one when training",
                "truncate": "cut to a sequence",
                "drop": "longer than a sequence; dropped",
            }[self.over_length]
            label = {"split": "split", "truncate": "cut", "drop": "over"}[self.over_length]
            lines.append(f"  {label:<8} {self.over:>12,}   {what} ({self.seq_length:,} + 1 tokens)")
        lines.append(f"  dropped  {self.dropped:>12,}   {self.empty:,} empty, {self.undecodable:,} not UTF-8")
        lines += [f"    not UTF-8: {name}" for name in self.undecodable_names]
        if self.undecodable > len(self.undecodable_names):
            lines.append(f"    and {self.undecodable - len(self.undecodable_names):,} more")
        if self.histogram:
            lines.append("  tokens a document")
            most = max(self.histogram.values())
            for bits in range(min(self.histogram), max(self.histogram) + 1):
                count = self.histogram.get(bits, 0)
                bar = "#" * round(40 * count / most) or ("." if count else "")
                lines.append(f"    {2 ** (bits - 1):>11,} – {2**bits - 1:<11,} {count:>10,} {bar}")
        return "\n".join(lines)


class DocumentCounter:
    """Takes encoded documents, possibly in stretches, to a writer: end tokens, lengths, counts."""

    def __init__(self, writer, report: DatasetReport, eos: int):
        self._writer = writer
        self._report = report
        self._eos = eos
        seq_length = report.seq_length
        self._limit = None if seq_length is None else seq_length + 1
        self._length = 0  # tokens of the open document
        self._is_bad = False

    def take(self, tokens, name: str, is_last: bool) -> None:
        if tokens is None:
            self._is_bad = True
        elif not self._is_bad:
            room = len(tokens)
            if self._limit is not None and self._report.over_length == "truncate":
                room = max(0, self._limit - self._length)
            self._writer.add(tokens[:room])
            self._length += len(tokens)
        if is_last:
            self._end(name)

    def _end(self, name: str) -> None:
        report, length = self._report, self._length + 1
        is_bad, is_empty = self._is_bad, self._length == 0
        self._length, self._is_bad = 0, False
        if is_bad:
            self._writer.take_back()
            report.count_undecodable(name)
            return
        if is_empty:
            report.empty += 1
            return
        report.count_length(length)
        is_over = self._limit is not None and length > self._limit
        report.over += is_over
        if is_over and report.over_length == "drop":
            self._writer.take_back()
            return
        if is_over and report.over_length == "truncate":
            length = self._limit  # and no end token: the document does not end there
        else:
            self._writer.add([self._eos])
        self._writer.end_document()
        report.kept += 1
        report.tokens += length
