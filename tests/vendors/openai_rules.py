"""Every refusal of the emulated OpenAI, for chat completions and responses alike."""

from __future__ import annotations

from typing import Final

from tests.vendors.sourced_rules import SourcedRule, by_id

_GITHUB = "https://github.com/"

OPENAI: Final = by_id(
    # Fields
    SourcedRule(
        id="openai-missing",
        checks="A required parameter is there.",
        message="Missing required parameter: '{path}'.",
        code="missing_required_parameter",
        source=f"{_GITHUB}langchain-ai/langgraphjs/issues/370",
        quote="BadRequestError: 400 Missing required parameter: 'messages[3].content[0].type'.",
    ),
    SourcedRule(
        id="openai-unknown",
        checks="A parameter is known.",
        message="Unknown parameter: '{path}'.",
        code="unknown_parameter",
        source=f"{_GITHUB}ClaudeCodeUsage/ClaudeCodeUsage/issues/94",
        quote='"message": "Unknown parameter: \'thinking\'.", "type": "invalid_request_error",'
        ' "param": "thinking", "code": "unknown_parameter"',
    ),
    SourcedRule(
        id="openai-kind",
        checks="A parameter is of its kind.",
        message="Invalid type for '{path}': expected {wanted}, but got {given} instead.",
        code="invalid_type",
        source=f"{_GITHUB}pydantic/pydantic-ai/issues/2653",
        quote="\"Invalid type for 'messages[1].content': expected one of a string or array of"
        " objects, but got an object instead.\", 'type': 'invalid_request_error', 'param':"
        " 'messages[1].content', 'code': 'invalid_type'",
    ),
    SourcedRule(
        id="openai-choice",
        checks="A value is one of those there are.",
        message="Invalid value: '{value}'. Supported values are: {supported}.",
        code="invalid_value",
        source=f"{_GITHUB}aallam/openai-kotlin/issues/320",
        quote="\"message\": \"Invalid value: 'image'. Supported values are: 'text' and"
        ' \'image_url\'.", "type": "invalid_request_error", "param":'
        ' "messages[0].content[1].type", "code": "invalid_value"',
    ),
    SourcedRule(
        id="openai-range",
        checks="A number is within its bounds.",
        message="Invalid '{path}': {kind} {side} value. Expected a value {sign} {bound}, but got"
        " {value} instead.",
        source=f"{_GITHUB}OpenBMB/ChatDev/issues/446",
        quote="\"Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got"
        " -15335 instead.\", 'type': 'invalid_request_error', 'param': 'max_tokens', 'code':"
        " 'integer_below_min_value'",
    ),
    SourcedRule(
        id="openai-pattern",
        checks="A name fits its pattern.",
        message="Invalid '{path}': string does not match pattern. Expected a string that matches"
        " the pattern '{pattern}'.",
        code="invalid_value",
        source=f"{_GITHUB}brekkylab/ailoy/pull/109",
        quote='"message": "Invalid \'tools[0].function.name\': string does not match pattern.'
        ' Expected a string that matches the pattern \'^[a-zA-Z0-9_-]+$\'.", "type":'
        ' "invalid_request_error", "param": "tools[0].function.name", "code": "invalid_value"',
    ),
    SourcedRule(
        id="openai-length",
        checks="A name, an id or a description is not longer than it may be.",
        message="Invalid '{path}': string too long. Expected a string with maximum length {most},"
        " but got a string with length {length} instead.",
        code="string_above_max_length",
        source=f"{_GITHUB}vercel/ai/issues/5171",
        quote="Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with"
        " maximum length 40, but got a string with length 43 instead.",
    ),
    SourcedRule(
        id="openai-empty-array",
        checks="A list is not empty.",
        message="Invalid '{path}': empty array. Expected an array with minimum length 1, but got an"
        " empty array instead.",
        code="empty_array",
        source=f"{_GITHUB}home-assistant/core/pull/118577",
        quote="\"Invalid 'messages[2].tool_calls': empty array. Expected an array with minimum"
        " length 1, but got an empty array instead.\", 'type': 'invalid_request_error', 'param':"
        " 'messages[2].tool_calls', 'code': 'empty_array'",
    ),
    SourcedRule(
        id="openai-tool-count",
        checks="There are at most 128 tools.",
        message="Invalid 'tools': array too long. Expected an array with maximum length {most},"
        " but got an array with length {length} instead.",
        code="array_above_max_length",
        source=f"{_GITHUB}vishalmysore/Tools4AI/issues/16",
        quote='"message": "Invalid \'tools\': array too long. Expected an array with maximum length'
        ' 128, but got an array with length 325 instead.", "type": "invalid_request_error",'
        ' "param": "tools", "code": "array_above_max_length"',
    ),
    # Tools
    SourcedRule(
        id="openai-function-schema-kind",
        checks="The parameters of a function are an object.",
        message=(
            "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: "
            '"object"\', got \'type: "{kind}"\'.'
        ),
        code="invalid_function_parameters",
        source=f"{_GITHUB}browserbase/stagehand/issues/1159",
        quote=(
            "Error: Invalid schema for function 'json': schema must be a JSON Schema of "
            "'type: \"object\"', got 'type: \"None\"'."
        ),
    ),
    SourcedRule(
        id="openai-function-schema-top",
        checks="The parameters of a function have no alternatives at their top.",
        message="Invalid schema for function '{name}': schema must have type 'object' and not"
        " have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
        code="invalid_function_parameters",
        source=f"{_GITHUB}nspady/google-calendar-mcp/issues/39",
        quote="\"Invalid schema for function 'update-event': schema must have type"
        " 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top"
        " level.\", 'type': 'invalid_request_error', 'param':"
        " 'tools[5].function.parameters', 'code': 'invalid_function_parameters'",
    ),
    SourcedRule(
        id="openai-function-properties",
        checks="The parameters of a function have properties.",
        message="Invalid schema for function '{name}': In context=(), object schema missing"
        " properties.",
        code="invalid_function_parameters",
        source=f"{_GITHUB}spring-projects/spring-ai/issues/4776",
        quote="Invalid schema for function 'xxx': In context=(), object schema missing properties.",
    ),
    SourcedRule(
        id="openai-function-items",
        checks="A list among the parameters of a function says what its items are.",
        message="Invalid schema for function '{name}': In context={context}, array schema missing"
        " items.",
        code="invalid_function_parameters",
        source=f"{_GITHUB}streamnative/streamnative-mcp-server/issues/26",
        quote="\"Invalid schema for function 'kafka_admin_topics': In context=('properties',"
        " 'configs'), array schema missing items.\", 'type': 'invalid_request_error', 'param':"
        " 'tools[4].function.parameters', 'code': 'invalid_function_parameters'",
    ),
    SourcedRule(
        id="openai-function-additional",
        checks="The parameters of a strict function take no other properties.",
        message=(
            "Invalid schema for function '{name}': In context={context}, "
            "'additionalProperties' is required to be supplied and to be false."
        ),
        code="invalid_function_parameters",
        source=f"{_GITHUB}bytedance/trae-agent/issues/173",
        quote=(
            "\"Invalid schema for function 'json_edit_tool': In context=('properties', "
            "'value'), 'additionalProperties' is required to be supplied and to be false.\", "
            "'type': 'invalid_request_error', 'param': 'tools[2].parameters', 'code': "
            "'invalid_function_parameters'"
        ),
    ),
    SourcedRule(
        id="openai-function-required",
        checks="A strict function requires all of its parameters.",
        message="Invalid schema for function '{name}': In context=(), 'required' is required to be"
        " supplied and to be an array including every key in properties. Missing '{missing}'.",
        code="invalid_function_parameters",
        source=f"{_GITHUB}kevinwatt/mysql-mcp/issues/5",
        quote="Invalid schema for function 'mysql_execute': In context=(), 'required' is required"
        " to be supplied and to be an array including every key in properties. Missing 'params'.",
    ),
    SourcedRule(
        id="openai-function-draft",
        checks="The parameters of a function are a JSON schema of a current draft.",
        message="Invalid schema for function '{name}': {fault}",
        code="invalid_function_parameters",
        source=f"{_GITHUB}maltekuhr/laravel-gpt/issues/8",
        quote="\"Invalid schema for function 'knowledge_books': [] is not of type 'object'.\"",
    ),
    SourcedRule(
        id="openai-tool-choice",
        checks="A tool is chosen only where tools are offered.",
        message="Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are"
        " specified.",
        source=f"{_GITHUB}writer/writer-framework/pull/1013",
        quote="\"Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are"
        ' specified."',
    ),
    SourcedRule(
        id="openai-parallel-calls",
        checks="Parallel calls are spoken of only where tools are offered.",
        message="Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed"
        " when 'tools' are specified.",
        source=f"{_GITHUB}openai/swarm/issues/30",
        quote="\"Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed"
        " when 'tools' are specified.\", 'type': 'invalid_request_error', 'param':"
        " 'parallel_tool_calls', 'code': None",
    ),
    # Chat: messages
    SourcedRule(
        id="openai-null-content",
        checks="A message without calls has a content.",
        message="Invalid value for 'content': expected a string, got null.",
        source=f"{_GITHUB}microsoft/graphrag/issues/1421",
        quote="\"Invalid value for 'content': expected a string, got null.\", 'type':"
        " 'invalid_request_error', 'param': 'messages.[1].content', 'code': None",
    ),
    SourcedRule(
        id="openai-result-without-calls",
        checks="A result comes right after the calls it belongs to.",
        message="Invalid parameter: messages with role 'tool' must be a response to a preceeding"
        " message with 'tool_calls'.",
        source=f"{_GITHUB}simonw/llm/issues/937",
        quote="\"Invalid parameter: messages with role 'tool' must be a response to a preceeding"
        " message with 'tool_calls'.\", 'type': 'invalid_request_error', 'param':"
        " 'messages.[3].role', 'code': None",
    ),
    SourcedRule(
        id="openai-call-without-result",
        checks="Every call has its result in the messages right after it.",
        message="An assistant message with 'tool_calls' must be followed by tool messages"
        " responding to each 'tool_call_id'. The following tool_call_ids did not have response"
        " messages: {ids}",
        source=f"{_GITHUB}Abraxas-365/langchain-rust/pull/250",
        quote="An assistant message with 'tool_calls' must be followed by tool messages responding"
        " to each 'tool_call_id'. The following tool_call_ids did not have response messages:"
        " call_WRiGbNa7o966TAu4S7FuRoyl (param: messages.[6].role)",
    ),
    # Responses: items
    SourcedRule(
        id="openai-item-prefix",
        checks="The id of an item begins as its kind does.",
        message="Invalid '{path}': '{id}'. Expected an ID that begins with '{prefix}'.",
        code="invalid_value",
        source=f"{_GITHUB}openai/codex/issues/33176",
        quote="Invalid 'input[371].id': '019f629b-43ee-7a82-acb1-3071dbffbdad'. Expected an ID that"
        " begins with 'msg'.",
    ),
    SourcedRule(
        id="openai-item-characters",
        checks="The id of an item has letters, numbers, underscores and dashes.",
        message="Invalid '{path}': '{id}'. Expected an ID that contains letters, numbers,"
        " underscores, or dashes, but this value contained additional characters.",
        code="invalid_value",
        source=f"{_GITHUB}langchain-ai/langchainjs/issues/11044",
        quote="400 Invalid 'input[2].id': ''. Expected an ID that contains letters, numbers,"
        " underscores, or dashes, but this value contained additional characters.",
    ),
    SourcedRule(
        id="openai-output-without-call",
        checks="The output of a call comes after that call.",
        message="No tool call found for function call output with call_id {id}.",
        source=f"{_GITHUB}microsoft/vscode/issues/320060",
        quote='"message": "No tool call found for function call output with call_id'
        ' call_TnakLSVsqtVt5cJssAhRwMoe.", "type": "invalid_request_error", "param": "input",'
        ' "code": null',
    ),
    SourcedRule(
        id="openai-call-without-output",
        checks="Every call has its output.",
        message="No tool output found for function call {id}.",
        source=f"{_GITHUB}bytedance/trae-agent/issues/245",
        quote="'No tool output found for function call call_Vl4ONDDhAIvy8S69bZYi3FK8.', 'type':"
        " 'invalid_request_error', 'param': 'input', 'code': None",
    ),
    SourcedRule(
        id="openai-reasoning-alone",
        checks="Reasoning is followed by what it led to.",
        message="Item '{id}' of type 'reasoning' was provided without its required following item.",
        source=f"{_GITHUB}continuedev/continue/issues/8933",
        quote='"message": "Item \'rs_06a20bd006d58dde00692a12986174819ea1cd9ea5b9ca4946\' of type'
        ' \'reasoning\' was provided without its required following item.", "type":'
        ' "invalid_request_error", "param": "input", "code": null',
    ),
    SourcedRule(
        id="openai-item-not-stored",
        checks="Reasoning without its encrypted content is not sent where nothing is stored.",
        message="Item with id '{id}' not found. Items are not persisted when `store` is set to"
        " false. Try again with `store` set to true, or remove this item from your input.",
        status=404,
        source=f"{_GITHUB}can1357/oh-my-pi/issues/41",
        quote="Error: 404 Item with id 'rs_04962823ecde01b901698e138042688193a657e07614b238c3' not"
        " found. Items are not persisted when `store` is set to false. Try again with `store` set"
        " to true, or remove this item from your input.",
    ),
    # Models
    SourcedRule(
        id="openai-no-effort",
        checks="A model that does not reason is given no effort.",
        message="Unrecognized request argument supplied: reasoning_effort",
        source=f"{_GITHUB}generative-computing/mellea/issues/270",
        quote="'Unrecognized request argument supplied: reasoning_effort', 'type':"
        " 'invalid_request_error', 'param': None, 'code': None",
    ),
    SourcedRule(
        id="openai-unsupported-for-another",
        checks="A reasoning model's answer is bounded by max_completion_tokens.",
        message="Unsupported parameter: '{name}' is not supported with this model. Use '{instead}'"
        " instead.",
        code="unsupported_parameter",
        source=f"{_GITHUB}MaximeRivest/riddle/issues/7",
        quote='"message": "Unsupported parameter: \'max_tokens\' is not supported with this model.'
        ' Use \'max_completion_tokens\' instead.", "type": "invalid_request_error", "param":'
        ' "max_tokens", "code": "unsupported_parameter"',
    ),
    SourcedRule(
        id="openai-format-additional",
        checks="Objects of a strict answer take no other properties.",
        message="Invalid schema for response_format '{name}': In context={context},"
        " 'additionalProperties' is required to be supplied and to be false.",
        code="invalid_json_schema",
        source=f"{_GITHUB}moeru-ai/xsai/issues/145",
        quote='"message": "Invalid schema for response_format \'json_schema\': In context=(),'
        ' \'additionalProperties\' is required to be supplied and to be false.", "type":'
        ' "invalid_request_error", "param": "response_format", "code": null',
    ),
    SourcedRule(
        id="openai-format-required",
        checks="Objects of a strict answer require all of their properties.",
        message="Invalid schema for response_format '{name}': In context={context}, 'required' is"
        " required to be supplied and to be an array including every key in properties. Missing"
        " '{missing}'.",
        code="invalid_json_schema",
        source=f"{_GITHUB}bingoYB/ham_home/issues/16",
        quote='"code": "invalid_json_schema", "message": "Invalid schema for response_format'
        " 'response': In context=(), 'required' is required to be supplied and to be an array"
        ' including every key in properties. Missing \'message\'.", "param":'
        ' "text.format.schema"',
    ),
    SourcedRule(
        id="openai-responses-window",
        checks="The input fits the window.",
        message="Your input exceeds the context window of this model. Please adjust your input and"
        " try again.",
        code="context_length_exceeded",
        source=f"{_GITHUB}VectorlyApp/bluebox/issues/66",
        quote="Error code: 400 - {'error': {'message': 'Your input exceeds the context window of"
        " this model. Please adjust your input and try again.', 'type': 'invalid_request_error',"
        " 'param': 'input', 'code': 'context_length_exceeded'}}",
    ),
    SourcedRule(
        id="openai-encrypted",
        checks="Encrypted reasoning is the server's own.",
        message="The encrypted content for item {id} could not be verified. Reason: Encrypted"
        " content could not be decrypted or parsed.",
        code="invalid_encrypted_content",
        source=f"{_GITHUB}smallmain/vscode-unify-chat-provider/issues/178",
        quote="The encrypted content for item rs_0a18166210d72b5e0069fd938e69a08193a992a58d690a224b"
        " could not be verified. Reason: Encrypted content could not be decrypted or parsed.",
    ),
    SourcedRule(
        id="openai-previous-response",
        checks="An earlier response exists.",
        message="Previous response with id '{id}' not found.",
        code="previous_response_not_found",
        source=f"{_GITHUB}maximhq/bifrost/issues/2441",
        quote='{"type":"error","status":400,"error":{"code":"previous_response_not_found",'
        '"message":"Previous response with id \'resp_0f09a275409xxx\' not found."}}',
    ),
    SourcedRule(
        id="openai-no-key",
        checks="There is a key.",
        message="You didn't provide an API key. You need to provide your API key in an"
        " Authorization header using Bearer auth (i.e. Authorization: Bearer"
        " YOUR_KEY)",
        status=401,
        source=f"{_GITHUB}0xacx/chatGPT-shell-cli/issues/60",
        quote="You didn't provide an API key. You need to provide your API key in an"
        " Authorization header using Bearer auth (i.e. Authorization: Bearer"
        " YOUR_KEY)",
    ),
    SourcedRule(
        id="openai-wrong-key",
        checks="The key is right.",
        message="Incorrect API key provided: {shown}.",
        status=401,
        code="invalid_api_key",
        source=f"{_GITHUB}popjane/free_chatgpt_api/issues/3",
        quote="'Incorrect API key provided:"
        " sk-PMafP***************************************E873. You can find your API"
        " key at https://platform.openai.com/account/api-keys.', 'type':"
        " 'invalid_request_error', 'param': None, 'code': 'invalid_api_key'",
    ),
    SourcedRule(
        id="openai-json",
        checks="The body is JSON.",
        message=(
            "We could not parse the JSON body of your request. (HINT: This likely means you "
            "aren't using your HTTP library correctly. The OpenAI API expects a JSON "
            "payload, but what was sent was not valid JSON. If you have trouble figuring out "
            "how to fix this, please contact us through our help center at help.openai.com.)"
        ),
        source=f"{_GITHUB}ChatGPTNextWeb/NextChat/issues/4064",
        quote=(
            '"message": "We could not parse the JSON body of your request. (HINT: This '
            "likely means you aren't using your HTTP library correctly. The OpenAI API "
            "expects a JSON payload, but what was sent was not valid JSON. If you have "
            "trouble figuring out how to fix this, please contact us through our help center "
            'at help.openai.com.)", "type": "invalid_request_error"'
        ),
    ),
    SourcedRule(
        id="openai-url",
        checks="There is something at the address.",
        message="Invalid URL ({method} {path})",
        status=404,
        source=f"{_GITHUB}harry0703/MoneyPrinterTurbo/issues/57",
        quote=(
            "Error code: 404 - {'error': {'message': 'Invalid URL (POST "
            "/v1/chat/completions/chat/completions)', 'type': 'invalid_request_error', "
            "'param': None, 'code': None}}"
        ),
    ),
    SourcedRule(
        id="openai-size",
        checks="The body is not too large.",
        message="Maximum content size limit ({most}) exceeded ({size} bytes read)",
        status=413,
        kind="server_error",
        source=f"{_GITHUB}chidiwilliams/buzz/issues/381",
        quote=(
            '"message": "Maximum content size limit (26214400) exceeded (222592852 bytes '
            'read)", "type": "server_error", "param": null, "code": null } } 413'
        ),
    ),
    SourcedRule(
        id="openai-model",
        checks="The model exists.",
        message="The model `{name}` does not exist or you do not have access to it.",
        status=404,
        code="model_not_found",
        source=f"{_GITHUB}openai/openai-agents-python/issues/458",
        quote='Error: 404 { "error": { "message": "The model'
        " `computer-use-preview-2025-03-11` does not exist or you do not have access"
        ' to it.", "type": "invalid_request_error", "param": null, "code":'
        ' "model_not_found" } }',
    ),
    SourcedRule(
        id="openai-effort",
        checks="An effort is one the model has.",
        message=(
            "Unsupported value: '{effort}' is not supported with the '{model}' model. "
            "Supported values are: {supported}."
        ),
        code="unsupported_value",
        source=f"{_GITHUB}anomalyco/opencode/issues/4451",
        quote=(
            "\"message\": \"Unsupported value: 'minimal' is not supported with the 'gpt-5.1' "
            "model. Supported values are: 'none', 'low', 'medium', and 'high'.\", \"type\": "
            '"invalid_request_error", "param": "***.effort", "code": "unsupported_value"'
        ),
    ),
    SourcedRule(
        id="openai-unsupported",
        checks="A reasoning model takes no sampling parameters.",
        message="Unsupported parameter: '{name}' is not supported with this model.",
        code="unsupported_parameter",
        source=f"{_GITHUB}npiv/chatblade/issues/100",
        quote="\"Unsupported parameter: 'temperature' is not supported with this model.\","
        " 'type': 'invalid_request_error', 'param': 'temperature', 'code':"
        " 'unsupported_parameter'",
    ),
    SourcedRule(
        id="openai-two-results",
        checks="A call has one result.",
        message="Invalid parameter: Duplicate value for 'tool_call_id' of '{id}'",
        source=f"{_GITHUB}agno-agi/agno/issues/5116",
        quote=(
            "'message': \"Invalid parameter: Duplicate value for 'tool_call_id' of "
            "'call_gmd4tanjXcwOxfPawOnDmq6R', in messages[7] and messages[8].\", 'type': "
            "'invalid_request_error', 'param': 'messages.[8].tool_call_id', 'code': None"
        ),
    ),
    SourcedRule(
        id="openai-result-of-no-call",
        checks="A result belongs to a call of the message before.",
        message=(
            "Invalid parameter: 'tool_call_id' of '{id}' not found in 'tool_calls' of "
            "previous message."
        ),
        source=f"{_GITHUB}dapr/dapr-agents/issues/145",
        quote=(
            "Invalid parameter: 'tool_call_id' of 'call_XXXXXXXXX' not found in 'tool_calls' "
            "of previous message."
        ),
    ),
    SourcedRule(
        id="openai-chat-window",
        checks="The messages fit the window.",
        message="This model's maximum context length is {window} tokens. However, your"
        " messages resulted in {tokens} tokens. Please reduce the length of the"
        " messages.",
        code="context_length_exceeded",
        source=f"{_GITHUB}crewAIInc/crewAI-examples/issues/121",
        quote="\"This model's maximum context length is 8192 tokens. However, your messages"
        ' resulted in 8227 tokens. Please reduce the length of the messages.",'
        " 'type': 'invalid_request_error', 'param': 'messages', 'code':"
        " 'context_length_exceeded'",
    ),
    SourcedRule(
        id="openai-chat-temperature",
        checks="A reasoning model has the temperature it has.",
        message="Unsupported value: 'temperature' does not support {value} with this model."
        " Only the default (1) value is supported.",
        code="unsupported_value",
        source=f"{_GITHUB}johny-b/llmcomp/issues/69",
        quote="\"Unsupported value: 'temperature' does not support 0 with this model. Only"
        " the default (1) value is supported.\", 'type': 'invalid_request_error',"
        " 'param': 'temperature', 'code': 'unsupported_value'",
    ),
    SourcedRule(
        id="openai-chat-length",
        checks="An answer is not longer than the model's can be.",
        message=(
            "{name} is too large: {value}. This model supports at most {most} completion "
            "tokens, whereas you provided {value}."
        ),
        source=f"{_GITHUB}ChatGPTNextWeb/NextChat/issues/3195",
        quote=(
            '"message": "max_tokens is too large: 8192. This model supports at most 4096 '
            'completion tokens, whereas you provided 8192.", "type": '
            '"invalid_request_error", "param": "max_tokens", "code": null'
        ),
    ),
    SourcedRule(
        id="openai-stream-options",
        checks="Options of a stream come with a stream.",
        message="The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        source=f"{_GITHUB}BerriAI/litellm/issues/5803",
        quote=(
            "'message': \"The 'stream_options' parameter is only allowed when 'stream' is "
            "enabled.\", 'type': 'invalid_request_error', 'param': 'stream_options', 'code': "
            "None"
        ),
    ),
    SourcedRule(
        id="openai-tools-with-effort",
        checks="The newest models call tools through chat completions only without reasoning.",
        message="Function tools with reasoning_effort are not supported for {model} in"
        " /v1/chat/completions. To use function tools, use /v1/responses or set"
        " reasoning_effort to 'none'.",
        source=f"{_GITHUB}GoogleChromeLabs/webmcp-tools/issues/417",
        quote='message: "Function tools with reasoning_effort are not supported for'
        " gpt-5.6-terra in /v1/chat/completions. To use function tools, use"
        " /v1/responses or set reasoning_effort to 'none'.\", type:"
        " 'invalid_request_error', param: 'reasoning_effort', code: null",
    ),
    SourcedRule(
        id="openai-arguments",
        checks=(
            "The arguments of a call are a JSON object; OpenAI lets others pass, vLLM and "
            "llama.cpp behind the same API do not."
        ),
        message="Failed to parse tool call arguments as JSON",
        status=500,
        kind="server_error",
        source=f"{_GITHUB}am17an/llama.cpp/issues/43",
        quote=(
            "Observed: HTTP 500 with `Failed to parse tool call arguments as JSON`. "
            "Repeating the malformed history repeats the 500."
        ),
    ),
    SourcedRule(
        id="openai-item",
        checks="An item exists.",
        message="Item with id '{id}' not found.",
        status=404,
        source=f"{_GITHUB}dyad-sh/dyad/issues/2457",
        quote='"message": "Item with id'
        " 'rs_0ae9604d15fc584e006982616db6c481908f65d5b6a6817c93' not found.\","
        ' "type": "invalid_request_error", "param": "input", "code": null',
    ),
    SourcedRule(
        id="openai-two-items",
        checks="No two items have the same id.",
        message="Duplicate item found with id {id}. Remove duplicate items from your input"
        " and try again.",
        source=f"{_GITHUB}continuedev/continue/issues/10200",
        quote='{"message":"Duplicate item found with id'
        " rs_091c3b0255ecacaf006983ac74900081999ac0293709903799. Remove duplicate"
        " items from your input and try"
        ' again.","type":"invalid_request_error","param":"input","code":null}',
    ),
    SourcedRule(
        id="openai-two-calls",
        checks="No two calls have the same id.",
        message="Duplicate 'call_id': {id}",
        source=f"{_GITHUB}earendil-works/pi/issues/9057",
        quote=(
            "an OpenAI-compatible Responses endpoint rejects the request with `Duplicate "
            "'call_id': undefined`"
        ),
    ),
    SourcedRule(
        id="openai-without-reasoning",
        checks="What reasoning led to comes with that reasoning.",
        message="Item '{id}' of type '{type}' was provided without its required 'reasoning'"
        " item: '{reasoning}'.",
        source=f"{_GITHUB}VRSEN/agency-swarm/issues/367",
        quote="\"Item 'fc_0105b6f6953fb71a0068c66139634081a28a5703ef87918674' of type"
        " 'function_call' was provided without its required 'reasoning' item:"
        " 'rs_0105b6f6953fb71a0068c6612a4e6881a2ac460e7cdb15a795'.\", 'type':"
        " 'invalid_request_error', 'param': 'input', 'code': None",
    ),
    SourcedRule(
        id="openai-format-kind",
        checks="An answer by a schema is an object.",
        message=(
            "Invalid schema for response_format '{name}': schema must be a JSON Schema of "
            "'type: \"object\"', got 'type: \"{kind}\"'."
        ),
        code="invalid_json_schema",
        source=f"{_GITHUB}podly-pure-podcasts/podly_pure_podcasts/pull/89",
        quote=(
            "'message': 'Invalid schema for response_format \\'AdSegmentPredictionList\\': "
            "schema must be a JSON Schema of \\'type: \"object\"\\', got \\'type: \"array\"\\'.', "
            "'type': 'invalid_request_error', 'param': 'response_format', 'code': None"
        ),
    ),
    SourcedRule(
        id="openai-format-draft",
        checks="A schema for the answer is a JSON schema of a current draft.",
        message="Invalid schema for response_format '{name}': {fault}",
        code="invalid_json_schema",
        source=f"{_GITHUB}ag2ai/ag2/issues/1990",
        quote=(
            "'message': \"Invalid schema for response_format 'response_format': 'json_object' "
            "is not valid under any of the given schemas.\", 'type': 'invalid_request_error', "
            "'param': 'response_format', 'code': None"
        ),
    ),
    SourcedRule(
        id="openai-format-word",
        checks="A strict schema has only words that are known.",
        message=(
            "Invalid schema for response_format '{name}': In context={context}, '{word}' is "
            "not permitted."
        ),
        code="invalid_json_schema",
        source=f"{_GITHUB}dottxt-ai/outlines/issues/1254",
        quote=(
            "'message': \"Invalid schema for response_format 'default': In "
            "context=('properties', 'description'), 'default' is not permitted.\", 'type': "
            "'invalid_request_error', 'param': 'response_format', 'code': None"
        ),
    ),
    SourcedRule(
        id="openai-format-depth",
        checks="A strict schema is at most ten levels deep.",
        message=(
            "Invalid schema for response_format '{name}': {found} levels of nesting exceeds "
            "limit of {most}."
        ),
        code="invalid_json_schema",
        source=f"{_GITHUB}tidyverse/ellmer/issues/671",
        quote=(
            "Invalid schema for response_format 'structured_data': 6 levels of nesting "
            "exceeds limit of 5."
        ),
    ),
    SourcedRule(
        id="openai-format-type",
        checks="Every part of a strict schema says its type.",
        message=(
            "Invalid schema for response_format '{name}': In context={context}, schema must "
            "have a 'type' key."
        ),
        code="invalid_json_schema",
        source=f"{_GITHUB}openai/openai-node/issues/1597",
        quote=(
            "AI_APICallError: Invalid schema for response_format 'response': In "
            "context=('properties', 'requirementsAnalysis'), schema must have a 'type' key."
        ),
    ),
    # Others behind the same API
    SourcedRule(
        id="deepseek-json-word",
        checks="Who asks for JSON says so in the prompt.",
        message=(
            "Prompt must contain the word 'json' in some form to use 'response_format' of "
            "type 'json_object'."
        ),
        code="invalid_request_error",
        source=f"{_GITHUB}Canner/WrenAI/issues/1581",
        quote=(
            '{"error":{"message":"Prompt must contain the word \'json\' in some form to use '
            "'response_format' of type "
            '\'json_object\'.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}'
        ),
    ),
    SourcedRule(
        id="deepseek-json-schema",
        checks="DeepSeek takes no schema for the answer.",
        message="This response_format type is unavailable now",
        code="invalid_request_error",
        source=f"{_GITHUB}bytedance/deer-flow/issues/545",
        quote=(
            "{'error': {'message': 'This response_format type is unavailable now', 'type': "
            "'invalid_request_error', 'param': None, 'code': 'invalid_request_error'}}"
        ),
    ),
    SourcedRule(
        id="deepseek-reasoning",
        checks="The reasoning of every answer that called a tool goes back.",
        message="The `reasoning_content` in the thinking mode must be passed back to the API.",
        code="invalid_request_error",
        source=f"{_GITHUB}mnfst/modelparams.dev/issues/29",
        quote='{"error":{"message":"The `reasoning_content` in the thinking mode must be'
        " passed back to the"
        ' API.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}',
    ),
    SourcedRule(
        id="gemini-signature",
        checks="Since the last prompt, the first call of each answer has the signature it"
        " came with; a call that was made elsewhere has the word that says so.",
        message="Function call is missing a thought_signature in functionCall parts. This is"
        " required for tools to work correctly, and missing thought_signature may"
        " lead to degraded model performance.",
        code="400",
        source=f"{_GITHUB}lbjlaq/Antigravity-Manager/issues/3202",
        quote='"Function call is missing a thought_signature in functionCall parts. This is'
        " required for tools to work correctly, and missing thought_signature may"
        " lead to degraded model performance. Additional data, function call"
        " `default_api:Bash` , position 2. Please refer to"
        ' https://***.dev/***/***/*** for more details."',
    ),
)
