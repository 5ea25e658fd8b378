"""Makes the summary and the gist of a text, by rule and without a model. Pure.

`levels_of` is the entry point. The kind of text is recognized by its first lines; for each
kind there is a function that names the passages worth keeping, and `text` fits them into the
size there is. `json` has the shapes of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.digest.json import JsonShape, read_json
from nplt_server.digest.text import (
    LINE_END,
    Passage,
    PassageOutline,
    TextLine,
    counted,
    cut_to_size,
    lines_of,
    one_line,
    passage_of,
    place_to_resume,
    place_to_stop,
    sampled_lines,
    sampled_ranges,
    size_of,
)
from nplt_storage.entries import LevelOfDetailSections, ToolCallResult

# ------------------------------------------------------------------------------
# Levels
#
# A text of at most `GIST_SIZE_MAX` has no levels. A longer one has a gist of one line and,
# above `SUMMARY_SIZE_MAX`, a summary. The same text always has the same levels.

SUMMARY_SIZE_MAX: Final = 1_200
GIST_SIZE_MAX: Final = 200
"""In bytes of UTF-8, about four to a token: 300 tokens and 50, whatever the script."""

_TOOL_NAME_SIZE_MAX: Final = 60


def levels_of(said: str | ToolCallResult) -> LevelOfDetailSections | None:
    """Of a prompt, an answer or a tool's result; None where it is short: the text is all
    there is."""
    label = ""
    if isinstance(said, str):
        text = said
    else:
        text = said.result
        name = one_line(cut_to_size(said.tool_name, _TOOL_NAME_SIZE_MAX))
        of_whole = f", the beginning of {said.blob.size:,} bytes" if said.blob else ""
        label = f"{name} {said.status}{of_whole}:"
    if size_of(text) <= GIST_SIZE_MAX:
        return None
    outline = outline_of(text)
    room_taken = size_of(label) + 1 if label else 0
    gist = one_line(f"{label} {outline.gist(GIST_SIZE_MAX - room_taken)}")
    summary = ""
    if size_of(text) > SUMMARY_SIZE_MAX:
        told = outline.summary(SUMMARY_SIZE_MAX - room_taken)
        summary = f"{label}\n{told}" if label else told
    return LevelOfDetailSections(
        live=(("", text),),
        summary=(("", summary),) if summary else (),
        # A summary that is this short already is asked for both.
        gist=() if summary and size_of(gist) >= size_of(summary) else (("", gist),),
    )


# ------------------------------------------------------------------------------
# Kinds of text

TextKind: TypeAlias = Literal["prose", "code", "diff", "table", "listing"]

_LOOKED_AT_CHARACTERS: Final = 16 * 1024
_LINES_MAX: Final = 200
_LINES_MIN: Final = 6
_SENTENCE_ENDS: Final = (".", "!", "?", "。", "！", "？", ":", "：")
_CODE_ENDS: Final = ("{", "}", ";", "):", "(", ");", "},", "=>", "])", "\\")
_CODE_STARTS: Final = ("#", "//", "/*", "+", "-", " ")
_CODE_SIGNS: Final = (" = ", " == ", "->", "=>", "()", " += ", "self.", "return ", "&&", "||")
_LOG: Final = re.compile(
    r"[\[(]?\d{2,4}[-/:.]\d\d[-/:.]\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d"
    r"|[\[<(]?(?:DEBUG|INFO|WARN|ERROR|FATAL|TRACE|NOTICE|CRITICAL)\b"
)
_SEPARATORS: Final = ("\t", "|", ";", ",")
_PLAIN_SIGNS: Final = frozenset(" ,.'\"?!’“”;:()-\n\t，。！？、")


def kind_of_text(text: str) -> TextKind:
    lines = lines_of(text, 0, min(len(text), _LOOKED_AT_CHARACTERS))[:_LINES_MAX]
    if any(line.text.startswith(FILE_OF_DIFF) for line in lines):
        return "diff"
    if len(lines) < _LINES_MIN or any(line.text.lstrip().startswith(_FENCES) for line in lines):
        return "prose"
    if _is_code(lines):
        return "code"
    if _is_table(lines):
        return "table"
    return "listing" if _is_listing(lines) else "prose"


def _is_code(lines: list[TextLine]) -> bool:
    strong = sum(is_definition(line.text) or is_import(line.text) for line in lines)
    if strong < 2:
        return False
    alike = sum(
        line.text.endswith(_CODE_ENDS)
        or line.text.startswith(_CODE_STARTS)
        or line.text[:4].isspace()
        or any(sign in line.text for sign in _CODE_SIGNS)
        for line in lines
    )
    return strong + alike >= len(lines) // 2


def _is_table(lines: list[TextLine]) -> bool:
    """The same separator as often in almost every line."""
    for separator in _SEPARATORS:
        columns = lines[0].text.count(separator)
        if columns < (2 if separator == "," else 1):
            continue
        alike = sum(line.text.count(separator) == columns for line in lines)
        if alike * 10 >= len(lines) * 9:
            return True
    return False


def _is_listing(lines: list[TextLine]) -> bool:
    count = len(lines)
    if sum(_LOG.match(line.text) is not None for line in lines) * 5 >= count * 2:
        return True
    structured = sum(kind_of_line(line.text) in ("heading", "item") for line in lines)
    ended = sum(line.text.endswith(_SENTENCE_ENDS) for line in lines)
    if structured * 3 >= count or ended * 2 >= count:
        return False
    lengths = sorted(len(line.text) for line in lines)
    if lengths[count // 2] < 40 and ended * 5 < count:
        return True
    sample = "".join(line.text for line in lines)[:4_000]
    signs = sum(not (sign.isalpha() or sign in _PLAIN_SIGNS) for sign in sample)
    return signs * 8 >= len(sample)


# ------------------------------------------------------------------------------
# Source code: the number of imports, the definitions by name

_DEFINITION_WORTH: Final = 80
_OPENING: Final = 60
_NOTED: Final = 50
_EXPLAINED: Final = 30
_REST: Final = 10

_OPENING_LINES: Final = 4
_LINE_CHARACTERS_MAX: Final = 160
_LOOKED_AT_OF_LINE: Final = 200
_DEFINITION: Final = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|sealed"
    r"|pub|pub\(crate\)|unsafe|inline|override|virtual|declare|open|data|partial)[ \t]+)*"
    r"(?:(?:def|class|function\*?|fn|func|fun|interface|struct|enum|trait|impl|type|module"
    r"|namespace|package|macro_rules!|@interface|sub|proc)[ \t]+[\w$(<\"'*]"
    r"|(?:CREATE|ALTER|create|alter)[ \t]+(?:OR[ \t]+REPLACE[ \t]+)?[A-Za-z]+[ \t]"
    r"|(?:const|let|var|val)[ \t]+[\w$]+[ \t]*=[ \t]*(?:async[ \t]*)?(?:function|\()"
    r"|\#define[ \t]|\w{1,80}\(\)[ \t]*\{)"
)
_IMPORT: Final = re.compile(
    r"import[ \t{(\"'*]|from[ \t]+\S{1,80}[ \t]+import[ \t]|#[ \t]*include[ \t]*[<\"]"
    r"|use[ \t]+[\w:{]|using[ \t]+\w|require[ \t(]"
    r"|(?:const|let|var)[ \t]+[\w${} ,]{1,80}=[ \t]*require\("
)
_CONTROL: Final = re.compile(
    r"(?:if|for|foreach|while|switch|else|return|catch|do|try|elif|with|match|when)\b|\}"
)
_END_OF_NAME: Final = re.compile(r"(?<=\w)\(|[ \t]*[:{=<]|[ \t]\($")
_COMMENTS: Final = ("//", "#", "/*", "*", "--", '"""', "'''", ";;", "<!--")


