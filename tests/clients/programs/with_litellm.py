"""LiteLLM: chat, stream and completion through one interface."""

import json
import os

import litellm

where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
asked = {**where, "max_tokens": 4, "temperature": 0, "seed": 1}
messages = [{"role": "user", "content": "Where does the fox live?"}]
whole = litellm.completion("openai/story", messages=messages, logprobs=True, top_logprobs=2, **asked)
chunks = list(
    litellm.completion("openai/story", messages=messages, stream=True, stream_options={"include_usage": True}, **asked)
)
text = litellm.text_completion("Once upon a time", "text-completion-openai/story", logprobs=2, **asked)
print(
    json.dumps(
        {
            "text": whole.choices[0].message.content,
            "logprobs": [entry.logprob for entry in whole.choices[0].logprobs.content],
            "num_tokens": whole.usage.completion_tokens,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
            "stream_tokens": next(chunk.usage.completion_tokens for chunk in chunks if getattr(chunk, "usage", None)),
            "completion": text.choices[0].text,
        }
    )
)
