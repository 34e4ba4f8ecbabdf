"""From a body to token ids, and from token ids to a text. All raise InvalidRequestError."""

from __future__ import annotations

from anllm.server.body import JsonObject
from anllm.server.chat.convert import render_messages
from anllm.server.convert import check_model, check_token_id
from anllm.server.field_support import NEUTRAL_TOKENIZE_VALUES, refuse_unsupported
from anllm.server.service import LoadedModel
from anllm.server.tokenization.protocol import DetokenizeRequest, TokenizeRequest
from anllm.server.tools import plain_tool
from anllm.server.validation import invalid, missing, validate


def tokenize(body: JsonObject, model: LoadedModel) -> dict[str, object]:
    """The answer to /tokenize: `count`, `max_model_len`, `tokens`, and `token_strs` if asked for."""
    request = validate(TokenizeRequest, body)
    if request.model is not None:
        check_model(request.model, model)
    refuse_unsupported(body, NEUTRAL_TOKENIZE_VALUES)
    token_ids = _token_ids(request, model)
    pieces = [model.tokenizer.piece(token_id) for token_id in token_ids] if request.return_token_strs else None
    return {
        "count": len(token_ids),
        "max_model_len": model.max_model_len,
        "tokens": token_ids,
        "token_strs": pieces,
    }


def detokenize(body: JsonObject, model: LoadedModel) -> dict[str, object]:
    """The answer to /detokenize: the text, special tokens in it, as `prompt`."""
    request = validate(DetokenizeRequest, body)
    if request.model is not None:
        check_model(request.model, model)
    for index, token_id in enumerate(request.tokens):
        check_token_id(token_id, model.tokenizer.vocab_size, f"tokens[{index}]")
    return {"prompt": model.tokenizer.decode(request.tokens, skip_special_tokens=False)}


def _token_ids(request: TokenizeRequest, model: LoadedModel) -> list[int]:
    """A text gets the tokenizer's special tokens unless it is asked not to; messages get those of the template alone,
    unless asked."""
    if request.prompt is not None and request.messages is not None:
        raise invalid("messages", "is not allowed together with 'prompt'", None)
    if request.messages is not None:
        text = render_messages(
            request.messages,
            model,
            request.chat_template_kwargs or {},
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=[plain_tool(tool.function) for tool in request.tools or ()],
        )
        return model.tokenizer.encode(text, add_special_tokens=bool(request.add_special_tokens))
    if request.prompt is None:
        raise missing("prompt")
    for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
        if getattr(request, name) is not None:
            raise invalid(name, "is only allowed with 'messages'", None)
    return model.tokenizer.encode(request.prompt, add_special_tokens=request.add_special_tokens is not False)