def is_definition(line: str) -> bool:
    bare = line[:_LOOKED_AT_OF_LINE].lstrip()
    if _DEFINITION.match(bare):
        return True
    # The C family says what it returns, its name, its parameters, and opens a brace.
    return bare.endswith("{") and "(" in bare and not _CONTROL.match(bare)


def is_import(line: str) -> bool:
    return _IMPORT.match(line[:_LOOKED_AT_OF_LINE].lstrip()) is not None


def outline_of_code(text: str) -> PassageOutline:
    passages: list[Passage] = []
    names: list[Passage] = []
    imports = 0
    after_definition = False
    for index, line in enumerate(sampled_lines(text)):
        bare = line.text.lstrip()
        indentation = min(len(line.text) - len(bare), 8)
        if is_definition(bare):
            after_definition, weight = True, _DEFINITION_WORTH - indentation
            end_of_name = _END_OF_NAME.search(line.text)
            named = _LINE_CHARACTERS_MAX if end_of_name is None else end_of_name.start()
            name_end = min(line.end, line.start + named)
            names.append(Passage(start=line.start, end=name_end, weight=weight))
        elif is_import(bare):
            after_definition, weight, imports = False, 0, imports + 1
        else:
            weight = _worth_in_code(bare, indentation, index=index, is_explained=after_definition)
            after_definition = False
        passages.append(passage_of(text, line, weight, _LINE_CHARACTERS_MAX))
    count = counted(text.count(LINE_END) + 1, "line")
    label = f"[code, {count}, {counted(imports, 'import')}]"
    return PassageOutline(text=text, passages=passages, of_gist=names, label=label)


