"""Shell completion: commands, options, conversations and models.

The scripts for bash, zsh and fish (`nplt completion`) call `nplt` with the line so far in
the environment. It prints one completion per line: kind, word and help, separated by tabs.
No server is started, and a running one has a second to reply; a failure means no
completions, never an error. bash inserts completions unchanged, so special characters are
escaped here; zsh and fish do that themselves.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Literal

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from nplt_client.render.text import sanitize_line
from nplt_client.settings import LAST, find_address
from nplt_client.wire.blocking import Deadline, alarm, open_running
from nplt_protocol.messages import SessionList, SessionRows

SHELL = "_NPLT_COMPLETE"
LINE = "_NPLT_LINE"
SECONDS_MAX = 1.0
_OFFERS_MAX = 100
_SHORT_ID = 12
_WORD_AT_END = re.compile(r"(?:\\.|[^\s\\])\\?$")
_MEANS_SOMETHING = re.compile(r"[^\w@%+=:,./-]")


def complete(program: click.Command) -> int:
    try:
        shell, line = os.environ[SHELL], os.environ.get(LINE, "")
        with alarm(SECONDS_MAX):
            found = list(completions(program, line, shell=shell))
        sys.stdout.write("".join(offer + "\n" for offer in found))
    except Exception:
        # An error message would be printed into the command line that is being typed.
        pass
    return 0


def completions(program: click.Command, line: str, *, shell: str) -> Iterator[str]:
    words = split_arg_string(line)[1:]
    quoted = bool(line.count('"') % 2 or line.count("'") % 2)
    begun = words.pop() if words and (quoted or _WORD_AT_END.search(line)) else ""
    found = ShellComplete(program, {}, "nplt", SHELL).get_completions(words, begun)
    for item in found:
        value = sanitize_line(str(item.value))
        if shell == "bash" and item.type == "plain":
            bare = _for_bash(value, begun, quoted=quoted)
            if bare is None:
                continue
            value = bare
        yield f"{item.type}\t{value}\t{sanitize_line(item.help or '')}"


def _for_bash(value: str, begun: str, *, quoted: bool) -> str | None:
    if quoted:  # single and double quotes need different escapes, so none is tried
        return value if not _MEANS_SOMETHING.search(value.replace(" ", "")) else None
    if ":" in begun:  # bash ends a word at a colon, and replaces only the part after it
        value = value[begun.rindex(":") + 1 :]
    return _MEANS_SOMETHING.sub(lambda found: "\\" + found.group(), value)


def complete_from_server(
    context: click.Context, kind: Literal["sessions", "trash", "models"], incomplete: str
) -> list[CompletionItem[str]]:
    """Completes models, or conversations: by name where that is unique, otherwise by id."""
    named = context.params.get("server") or context.params.get("server_url")
    with open_running(find_address(named), Deadline(SECONDS_MAX)) as connection:
        if kind == "models":
            models = connection.welcome.models
            return [CompletionItem(model) for model in models if model.startswith(incomplete)]
        request = SessionList(limit=_OFFERS_MAX, trash=kind == "trash")
        rows = connection.request(request, SessionRows).sessions
    candidates: list[CompletionItem[str]] = []
    if incomplete.startswith("@") and LAST.startswith(incomplete) and kind == "sessions":
        candidates.append(CompletionItem(LAST, help="the last conversation"))
    names = [row.name for row in rows]
    for row in rows:
        is_plain = row.name == sanitize_line(row.name) and row.name[:1] not in ("-", "")
        if is_plain and names.count(row.name) == 1 and row.name.startswith(incomplete):
            candidates.append(CompletionItem(row.name, help=row.session_id[:_SHORT_ID]))
        elif row.session_id.startswith(incomplete):
            candidates.append(CompletionItem(row.session_id, help=row.name))
    return candidates


_BASH = r"""_nplt_completion() {
    local kind value note
    COMPREPLY=()
    while IFS=$'\t' read -r kind value note; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            file | dir) compopt -o default ;;
        esac
    done < <(_NPLT_COMPLETE=bash _NPLT_LINE="${COMP_LINE:0:COMP_POINT}" "$1" 2>/dev/null </dev/null)
}
complete -o nosort -F _nplt_completion nplt 2>/dev/null || complete -F _nplt_completion nplt
"""

_ZSH = r"""#compdef nplt
_nplt() {
    local kind value note line="${(j: :)words[1,CURRENT]}"
    local -a values shown
    while IFS=$'\t' read -r kind value note; do
        case $kind in
            plain)
                values+=("$value")
                shown+=("$value${note:+  -- $note}")
                ;;
            file | dir) _files ;;
        esac
    done < <(_NPLT_COMPLETE=zsh _NPLT_LINE="$line" "$words[1]" 2>/dev/null </dev/null)
    (( $#values )) && compadd -l -V nplt -d shown -a values
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _nplt "$@"
else
    compdef _nplt nplt
fi
"""

_FISH = r"""function __nplt_offers
    set -l line (commandline -cp | string collect)
    for offer in (env _NPLT_COMPLETE=fish _NPLT_LINE="$line" nplt 2>/dev/null </dev/null)
        set -l parts (string split \t -- $offer)
        switch $parts[1]
            case plain
                printf '%s\t%s\n' $parts[2] "$parts[3]"
            case file dir
                __fish_complete_path (commandline -ct)
        end
    end
end
complete --no-files --command nplt --arguments "(__nplt_offers)"
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
