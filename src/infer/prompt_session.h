// A session made for one prompt, so that several texts can follow it.
#pragma once

#include <span>

#include "infer/session.h"

namespace moe {

// With room for the prompt and what `options` let follow. Fails as generate() does.
Session session_for(Model&, Run&, std::span<const int32_t> prompt, const GenerateOptions&);

}  // namespace moe
