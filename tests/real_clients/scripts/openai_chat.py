"""Sends the texts as chat completions, with the whole history each time."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE"], api_key="any")
messages = []
for text in json.loads(os.environ["TEXTS"]):
    messages.append({"role": "user", "content": text})
    stream = client.chat.completions.create(
        model=os.environ["MODEL"], messages=messages, stream=True
    )
    answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert answer == text, answer
    messages.append({"role": "assistant", "content": answer})
