// Files of importance (hub/importance.h) as llama.cpp has them (github ggml-org/llama.cpp,
// tools/imatrix): a GGUF of type "imatrix" with NAME.in_sum2 and NAME.counts for each tensor, and
// the older .dat, which does not say how many rows each expert met.
#pragma once

#include <span>
#include <string>

#include "formats/gguf.h"
#include "hub/importance.h"

namespace moe {

// Either form, told by content. Fails, naming file and tensor, on what is no such file, on half an
// entry, on numbers below zero or not finite.
Importance read_importance(const std::string& path);
// One form each; `where` opens every message.
Importance read_importance(const Gguf&, const std::string& where);
Importance read_importance_dat(std::span<const std::byte> bytes, const std::string& where);
// As GGUF, whole or not at all. A file that is there must be one of importance.
void write_importance(const std::string& path, const Importance&);
// Fails where write_importance() would.
void check_importance_target(const std::string& path);

// What a GGUF that was quantised by it says of it, under llama.cpp's keys.
std::vector<GgufEntry> gguf_importance_entries(const Importance&);

}  // namespace moe
