"""Sends the texts with LangChain, by either API."""

import json
import os

from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    base_url=os.environ["BASE"],
    api_key="any",
    model=os.environ["MODEL"],
    use_responses_api="RESPONSES" in os.environ,
)
messages = []
for text in json.loads(os.environ["TEXTS"]):
    messages.append(("user", text))
    answer = model.invoke(messages)
    assert str(answer.text) == text, answer
    messages.append(answer)
