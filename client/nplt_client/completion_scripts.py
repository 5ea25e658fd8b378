"""`nplt completion bash | zsh | fish`: what a shell has to be told once.

    source <(nplt completion bash)          in ~/.bashrc
    source <(nplt completion zsh)           in ~/.zshrc, after compinit
    nplt completion fish | source           in ~/.config/fish/config.fish

All they do is to hand over the line so far and show what comes back
(`completing`).
"""

from __future__ import annotations

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
