"""Going back through what was typed earlier, as Up and Down do. Pure.

What stands in the input when the person begins to go back is kept, and is
there again at the other end. An edited older prompt is a draft of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from nplt_client.chat_vocabulary import prompt_in


class Recall:
    def __init__(self, prompts: Iterable[str] = ()) -> None:
        self._prompts = list(prompts)
        self._place = len(self._prompts)
        self._draft = ""

    @property
    def newest_first(self) -> list[str]:
        """Each once, where it was typed last; commands are no prompts."""
        prompts = [one for one in reversed(self._prompts) if prompt_in(one) is not None]
        return list(dict.fromkeys(prompts))

    def remember(self, prompt: str) -> bool:
        """False: it was the last one already."""
        is_new = bool(prompt.strip()) and self._prompts[-1:] != [prompt]
        if is_new:
            self._prompts.append(prompt)
        self._place = len(self._prompts)
        self._draft = ""
        return is_new

    def older(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place == 0:
            return None
        self._place -= 1
        return self._prompts[self._place]

    def newer(self, typed: str) -> str | None:
        self._keep_draft(typed)
        if self._place >= len(self._prompts):
            return None
        self._place += 1
        return self._draft if self._place == len(self._prompts) else self._prompts[self._place]

    def _keep_draft(self, typed: str) -> None:
        at_end = self._place == len(self._prompts)
        if at_end or typed != self._prompts[self._place]:
            self._draft = typed
            self._place = len(self._prompts)
