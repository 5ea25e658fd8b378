"""OpenAI's two APIs, and all servers that speak as one of them does.

dialect             what of an API a provider needs: render a request, parse an answer
chat_render         chat completions: the request        chat_parse         the answer
responses_render    responses: the request               responses_parse    the answer
responses_items     an answer given back, as it came
offering            tools and options, the same in both
client              the only one that talks: the official SDK, imported at the first call
blame               which entries a refusal is about
stream_errors       errors that come as events
fields              of what servers send
provider            the port
"""