def _worth_in_code(bare: str, indentation: int, *, index: int, is_explained: bool) -> int:
    if not any(map(str.isalnum, bare)):
        return 0
    if index < _OPENING_LINES:
        return _OPENING
    if "TODO" in bare or "FIXME" in bare:
        return _NOTED
    if bare.startswith(_COMMENTS):
        return _EXPLAINED if is_explained else _REST
    return _REST - indentation


# ------------------------------------------------------------------------------
# Diffs: files, and the changed lines

FILE_OF_DIFF: Final = "diff --git "

_FILE: Final = 80
_MESSAGE: Final = 82
_DEFINITION_WORTH_IN_DIFF: Final = 60
_CHANGED: Final = 20
_ENVELOPE: Final = ("commit ", "Author:", "Date:", "Merge:", "From ")


def outline_of_diff(text: str) -> PassageOutline:
    passages: list[Passage] = []
    is_message = True
    for line in sampled_lines(text):
        said = line.text
        is_message = is_message and not said.startswith(FILE_OF_DIFF)
        if is_message:
            weight = _CHANGED if said.startswith(_ENVELOPE) else _MESSAGE
        elif said.startswith(FILE_OF_DIFF):
            weight = _FILE
        elif not said.startswith(("+", "-")) or said.startswith(("+++", "---")):
            weight = 0
        elif not any(map(str.isalnum, said)):
            weight = 1
        else:
            weight = _DEFINITION_WORTH_IN_DIFF if is_definition(said[1:]) else _CHANGED
        passages.append(passage_of(text, line, weight, _LINE_CHARACTERS_MAX))
    files = text.count(LINE_END + FILE_OF_DIFF) + text.startswith(FILE_OF_DIFF)
    label = f"[diff, {counted(files, 'file')}, {counted(text.count(LINE_END) + 1, 'line')}]"
    return PassageOutline(text=text, passages=passages, label=label)


# ------------------------------------------------------------------------------
# Logs, tables and other lists of lines
#
# The number of lines, the first and the last, and above all errors and warnings, each kind
# once.

_FIRST_ERROR: Final = 102
_LAST_ERROR: Final = 100
_FIRST_LINE: Final = 96
_LAST_LINE: Final = 90
_NEAR_AN_END: Final = 55

_LISTING_LINE_CHARACTERS_MAX: Final = 180
_ERROR_WORDS: Final = (
    *("error", "exception", "fatal", "failed", "failure", "panic", "critical", "traceback"),
    *("denied", "refused", "timed out", "segfault", "abort"),
    *("错误", "失败", "异常", "致命", "崩溃", "超时", "拒绝"),
)
_WARNING_WORDS: Final = ("warn", "deprecat", "警告", "告警")
_NO_TROUBLE: Final = re.compile(
    r"\b(?:0|no) (?:error|fail|warn)|(?:error|exception|warning|failure)s?[./_-]\w"
    r"|[0无没](?: ?个)?有?(?:错误|异常|失败)"
)
"""`0 errors`; and files that are named for what they are about."""
_DIGITS: Final = re.compile(r"\d+")
_LISTING_LINE_LOOKED_AT: Final = 400
_SOUGHT_IN_THE_WHOLE: Final = (
    *("ERROR", "Error", "FATAL", "Traceback", "FAILED", "panic", "WARN", "错误", "异常", "失败"),
)
"""Of a text that is too long to be read line by line the first and the last are found."""

Trouble: TypeAlias = Literal["error", "warning", ""]

_NEW: Final[dict[Trouble, int]] = {"error": 84, "warning": 64, "": 30}
"""The worth of a line of a sort that was not there before."""


