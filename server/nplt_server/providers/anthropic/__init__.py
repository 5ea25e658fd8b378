"""Claude, and whoever speaks Anthropic's Messages API.

abilities   what a model takes          render     the body of a request
demands     how it is asked to answer   parse      events to deltas
tools       what it may call            client     the one door to the network
answers     what was said before        provider   all of it, behind the port
marks       what is worth caching
"""
