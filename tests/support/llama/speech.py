"""What the hand-made model says. The chat template looks at the last message, and ends
the prompt with one of the marks below; the model goes on from there, word by word.

    <|say|>       a sentence
    <|screen|>    another one, if the message shows a live screen
    <|on|>        a sentence that never ends, if it is asked to go on and on
    <|act|>       a call of a tool, if there are any and the message is not a result

A word follows from the one before it and from nothing else: so no word stands twice.
"""

from __future__ import annotations

from pathlib import Path

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
SENTENCE = "I am a tiny hand made model ; every word you read is one streamed token ."
SCREEN_SENTENCE = "There it stands , before my eyes :"
ENDLESS = "on and"
GO_ON = "go on and on"
"""What to ask for the endless sentence."""

_SENTENCES = {"<|say|>": SENTENCE, "<|screen|>": SCREEN_SENTENCE}
END = "<|im_end|>"
CONTROLS = ("<|endoftext|>", "<|im_start|>", END, "<|act|>", "<|on|>", *_SENTENCES)
CALL_BEGINS, CALL_ENDS = "<tool_call>", "</tool_call>"


def spoken(sentence: str) -> str:
    return "".join(_words(sentence))


def chains() -> list[list[str]]:
    """Each token leads to the one after it."""
    endless = [" " + word for word in ENDLESS.split()]
    return [
        *([mark, *_words(sentence), END] for mark, sentence in _SENTENCES.items()),
        ["<|on|>", *endless, endless[0]],
        ["<|act|>", CALL_BEGINS, "\n"],
        [CALL_ENDS, END],
    ]


def words() -> list[str]:
    spoken = [word for sentence in _SENTENCES.values() for word in _words(sentence)]
    spoken += [" " + word for word in ENDLESS.split()]
    assert len(spoken) == len(set(spoken)), "a word stands twice"
    return spoken


def _words(sentence: str) -> list[str]:
    first, *others = sentence.split()
    return [first, *(word if word in ".,;:" else " " + word for word in others)]
