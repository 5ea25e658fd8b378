"""What a vendor says about a failure reaches the person, the record and the log."""

from __future__ import annotations

import pytest
from tests.server.providers.poison_stage import APIS, conversation_with, provider_for
from tests.vendors.answers import Answer, ApiName, Call
from tests.vendors.emulator import emulator
from tests.vendors.rejections import Rejection

from nplt_storage.entries import FaultEntry

SECRET = "the launch code of the day"


def refuses_an_option(call: Call) -> Answer:
    raise Rejection(
        f"Unsupported value: 'max' for '{SECRET}' with key sk-emulated.",
        param="reasoning.effort",
        code="unsupported_value",
    )


@pytest.mark.parametrize("api", APIS)
async def test_it_is_in_the_error_in_the_record_and_in_the_log_without_key_and_prompt(
    api: ApiName, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        emulator(refuses_an_option) as vendors,
        provider_for(api, vendors) as provider,
        conversation_with([], provider) as stage,
    ):
        finished = await stage.play(f"what is {SECRET}?")
        (fault,) = (e for e in stage.conversation.history.entries if isinstance(e, FaultEntry))
    assert finished.error is not None
    vendor_text = "Unsupported value: 'max' for '…' with key …"
    words = {"code": "unsupported_value", "param": "reasoning.effort", "message": vendor_text}
    if api == "messages":  # Anthropic's errors have neither
        words = {"code": "invalid_request_error", "message": vendor_text}
    assert finished.error["vendor"] == words
    assert fault.vendor == words
    for place in (str(finished.error["message"]), fault.content, caplog.text):
        assert f"the provider says: {vendor_text}" in place
        assert SECRET not in place.replace(f"what is {SECRET}?", "")
        assert vendors.key not in place
