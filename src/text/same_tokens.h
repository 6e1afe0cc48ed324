// Whether two tokenizers mean the same by their ids.
#pragma once

#include <cstdint>
#include <optional>

#include "text/tokenizer.h"

namespace moe {

// Of the ids below `count` the first that is another text; nothing where all are the same.
inline std::optional<int32_t> first_other_token(const Tokenizer& a, const Tokenizer& b,
                                                int64_t count) {
  for (int32_t id = 0; id < count; ++id)
    if (a.piece(id) != b.piece(id)) return id;
  return std::nullopt;
}

}  // namespace moe
