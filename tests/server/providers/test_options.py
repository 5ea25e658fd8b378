"""What a person can set for a prompt or for a model reaches the vendor."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.providers.anthropic_stage import deltas_of
from tests.server.providers.openai_stage import request
from tests.vendors.emulator import emulator

from nplt_protocol import RequestError
from nplt_server.providers import ModelFacts, Patience, check_options
from nplt_server.providers.build import ProviderBuilder
from nplt_server.providers.models import KnownModels
from nplt_server.settings import ModelSettings, OpenAISettings, Settings


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"effort": "huge"}, "options.effort"),
        ({"effort": 3}, "options.effort"),
        ({"temperature": 2.5}, "options.temperature"),
        ({"temperature": True}, "options.temperature"),
        ({"output_tokens": 0}, "options.output_tokens"),
        ({"output_tokens": 1.5}, "options.output_tokens"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_by_its_name(
    options: dict[str, Any], field: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await check_options(options)
    assert (caught.value.code, caught.value.field) == ("malformed", field)


async def test_options_that_make_sense_and_options_of_others_are_let_pass() -> None:
    await check_options({"effort": "xhigh", "temperature": 0, "output_tokens": 1, "theirs": []})


def test_what_the_settings_say_of_a_model_is_what_prompts_ask_for_by_default() -> None:
    settings = ModelSettings(effort="high", temperature=0.5)
    provider = OpenAISettings(id="box", base_url="http://x/v1", models=("m",))
    facts = KnownModels(Settings(providers=(provider,), models={"box/m": settings}))["box/m"]
    assert facts.options == {"effort": "high", "temperature": 0.5}


async def test_an_extra_body_goes_out_as_it_is() -> None:
    async with emulator() as vendors:
        settings = OpenAISettings(
            id="box", base_url=vendors.openai_url, api_key_env="KEY", models=("gpt-4o-mini",)
        )
        extra = ModelSettings(extra_body={"seed": 7})
        builder = ProviderBuilder(
            environ={"KEY": vendors.key}, models={"box/gpt-4o-mini": extra}, patience=Patience()
        )
        provider = builder.build(settings)
        await deltas_of(provider, request(model="gpt-4o-mini"))
        await provider.aclose()
    body = vendors.received[0].body
    assert isinstance(body, dict)
    assert body["seed"] == 7


def test_an_answer_may_be_as_long_as_the_model_allows_where_the_window_has_room() -> None:
    facts = ModelFacts(context_tokens=400_000, output_tokens_max=128_000)
    assert facts.room_for_answer(1_000) == 128_000
    assert facts.room_for_answer(300_000) == 62_500
    assert facts.room_for_answer(390_000) == facts.answer_tokens
    assert ModelFacts(context_tokens=8_192).room_for_answer(100) == 2_048
