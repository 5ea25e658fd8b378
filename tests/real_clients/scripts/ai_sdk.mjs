// Sends the texts with the AI SDK, by either API.
import assert from 'node:assert';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';

const given = { baseURL: process.env.BASE, apiKey: 'any' };
const model = process.env.RESPONSES
  ? createOpenAI(given).responses(process.env.MODEL)
  : createOpenAICompatible({ name: 'nplt', ...given })(process.env.MODEL);
const messages = [];
for (const text of JSON.parse(process.env.TEXTS)) {
  messages.push({ role: 'user', content: text });
  const result = streamText({ model, messages });
  let answer = '';
  for await (const piece of result.textStream) answer += piece;
  assert.equal(answer, text);
  messages.push(...(await result.response).messages);
}
