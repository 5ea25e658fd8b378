// Sends the texts as chat completions, with the whole history each time.
import assert from 'node:assert';
import OpenAI from 'openai';

const client = new OpenAI({ baseURL: process.env.BASE, apiKey: 'any' });
const messages = [];
for (const text of JSON.parse(process.env.TEXTS)) {
  messages.push({ role: 'user', content: text });
  const stream = await client.chat.completions.create({
    model: process.env.MODEL,
    messages,
    stream: true,
  });
  let answer = '';
  for await (const chunk of stream) answer += chunk.choices[0]?.delta?.content ?? '';
  assert.equal(answer, text);
  messages.push({ role: 'assistant', content: answer });
}
