"""llama.cpp's own server, with a model made by hand: a provider that none of us wrote.

    speech      what the model says, and when
    model       a model that says it, as a file llama.cpp can load
    server      the server, in a process of its own

It speaks OpenAI's chat completions and responses and Anthropic's messages.
"""
