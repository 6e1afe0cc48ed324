// What a model folder says of its tokens beside tokenizer.json: which begins a text, which end what
// a model writes.
#pragma once

#include <string>

#include "text/tokenizer.h"

namespace moe {

// The content of FOLDER/tokenizer_config.json, with FOLDER/chat_template.jinja read into it; empty
// where there is neither.
std::string read_tokenizer_config(const std::string& folder);
// Sets tokenizer.special() by the tokenizer's config_json() (bos_token, eos_token, add_bos_token,
// as transformers reads them) and by eos_token_id, one or a list, of FOLDER/generation_config.json
// and FOLDER/config.json, of which the first one is eos. Fails, naming file and key, where an id is
// no token.
void apply_folder(Tokenizer& tokenizer, const std::string& folder);
// generation_config.json where a token ends a text that neither config_json() says nor reading
// to_json() again finds, or where those would have another one for the first; else empty.
std::string generation_json(const Tokenizer& tokenizer);

}  // namespace moe
