"""Calls an `endless_http_server` and prints, as JSON, how each call ended and what it cost.

A process of its own, so that its memory can be measured: the peak and what is kept, both
beyond what there was before the call, in bytes.
"""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
from pathlib import Path

from nplt_server.context.messages import ModelInputMessage
from nplt_server.providers import LlmRequest, Patience
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.model_lists import ModelLister
from nplt_server.settings import AnthropicSettings, OpenAISettings
from nplt_storage.entries import ModelInvocationDescriptor

_MEMORY_BYTES_MAX = 4 * 1024**3


def memory(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def provider(vendor: str, url: str) -> ModelLister:
    patience = Patience(first_token_seconds=60.0, gap_seconds=60.0)
    builder = ProviderBuilder(environ={}, models={}, patience=patience)
    if vendor == "openai":
        return builder.build_vendor(OpenAISettings(id="box", base_url=f"{url}/v1", models=("m",)))
    return builder.build_vendor(AnthropicSettings(id="box", base_url=url, models=("m",)))


async def outcome(one: ModelLister, way: str) -> str:
    try:
        if way.startswith("list"):
            return f"listed {len(await one.list_models())}"
        invocation = ModelInvocationDescriptor(
            provider="box", specification=one.specification_of("m"), model="m"
        )
        hello = (ModelInputMessage(content="hello", seq=1),)
        async with one.call_model(LlmRequest(invocation=invocation, context=hello)) as deltas:
            return f"answered {len([delta async for delta in deltas])}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


async def main(vendor: str, port: str, *ways: str) -> None:
    seen: dict[str, object] = {}
    for way in ("error-trailers", *ways):  # the first one imports the SDK
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = memory("VmRSS")
        one = provider(vendor, f"http://127.0.0.1:{port}/{way}")
        how = await outcome(one, way)
        await one.aclose()
        peak = memory("VmHWM") - before
        gc.collect()
        seen[way] = {"outcome": how, "peak": peak, "kept": memory("VmRSS") - before}
    print(json.dumps(seen))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    asyncio.run(main(*sys.argv[1:]))