def outline_of_listing(text: str, *, name: str = "") -> PassageOutline:
    lines = sampled_lines(text)
    is_read_whole = len(sampled_ranges(text)) == 1
    if not is_read_whole:
        lines = _with_lines_found(text, lines)
    troubles = troubles_in(lines)
    sorts_seen: set[str] = set()
    passages: list[Passage] = []
    for index, (line, trouble) in enumerate(zip(lines, troubles, strict=True)):
        # The first of each sort; the same with other numbers is the same.
        sort = _DIGITS.sub("#", line.text[:_LISTING_LINE_LOOKED_AT])
        of_words = _REST if sort in sorts_seen else _NEW[trouble]
        sorts_seen.add(sort)
        from_end = len(lines) - 1 - index
        of_place = _NEAR_AN_END - min(index, 3) if min(index, from_end) < 3 else _REST
        if index == 0 or from_end == 0:
            of_place = _FIRST_LINE if index == 0 else _LAST_LINE
        weight = max(of_place, of_words)
        passages.append(passage_of(text, line, weight, _LISTING_LINE_CHARACTERS_MAX))
    if "error" in troubles:
        first = troubles.index("error")
        last = len(troubles) - 1 - troubles[::-1].index("error")
        passages[last] = structs.replace(passages[last], weight=_LAST_ERROR)
        passages[first] = structs.replace(passages[first], weight=_FIRST_ERROR)
    count = text.count(LINE_END) + (not text.endswith(LINE_END))
    label = f"{name}{counted(count, 'line')}"
    for trouble in ("error", "warning") if is_read_whole else ():
        if found := troubles.count(trouble):
            label += f", {found:,} with {trouble}s"
    return PassageOutline(text=text, passages=passages, label=f"[{label}]")


def troubles_in(lines: Sequence[TextLine]) -> list[Trouble]:
    """What each line tells of. Only words that occur at all are looked for in each of them."""
    lowered = "\n".join(line.text for line in lines).lower()
    errors = [word for word in _ERROR_WORDS if word in lowered]
    warnings = [word for word in _WARNING_WORDS if word in lowered]
    troubles: list[Trouble] = [""] * len(lines)
    for index, line in enumerate(lines if errors or warnings else ()):
        said = line.text[:_LISTING_LINE_LOOKED_AT].lower()
        is_error = any(word in said for word in errors)
        if (is_error or any(word in said for word in warnings)) and not _NO_TROUBLE.search(said):
            troubles[index] = "error" if is_error else "warning"
    return troubles


def _with_lines_found(text: str, lines: Iterable[TextLine]) -> list[TextLine]:
    by_start = {line.start: line for line in lines}
    for word in _SOUGHT_IN_THE_WHOLE:
        for place in (text.find(word), text.rfind(word)):
            if place < 0:
                continue
            near = _LISTING_LINE_CHARACTERS_MAX
            start = text.rfind("\n", max(0, place - near), place) + 1 or place
            end = text.find("\n", place, place + near)
            for line in lines_of(text, start, end if end > 0 else place + near):
                by_start.setdefault(line.start, line)
    return [by_start[start] for start in sorted(by_start)]


# ------------------------------------------------------------------------------
# Sentences
#
# A full stop ends a sentence if white space follows and the next word does not begin in lower
# case; 。！？ always do.

_STOPS: Final = re.compile(r"[.!?…]+|[。！？؟।॥]+")
_ALWAYS_END: Final = "。！？؟।॥"
_CLOSERS: Final = "\"'”’»)]）」』】*_`"
_CLOSERS_MAX: Final = 4
_ABBREVIATIONS: Final = frozenset(
    {"e.g", "i.e", "etc", "vs", "cf", "approx", "dr", "mr", "mrs", "ms", "prof", "nr", "fig"}
    | {"ca", "bzw", "z.b", "u.a", "d.h"}
)

