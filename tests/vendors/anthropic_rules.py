"""Every refusal of the emulated Anthropic."""

from __future__ import annotations

from typing import Final

from tests.vendors.sourced_rules import SourcedRule, by_id

_GITHUB = "https://github.com/"

ANTHROPIC: Final = by_id(
    # Fields
    SourcedRule(
        id="anthropic-missing",
        checks="A required field is there.",
        message="Field required",
        source=f"{_GITHUB}Kilo-Org/kilocode/issues/12238",
        quote='"type":"invalid_request_error","message":"tools.0.custom.input_schema.type: Field'
        ' required"',
    ),
    SourcedRule(
        id="anthropic-unknown",
        checks="A field is known.",
        message="Extra inputs are not permitted",
        source=f"{_GITHUB}anthropics/claude-code/issues/4378",
        quote="messages.65.content.1.tool_use.text: Extra inputs are not permitted",
    ),
    # Texts and marks
    SourcedRule(
        id="anthropic-empty-text",
        checks="A text is not empty.",
        message="text content blocks must be non-empty",
        source=f"{_GITHUB}anthropics/claude-code/issues/59812",
        quote="API Error: 400 messages: text content blocks must be non-empty",
    ),
    SourcedRule(
        id="anthropic-marked-empty-text",
        checks="An empty text has no cache mark.",
        message="cache_control cannot be set for empty text blocks",
        source=f"{_GITHUB}NousResearch/hermes-agent/pull/1216",
        quote="'messages.29.content.0.text: cache_control cannot be set for empty text blocks'",
    ),
    SourcedRule(
        id="anthropic-marks",
        checks="There are at most four cache marks.",
        message="A maximum of {most} blocks with cache_control may be provided. Found {found}.",
        source=f"{_GITHUB}tghamm/Anthropic.SDK/issues/50",
        quote='{"type":"error","error":{"type":"invalid_request_error","message":"A maximum of 4'
        ' blocks with cache_control may be provided. Found 5."}}',
    ),
    SourcedRule(
        id="anthropic-mark-order",
        checks="A mark that lives for an hour comes before those of five minutes.",
        message="a ttl='1h' cache_control block must not come after a ttl='5m' cache_control"
        " block. Note that blocks are processed in the following order: `tools`, `system`,"
        " `messages`.",
        source=f"{_GITHUB}kristianvast/hermes-claude-auth/issues/31",
        quote="\"system.1.cache_control.ttl: a ttl='1h' cache_control block must not come after a"
        r" ttl='5m' cache_control block. Note that blocks are processed in the following order:"
        r" \`tools\`, \`system\`, \`messages\`.",
    ),
    # Messages
    SourcedRule(
        id="anthropic-empty-message",
        checks="A message has a content; the last one, of an assistant, need not.",
        message="all messages must have non-empty content except for the optional final assistant"
        " message",
        source=f"{_GITHUB}anthropics/claude-code/issues/6774",
        quote="messages.0: all messages must have non-empty content except for the optional final"
        " assistant message",
    ),
    SourcedRule(
        id="anthropic-system-role",
        checks="The system prompt is no message.",
        message='Unexpected role "system". The Messages API accepts a top-level `system`'
        ' parameter, not "system" as an input message role.',
        source=f"{_GITHUB}ianarawjo/ChainForge/issues/271",
        quote='"invalid_request_error: messages: Unexpected role "system". The Messages API accepts'
        ' a top-level `system` parameter, not "system" as an input message role."',
    ),
    SourcedRule(
        id="anthropic-prefill",
        checks="Newer models begin their answers themselves.",
        message="This model does not support assistant message prefill. The conversation must end"
        " with a user message.",
        source=f"{_GITHUB}vybestack/llxprt-code/pull/3695",
        quote='400 "This model does not support assistant message prefill. The conversation must'
        ' end with a user message."',
    ),
    SourcedRule(
        id="anthropic-prefill-ends-blank",
        checks="What an answer is to begin with does not end in white space.",
        message="final assistant content cannot end with trailing whitespace",
        source=f"{_GITHUB}tailcallhq/forgecode/issues/1872",
        quote='"message":"messages: final assistant content cannot end with trailing whitespace"',
    ),
    SourcedRule(
        id="anthropic-window-with-answer",
        checks="The prompt and the answer it asks for fit the window.",
        message="input length and `max_tokens` exceed context limit: {tokens} + {answer} >"
        " {window}, decrease input length or `max_tokens` and try again",
        source=f"{_GITHUB}docker/docker-agent/issues/569",
        quote="input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000,"
        " decrease input length or `max_tokens` and try again",
    ),
    # Tools
    SourcedRule(
        id="anthropic-tool-names",
        checks="No two tools have the same name.",
        message="Tool names must be unique.",
        source=f"{_GITHUB}anthropics/claude-code/issues/10687",
        quote='"type":"invalid_request_error","message":"tools: Tool names must be unique."',
    ),
    SourcedRule(
        id="anthropic-schema-top",
        checks="The schema of a tool has no alternatives at its top.",
        message="input_schema does not support oneOf, allOf, or anyOf at the top level",
        source=f"{_GITHUB}MoonshotAI/kimi-code/issues/2328",
        quote="tools.92.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf"
        " at the top level",
    ),
    SourcedRule(
        id="anthropic-schema",
        checks="The schema of a tool is a JSON schema of a current draft.",
        message="JSON schema is invalid. It must match JSON Schema draft 2020-12"
        " (https://json-schema.org/draft/2020-12).",
        source=f"{_GITHUB}anthropics/claude-code/issues/63673",
        quote="tools.21.custom.input_schema: JSON schema is invalid. It must match JSON Schema"
        " draft 2020-12 (https://json-schema.org/draft/2020-12). Learn more about tool use at"
        " https://docs.claude.com/en/docs/tool-use.",
    ),
    SourcedRule(
        id="anthropic-property-names",
        checks="The properties of a tool's schema have plain names.",
        message="Property keys should match pattern '{pattern}'",
        source=f"{_GITHUB}beautyfree/appstore-connect-mcp/issues/2",
        quote="tools.14.custom.input_schema.properties: Property keys should match pattern"
        " '^[a-zA-Z0-9_.-]{1,64}$'",
    ),
    SourcedRule(
        id="anthropic-call-ids",
        checks="No two calls have the same id.",
        message="`tool_use` ids must be unique",
        source=f"{_GITHUB}trycua/cua/issues/524",
        quote='"message":"messages.1.content.1: `tool_use` ids must be unique"',
    ),
    SourcedRule(
        id="anthropic-result-without-call",
        checks="A result belongs to a call of the message before.",
        message="unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result`"
        " block must have a corresponding `tool_use` block in the previous message.",
        source=f"{_GITHUB}anthropics/claude-code/issues/18947",
        quote="messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks:"
        " toolu_01FxdGdpPyaZq3sCLqXtgJki. Each `tool_result` block must have a corresponding"
        " `tool_use` block in the previous message.",
    ),
    SourcedRule(
        id="anthropic-two-results",
        checks="A call has one result.",
        message="each tool_use must have a single result. Found multiple `tool_result` blocks with"
        " id: {id}",
        source=f"{_GITHUB}vectorize-io/hindsight/pull/4250",
        quote="messages.4.content.5: each tool_use must have a single result. Found multiple"
        " `tool_result` blocks with id: toolu_...",
    ),
    SourcedRule(
        id="anthropic-call-without-result",
        checks="All results of a message's calls are at the head of the next one.",
        message="`tool_use` ids were found without `tool_result` blocks immediately after: {ids}."
        " Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        source=f"{_GITHUB}anthropics/claude-code/issues/8210",
        quote="messages.167: `tool_use` ids were found without `tool_result` blocks immediately"
        " after: toolu_019P95AL5DFCUyhtgQDcWJ3x. Each `tool_use` block must have a corresponding"
        " `tool_result` block in the next message.",
    ),
    # Thinking
    SourcedRule(
        id="anthropic-no-budget",
        checks="Newer models take no budget of thinking.",
        message='"thinking.type.enabled" is not supported for this model. Use'
        ' "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.',
        source=f"{_GITHUB}OpenHands/software-agent-sdk/pull/3427",
        quote='"thinking.type.enabled" is not supported for this model. Use'
        ' "thinking.type.adaptive" and "output_config.effort" to control thinking behavior.',
    ),
    SourcedRule(
        id="anthropic-no-adaptive",
        checks="Older models do not think adaptively.",
        message="adaptive thinking is not supported on this model",
        source=f"{_GITHUB}elizaOS/eliza/pull/16175",
        quote='adaptive thinking (`"adaptive thinking is not supported on this model"`)',
    ),
    SourcedRule(
        id="anthropic-thinking-temperature",
        checks="A model that thinks has a temperature of 1.",
        message="`temperature` may only be set to 1 when thinking is enabled or in adaptive mode",
        source=f"{_GITHUB}zeroclaw-labs/zeroclaw/pull/10611",
        quote='400 — "`temperature` may only be set to 1 when thinking is enabled or in adaptive'
        ' mode"',
    ),
    SourcedRule(
        id="anthropic-ends-with-thinking",
        checks="An assistant's message does not end with thinking.",
        message="The final block in an assistant message cannot be `{kind}`.",
        source=f"{_GITHUB}tailcallhq/forgecode/issues/2107",
        quote='"message":"messages.1: The final block in an assistant message cannot be'
        ' `thinking`."',
    ),
    SourcedRule(
        id="anthropic-begins-with-thinking",
        checks="A tool loop of a model that thinks begins with its thinking.",
        message="Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking`"
        " is enabled, a final `assistant` message must start with a thinking block (preceeding the"
        " lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking"
        " blocks from previous turns. To avoid this requirement, disable `thinking`. Please consult"
        " our documentation at"
        " https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking",
        source=f"{_GITHUB}deepset-ai/haystack-core-integrations/issues/2146",
        quote="'messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found"
        " `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a"
        " thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We"
        " recommend you include thinking blocks from previous turns. To avoid this requirement,"
        " disable `thinking`. Please consult our documentation at"
        " https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking'",
    ),
    SourcedRule(
        id="anthropic-thinking-modified",
        checks="Thinking of the latest answer goes back as it came.",
        message="`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be"
        " modified. These blocks must remain as they were in the original response.",
        source=f"{_GITHUB}anthropics/claude-code/issues/63284",
        quote="messages.3.content.8: `thinking` or `redacted_thinking` blocks in the latest"
        " assistant message cannot be modified. These blocks must remain as they were in the"
        " original response.",
    ),
    SourcedRule(
        id="anthropic-thinking-forced",
        checks="A model that thinks is not made to call a tool.",
        message="Thinking may not be enabled when tool_choice forces tool use.",
        source=f"{_GITHUB}can1357/oh-my-pi/issues/341",
        quote="Error: The model returned the following errors: Thinking may not be enabled when"
        " tool_choice forces tool use.",
    ),
    SourcedRule(
        id="anthropic-kind",
        checks="A field is of its kind.",
        message="Input should be a valid {wanted}",
        source=f"{_GITHUB}anthropics/anthropic-sdk-typescript/issues/648",
        quote="messages.3.content.1.tool_use.input: Input should be a valid dictionary",
    ),
    SourcedRule(
        id="anthropic-choice",
        checks="A value is one of those there are.",
        message="Input should be {wanted}",
        source=f"{_GITHUB}zeroclaw-labs/zeroclaw/pull/10611",
        quote="400 — \"thinking.adaptive.display: Input should be 'summarized', 'omitted'\"",
    ),
    SourcedRule(
        id="anthropic-least",
        checks="A number is not below its bound.",
        message="Input should be greater than or equal to {least}",
        source=f"{_GITHUB}themaximalist/llm.js/issues/30",
        quote="invalid_request_error: thinking.enabled.budget_tokens: Input should be"
        " greater than or equal to 1024",
    ),
    SourcedRule(
        id="anthropic-most",
        checks="A number is not above its bound.",
        message="range: {least}..{most}",
        source=f"{_GITHUB}anthropics/anthropic-sdk-python/issues/893",
        quote='"type": "invalid_request_error", "message": "temperature: range: -1 or 0..1"',
    ),
    SourcedRule(
        id="anthropic-pattern",
        checks="A name fits its pattern.",
        message="String should match pattern '{pattern}'",
        source=f"{_GITHUB}home-assistant/core/issues/147760",
        quote="\"tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'\"",
    ),
    SourcedRule(
        id="anthropic-length",
        checks="A name is not longer than it may be.",
        message="String should have at most {most} characters",
        source=f"{_GITHUB}anthropics/claude-code/issues/96152",
        quote="API Error: 400 tools.18.custom.name: String should have at most 128 characters",
    ),
    SourcedRule(
        id="anthropic-tag",
        checks="A block is of a type there is.",
        message=(
            "Input tag '{tag}' found using 'type' does not match any of the expected tags: "
            "{expected}"
        ),
        source=f"{_GITHUB}AstrBotDevs/AstrBot/pull/4444",
        quote=(
            "\"messages.0.content.2: Input tag 'image_url' found using 'type' does not match "
            "any of the expected tags: 'document', 'image', 'redacted_thinking', "
            "'search_result', 'server_tool_use', 'text', 'thinking', 'tool_result', "
            "'tool_use', 'web_search_tool_result'\""
        ),
    ),
    SourcedRule(
        id="anthropic-no-key",
        checks="There is a key.",
        message="x-api-key header is required",
        status=401,
        kind="authentication_error",
        source=f"{_GITHUB}n8n-io/n8n/issues/37930",
        quote=(
            '{\\"type\\":\\"authentication_error\\",\\"message\\":\\"x-api-key header is '
            'required\\"}'
        ),
    ),
    SourcedRule(
        id="anthropic-wrong-key",
        checks="The key is right.",
        message="invalid x-api-key",
        status=401,
        kind="authentication_error",
        source=f"{_GITHUB}ITSpecialist111/ai_automation_suggester/issues/153",
        quote='{"type":"error","error":{"type":"authentication_error","message":"invalid'
        ' x-api-key"},"request_id":"req_011CYhr1kdGzCrPHfrhibMen"}',
    ),
    SourcedRule(
        id="anthropic-no-version",
        checks="There is a version.",
        message="anthropic-version: header is required",
        source=f"{_GITHUB}PipedreamHQ/pipedream/issues/9697",
        quote=(
            " "
            '{"type":"error","error":{"type":"invalid_request_error","message":"anthropic-version: '
            'header is required"}}'
        ),
    ),
    SourcedRule(
        id="anthropic-version",
        checks="The version is one there is.",
        message='anthropic-version: "{version}" is not a valid version',
        source=f"{_GITHUB}decolua/9router/issues/2357",
        quote=(
            '"message":"anthropic-version: \\"2023-06-01, 2023-06-01\\" is not a valid version"'
        ),
    ),
    SourcedRule(
        id="anthropic-json",
        checks="The body is JSON.",
        message="The request body is not valid JSON: {error}",
        source=f"{_GITHUB}anthropics/claude-code/issues/60394",
        quote=(
            "API Error: 400 The request body is not valid JSON: no low surrogate in string: "
            "line 1 column 195621 (char 195620)"
        ),
    ),
    SourcedRule(
        id="anthropic-size",
        checks="The body has at most 32 MB.",
        message="Request exceeds the maximum size",
        status=413,
        kind="request_too_large",
        source=f"{_GITHUB}anthropics/anthropic-sdk-python/issues/938",
        quote=(
            "Error code: 413 - {'error': {'type': 'request_too_large', 'message': 'Request "
            "exceeds the maximum size'}}"
        ),
    ),
    SourcedRule(
        id="anthropic-limit",
        checks="A page of models has a size there is.",
        message="limit: Input should be between 1 and {most}",
        source="https://docs.anthropic.com/pt/api/models-list",
        quote=(
            "Number of items to return per page. Defaults to 20 . Ranges from 1 to 1000 . 1 "
            "<= x <= 1000"
        ),
        is_documented_only=True,
    ),
    SourcedRule(
        id="anthropic-model",
        checks="The model exists.",
        message="model: {name}",
        status=404,
        kind="not_found_error",
        source=f"{_GITHUB}anthropics/claude-code/issues/5349",
        quote="API Error: 404"
        ' {"type":"error","error":{"type":"not_found_error","message":"model:'
        ' sonnet4"}}',
    ),
    SourcedRule(
        id="anthropic-answer-length",
        checks="An answer is not longer than the model's can be.",
        message="{wanted} > {most}, which is the maximum allowed number of output tokens for"
        " {model}",
        source=f"{_GITHUB}anomalyco/opencode/issues/2055",
        quote="AI_APICallError: max_tokens: 48000 > 32000, which is the maximum allowed"
        " number of output tokens for claude-opus-4-1-20250805",
    ),
    SourcedRule(
        id="anthropic-sampling",
        checks="Newer models take no sampling parameters.",
        message="`{name}` is deprecated for this model.",
        source=f"{_GITHUB}Metaculus/forecasting-tools/pull/308",
        quote=(
            '"type":"invalid_request_error","message":"`temperature` is deprecated for this model."'
        ),
    ),
    SourcedRule(
        id="anthropic-stop",
        checks="A stop sequence is not blank.",
        message="each stop sequence must contain non-whitespace",
        source=f"{_GITHUB}BerriAI/litellm/issues/3286",
        quote=(
            " "
            '{"type":"error","error":{"type":"invalid_request_error","message":"stop_sequences: '
            'each stop sequence must contain non-whitespace"}}'
        ),
    ),
    SourcedRule(
        id="anthropic-no-message",
        checks="There is a message.",
        message="at least one message is required",
        source=f"{_GITHUB}devoxx/DevoxxGenieIDEAPlugin/issues/567",
        quote='{"type":"error","error":{"type":"invalid_request_error","message":"messages:'
        ' at least one message is required"}}',
    ),
    SourcedRule(
        id="anthropic-first-role",
        checks="The first message is the user's.",
        message='first message must use the "user" role',
        source=f"{_GITHUB}lobehub/lobehub/issues/1601",
        quote='"message": "messages: first message must use the \\"user\\" role"',
    ),
    SourcedRule(
        id="anthropic-blank-text",
        checks="A text is not blank.",
        message="text content blocks must contain non-whitespace text",
        source=f"{_GITHUB}anthropics/claude-code/issues/23440",
        quote=(
            '"type":"invalid_request_error","message":"messages: text content blocks must '
            'contain non-whitespace text"'
        ),
    ),
    SourcedRule(
        id="anthropic-window",
        checks="The prompt fits the window.",
        message="prompt is too long: {tokens} tokens > {window} maximum",
        source=f"{_GITHUB}earendil-works/pi/issues/102",
        quote=(
            '"type":"invalid_request_error","message":"prompt is too long: 219898 tokens > '
            '200000 maximum"'
        ),
    ),
    SourcedRule(
        id="anthropic-owner",
        checks="A block is in a message of the role that may have it.",
        message="`{kind}` blocks can only be in `{owner}` messages",
        source=f"{_GITHUB}tghamm/Anthropic.SDK/issues/128",
        quote='I get the "`tool_result` blocks can only be in `user` messages" error.',
    ),
    SourcedRule(
        id="anthropic-empty-error",
        checks="A failed result says something.",
        message="content cannot be empty if `is_error` is true",
        source=f"{_GITHUB}anthropics/claude-agent-sdk-python/issues/248",
        quote='"messages.2.content.0.tool_result: content cannot be empty if `is_error` is true"',
    ),
    SourcedRule(
        id="anthropic-must-think",
        checks="The newest models always think.",
        message='"thinking.type.disabled" is not supported for this model.',
        source=f"{_GITHUB}cline/cline/issues/13203",
        quote='I am getting `"thinking.type.disabled" is not supported for this model.` error',
    ),
    SourcedRule(
        id="anthropic-budget",
        checks="A budget of thinking is less than the answer's length.",
        message="`max_tokens` must be greater than `thinking.budget_tokens`.",
        source=f"{_GITHUB}sigoden/aichat/issues/1304",
        quote=(
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our "
            "documentation at "
            "https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking"
            "#max-tokens-and-context-window-size (type: invalid_request_error)"
        ),
    ),
    SourcedRule(
        id="anthropic-signature",
        checks="Thinking is the server's own, made by the model that is asked.",
        message="Invalid `{field}` in `{type}` block",
        source=f"{_GITHUB}ding113/claude-code-hub/issues/518",
        quote='"message": "messages.1.content.0: Invalid `signature` in `thinking` block"',
    ),
    SourcedRule(
        id="anthropic-bound",
        checks="What came before a block of thinking is what it was made with; here with"
        " every model.",
        message="Invalid `{field}` in `{type}` block. The block is bound to a different"
        " conversation. Remove the block, or set"
        ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That'
        " setting requires the `thinking-binding-controls-2026-08-01` value in the"
        " `anthropic-beta` header. {differs}",
        source=f"{_GITHUB}anomalyco/opencode/issues/48637",
        quote="messages.1.content.0: Invalid `signature` in `thinking` block. The block is"
        " bound to a different conversation. Remove the block, or set"
        ' `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That'
        " setting requires the `thinking-binding-controls-2026-08-01` value in the"
        " `anthropic-beta` header. The `system` prompt differs from the one this"
        " block was created with.",
    ),
    SourcedRule(
        id="anthropic-tool-choice",
        checks="A tool is chosen only where tools are offered.",
        message="tool_choice may only be specified while providing tools",
        source=f"{_GITHUB}ai365vip/chat-api/issues/82",
        quote="status code 400: tool_choice may only be specified while providing tools.",
    ),
    SourcedRule(
        id="anthropic-calls-without-tools",
        checks="Where messages have calls, tools are offered.",
        message="Requests which include tool_use or tool_result blocks must define tools",
        source="https://portkey.ai/error-library/tool-definition-error-10488",
        quote=(
            "The HTTP 400 Bad Request error in the Anthropic API, specifically with the "
            'message "Requests which include tool_use or tool_result blocks must define '
            'tools," occurs because the request is missing the necessary definitions for the '
            "tools being used."
        ),
    ),
    SourcedRule(
        id="anthropic-no-format",
        checks="Older models take no schema for the answer.",
        message="structured outputs are not supported with {model}",
        source=f"{_GITHUB}envoyproxy/ai-gateway/pull/1846",
        quote=(
            "Currently only claude-4.5 and claude-4.6 models support direct "
            "`output_config.format`, for other models, we would add work-arounds."
        ),
        is_documented_only=True,
    ),
    SourcedRule(
        id="anthropic-format-optional",
        checks="A schema for the answer has at most 24 optional properties.",
        message=(
            "Schemas contains too many optional parameters ({found}), which would make "
            "grammar compilation inefficient. Reduce the number of optional parameters in "
            "your tool schemas (limit: {most})."
        ),
        source=f"{_GITHUB}elie222/inbox-zero/issues/2323",
        quote=(
            '"Schemas contains too many optional parameters (87), which would make grammar '
            "compilation inefficient. Reduce the number of optional parameters in your tool "
            'schemas (limit: 24)."'
        ),
    ),
    SourcedRule(
        id="anthropic-format-word",
        checks="A schema for the answer has only words that are known.",
        message="For '{kinds}' type, property '{word}' is not supported",
        source=f"{_GITHUB}agentjido/req_llm/issues/302",
        quote="\"output_format.schema: For 'integer' type, property 'minimum' is not supported\"",
    ),
    SourcedRule(
        id="anthropic-format-additional",
        checks="Objects of an answer take no other properties.",
        message="For 'object' type, 'additionalProperties' must be explicitly set to false",
        source=f"{_GITHUB}ax-llm/ax/issues/458",
        quote='"message": "output_format.schema: For \'object\' type,'
        " 'additionalProperties' must be explicitly set to false\"",
    ),
    SourcedRule(
        id="anthropic-format-items",
        checks="A list of an answer may be bounded from below by 0 and 1 only.",
        message="For 'array' type, 'minItems' values other than 0 or 1 are not supported",
        source=f"{_GITHUB}ghostlobster/memorize-everything/issues/93",
        quote=(
            "output_config.format.schema: For 'array' type, 'minItems' values other than 0 "
            "or 1 are not supported"
        ),
    ),
    SourcedRule(
        id="anthropic-format-enum",
        checks="An enum has plain values.",
        message="enum values must be strings, numbers, booleans or null",
        source="https://platform.claude.com/docs/en/build-with-claude/structured-outputs",
        quote="Not supported: Recursive schemas; Complex types within enums",
        is_documented_only=True,
    ),
    SourcedRule(
        id="anthropic-format-type",
        checks="A schema says its type.",
        message="Schema type is missing",
        source=f"{_GITHUB}inkeep/agents/pull/1235",
        quote=(
            "Anthropic's API strictly requires all schema properties to have a type field, "
            "while OpenAI is more lenient and accepts schemas without explicit types."
        ),
        is_documented_only=True,
    ),
    SourcedRule(
        id="anthropic-format-recursion",
        checks="A schema does not refer to itself.",
        message=(
            "Circular reference detected in schema definitions: {name} -> {name}. "
            "Self-referencing or mutually-referencing definitions are not supported."
        ),
        source=f"{_GITHUB}egonSchiele/agency-lang/issues/487",
        quote=(
            '400 — "Circular reference detected in schema definitions: __schema0 -> '
            "__schema0. Self-referencing or mutually-referencing definitions are not "
            'supported."'
        ),
    ),
    SourcedRule(
        id="anthropic-format-reference",
        checks="A schema refers to nothing elsewhere.",
        message="External reference {reference} is not supported",
        source="https://platform.claude.com/docs/en/build-with-claude/structured-outputs",
        quote="Not supported: External `$ref` (for example, `'$ref': 'http://...'`)",
        is_documented_only=True,
    ),
)
