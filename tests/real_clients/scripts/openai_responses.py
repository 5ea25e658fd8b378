"""Sends the texts as responses, each after the one before."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE"], api_key="any")
previous = None
for text in json.loads(os.environ["TEXTS"]):
    response = client.responses.create(
        model=os.environ["MODEL"], input=text, previous_response_id=previous
    )
    assert response.output_text == text, response
    previous = response.id