_FILLER_PATTERN: Final = re.compile(
    r"(?:sure|certainly|of course|absolutely|great|good question|ok|okay|alright|no problem|cheers"
    r"|gerne|natürlich|bien sûr|claro)[,.!:]"
    r"|(?:hi|hello|hey|thanks|thank you|i hope|let me know|please let me know|feel free|happy to"
    r"|glad to|you're welcome|best regards|kind regards|if you have any|good morning|good evening"
    r"|here is|here are|here's|hallo|danke|bonjour|merci|hola|gracias)\b"
    r"|好的|当然|你好|谢谢|はい|もちろん|こんにちは|네|안녕",
    re.IGNORECASE,
)
_FILLER_CHARACTERS_MAX: Final = 120
_FILLER_WORTH_MAX: Final = 3
_ASCII_DIGIT: Final = re.compile("[0-9]")
_ASCII_CAPITAL_WORD: Final = re.compile(r"\s[A-Z]")
_SIGNALS: Final[Mapping[str, int]] = {
    # What was decided, advised, asked for or found out,
    **dict.fromkeys(("decid", "decision", "recommend", "suggest", "conclu", "verdict"), 6),
    **dict.fromkeys(("root cause", "the cause", "in short", "in summary", "tl;dr", "please"), 6),
    **dict.fromkeys(("决定", "建议", "结论", "结果表明", "根本原因", "总之", "综上", "请你"), 6),
    # … and what often stands beside it.
    **dict.fromkeys(("therefore", "overall", "the result", "must", "should", "need", "agreed"), 2),
    **dict.fromkeys(("instead", "expected", "want", "propos", "would choose", "deadline"), 2),
    **dict.fromkeys(("必须", "因此", "所以", "最终", "不要", "停止", "原因", "意见是", "综合"), 2),
}
"""Beginnings of words, and what a sentence with one of them gains."""
_DECISIVE: Final = 4
_DECISIVE_MAX: Final = 12
_CONDITIONS: Final = ("if ", "whether", "should you", "如果", "是否")


