"""LlamaIndex's OpenAILike: a chat, a stream, a completion."""

import json
import os

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
asked = {**where, "model": "story", "max_tokens": 4, "temperature": 0, "context_window": 2048}
messages = [ChatMessage(role="user", content="Where does the fox live?")]
chat = OpenAILike(is_chat_model=True, additional_kwargs={"seed": 1}, logprobs=True, top_logprobs=2, **asked)
text = OpenAILike(is_chat_model=False, additional_kwargs={"seed": 1}, **asked)
whole = chat.chat(messages)
print(
    json.dumps(
        {
            "text": whole.message.content,
            "logprobs": [entry[0].logprob for entry in whole.logprobs],
            "streamed": "".join(part.delta or "" for part in chat.stream_chat(messages)),
            "completion": text.complete("Once upon a time").text,
            "stream_completion": "".join(part.delta or "" for part in text.stream_complete("Once upon a time")),
        }
    )
)
