"""Sends the texts with pydantic-ai, by either API."""

import json
import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

kind = OpenAIResponsesModel if "RESPONSES" in os.environ else OpenAIChatModel
provider = OpenAIProvider(base_url=os.environ["BASE"], api_key="any")
agent = Agent(kind(os.environ["MODEL"], provider=provider), instructions="Be brief.")
history = []
for text in json.loads(os.environ["TEXTS"]):
    result = agent.run_sync(text, message_history=history)
    assert result.output == text, result
    history = result.all_messages()