def sentences_of(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The places of the sentences between `start` and `end`, white space apart."""
    found: list[tuple[int, int]] = []
    begin = start
    for stop in _STOPS.finditer(text, start, end):
        after = stop.end()
        closers_end = min(end, after + _CLOSERS_MAX)
        while after < closers_end and text[after] in _CLOSERS:
            after += 1
        if stop.start() < begin or not _ends_sentence(text, begin, stop.start(), after, end):
            continue
        found.append((begin, after))
        begin = after
        while begin < end and text[begin].isspace():
            begin += 1
    last = end
    while last > begin and text[last - 1].isspace():
        last -= 1
    if last > begin:
        found.append((begin, last))
    return found


def is_filler(sentence: str) -> bool:
    """Says hello, thanks or yes, and nothing of the matter."""
    if len(sentence) > _FILLER_CHARACTERS_MAX or is_question(sentence):
        return False
    if _FILLER_PATTERN.match(sentence.lstrip("*_> \t\n")) is None:
        return False
    return informative(sentence) <= _FILLER_WORTH_MAX


def is_question(sentence: str) -> bool:
    return sentence[-_CLOSERS_MAX - 1 :].rstrip(_CLOSERS).endswith(("?", "？", "؟"))


def informative(sentence: str) -> int:
    """0 to 20: names, numbers, paths and decisions rather than filler."""
    if sentence.isascii():
        has_digit = _ASCII_DIGIT.search(sentence) is not None
        has_name = _ASCII_CAPITAL_WORD.search(sentence.lstrip()) is not None
    else:
        has_digit = any(map(str.isdigit, sentence))
        has_name = any(word[:1].isupper() for word in sentence.split()[1:])
    has_path = "/" in sentence or "\\" in sentence or "_" in sentence
    is_quoting = "`" in sentence or '"' in sentence or "“" in sentence
    return 5 * has_digit + 5 * has_path + 4 * is_quoting + 2 * has_name


def decisiveness(sentence: str, signals: Mapping[str, int]) -> int:
    """How much it sounds like a decision, advice, a request or a finding."""
    if not signals:
        return 0
    lowered = sentence.lower()
    points = sum(worth for word, worth in signals.items() if word in lowered)
    return points - 3 if points and lowered.startswith(_CONDITIONS) else points


def _ends_sentence(text: str, begin: int, stop: int, after: int, end: int) -> bool:
    if text[stop] in _ALWAYS_END or after >= end:
        return True
    if not text[after].isspace():
        return False
    following = text[after : after + 8].lstrip()
    if following[:1].islower():
        return False
    if text[stop] != ".":
        return True
    words = text[max(begin, stop - 12) : stop].split()
    word = words[-1].lstrip("(\"'").lower() if words else ""
    is_number_of_list = stop - begin <= 3 and word.isdigit()
    is_initial = len(word) == 1 and word.isalpha()
    return word not in _ABBREVIATIONS and not is_number_of_list and not is_initial


BlockKind: TypeAlias = Literal["heading", "item", "fence", "table", "paragraph"]

_HEADING: Final = re.compile(r"#{1,6}[ \t]|\*\*[^*]{1,100}\*\*:?$")
_ITEM_PATTERN: Final = re.compile(r"[ \t]{0,40}(?:[-*+•·]|\d{1,3}[.)]|[a-z]\))[ \t]")
_FENCES: Final = ("```", "~~~")


class Block(Struct, frozen=True, kw_only=True):
    kind: BlockKind
    lines: list[TextLine]

    @property
    def start(self) -> int:
        return self.lines[0].start

    @property
    def end(self) -> int:
        return self.lines[-1].end


def blocks_of(text: str, start: int, end: int) -> list[Block]:
    blocks: list[Block] = []
    lines = iter(lines_of(text, start, end))
    for line in lines:
        kind = kind_of_line(line.text)
        if blocks and _goes_on(text, blocks[-1], line, kind):
            blocks[-1].lines.append(line)
            continue
        blocks.append(Block(kind=kind, lines=[line]))
        if kind == "fence":
            # To the closing fence, or to the end of what there is.
            fence = line.text.lstrip()[:3]
            for inner in lines:
                blocks[-1].lines.append(inner)
                bare = inner.text.strip()
                if bare.startswith(fence) and not bare.strip(fence[0]):
                    break
    return blocks


def kind_of_line(line: str) -> BlockKind:
    bare = line.lstrip()
    if bare.startswith(_FENCES):
        return "fence"
    if bare.startswith("|"):
        return "table"
    if _HEADING.match(bare):
        return "heading"
    return "item" if _ITEM_PATTERN.match(line) else "paragraph"


def _goes_on(text: str, block: Block, line: TextLine, kind: BlockKind) -> bool:
    """A line below a paragraph or an item belongs to it, a row to the rows above."""
    above = ("table",) if kind == "table" else ("paragraph", "item")
    if kind not in ("table", "paragraph") or block.kind not in above:
        return False
    return text.count("\n", block.end, line.start) == 1


# ------------------------------------------------------------------------------
# Prose
#
# What was decided, advised or asked for, and errors in what is quoted; then beginning and end,
# headings and first list items, the first sentence of each paragraph; names and numbers before
# filler. A greeting is not a beginning, an offer of more help not an end.

_DECISION: Final = 110
_QUOTED_ERROR: Final = 108
_BEGINNING: Final = 100
_END: Final = 96
_TITLE: Final = 92
_CHAPTER: Final = 84
_QUESTION: Final = 102
_NEAR_THE_ENDS: Final = 70
_PARAGRAPH: Final = 60
_ITEM_WORTH: Final = 58
_SNIPPET: Final = 48
_FILLER_WORTH: Final = 1

_PIECE_CHARACTERS_MAX: Final = 240
_PIECES_MAX: Final = 8
_SNIPPET_CHARACTERS_MAX: Final = 200
_SENTENCES_MAX: Final = 400
"""Of one paragraph; whoever writes more in one has said it by then."""


def outline_of_prose(text: str) -> PassageOutline:
    ranges = sampled_ranges(text)
    blocks = [block for start, end in ranges for block in blocks_of(text, start, end)]
    # Of the signals those that occur: most don't, and need not be looked for again.
    lowered = "\n".join(text[start:end] for start, end in ranges).lower()
    signals = {word: points for word, points in _SIGNALS.items() if word in lowered}
    running: list[Passage] = []
    others: list[Passage] = []
    announced = 0
    for index, block in enumerate(blocks):
        # Bits in reverse: taken in this order, few of many lie evenly between the first and
        # the last.
        order = int(f"{index:020b}"[::-1], 2)
        if block.kind in ("item", "paragraph"):
            running += _running(text, block, order, signals=signals, announced=announced)
            announced = 0
        elif block.kind == "heading":
            line = block.lines[0].text.lstrip()
            depth = len(line) - len(line.lstrip("#"))
            weight = _TITLE if depth == 1 else _CHAPTER - 4 * depth
            pieces = _pieces(text, block.start, block.end, weight=weight, order=order)
            others += [structs.replace(piece, is_heading=depth != 1) for piece in pieces]
            announced = decisiveness(text[block.start : block.end], signals)
        elif block.kind == "fence":
            others += _fence(text, block, order)
        else:
            others += _table(text, block, order)
    return PassageOutline(text=text, passages=others + _with_both_ends(running))


def _running(
    text: str, block: Block, order: int, *, signals: Mapping[str, int], announced: int
) -> Iterator[Passage]:
    """`announced`: how decisive the heading above sounds; its first sentence takes it over."""
    weight = _ITEM_WORTH if block.kind == "item" else _PARAGRAPH
    for start, end in sentences_of(text, block.start, block.end)[:_SENTENCES_MAX]:
        sentence = text[start:end]
        if is_filler(sentence):
            yield from _pieces(text, start, end, weight=_FILLER_WORTH, order=order)
            continue
        decisive = announced + decisiveness(sentence, signals)
        if is_question(sentence):
            worth = _QUESTION
        elif decisive >= _DECISIVE:
            # Of two that are alike the later one: it is what it came to.
            worth, order = _DECISION + min(decisive, _DECISIVE_MAX), -start
        else:
            worth = weight + informative(sentence) // 4 + decisive
        yield from _pieces(text, start, end, weight=worth, order=order)
        weight, announced = _REST, 0


def _fence(text: str, block: Block, order: int) -> Iterator[Passage]:
    """A short one whole; of a long one how it begins and what it defines."""
    if block.end - block.start <= _SNIPPET_CHARACTERS_MAX or len(block.lines) < 4:
        yield Passage(start=block.start, end=block.end, weight=_SNIPPET, order=order)
        return
    opening, first, *inner, last = block.lines
    yield Passage(
        start=opening.start,
        end=min(first.end, place_to_stop(text, first.start, _PIECE_CHARACTERS_MAX)),
        weight=_SNIPPET,
        order=order,
        closing=(last.start, last.end),
    )
    has_error = False
    for index, (line, trouble) in enumerate(zip(inner, troubles_in(inner), strict=True)):
        if trouble == "error":
            weight = _PARAGRAPH if has_error else _QUOTED_ERROR
            has_error = True
        elif is_definition(line.text):
            weight = _SNIPPET - 2
        else:
            weight = _REST + 2 if index < 2 else _REST - 2
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _table(text: str, block: Block, order: int) -> Iterator[Passage]:
    for index, line in enumerate(block.lines):
        weight = _SNIPPET if index < 2 else _PARAGRAPH // 2 if index == 2 else _REST
        yield from _pieces(text, line.start, line.end, weight=weight, order=order)


def _pieces(text: str, start: int, end: int, *, weight: int, order: int) -> Iterator[Passage]:
    """A giant sentence in pieces: its beginning is worth most, its last words a little."""
    for _ in range(_PIECES_MAX):
        stop = end
        if end - start > _PIECE_CHARACTERS_MAX:
            stop = min(end, place_to_stop(text, start, _PIECE_CHARACTERS_MAX))
        if stop <= start:
            return
        yield Passage(start=start, end=stop, weight=weight, order=order)
        weight = min(weight, _REST)
        start = stop
        while start < end and text[start].isspace():
            start += 1
        if start >= end:
            return
    resumed = place_to_resume(text, max(start, end - _PIECE_CHARACTERS_MAX), end)
    if resumed < end:
        yield Passage(start=resumed, end=end, weight=weight, order=order)


def _with_both_ends(running: list[Passage]) -> list[Passage]:
    """The first and the last that say something, and their neighbours, are worth most."""
    said = [index for index, passage in enumerate(running) if passage.weight > _FILLER_WORTH]
    raised = list(running)
    near = said[1:2] + said[-2:-1]
    for indices, weight in ((near, _NEAR_THE_ENDS), (said[-1:], _END), (said[:1], _BEGINNING)):
        for index in indices:
            worth = max(weight, running[index].weight)
            raised[index] = structs.replace(running[index], weight=worth)
    return raised


_OUTLINES: Final[Mapping[TextKind, Callable[[str], PassageOutline]]] = {
    "prose": outline_of_prose,
    "code": outline_of_code,
    "diff": outline_of_diff,
    "table": partial(outline_of_listing, name="table, "),
    "listing": outline_of_listing,
}


def outline_of(text: str) -> PassageOutline | JsonShape:
    return read_json(text) or _OUTLINES[kind_of_text(text)](text)
