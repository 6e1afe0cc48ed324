// A batch of text as a pass takes it.
#pragma once

#include "moe/pass.h"
#include "text/loader.h"

namespace moe {

// A view: `text` must outlive it.
inline Batch batch_of(const TextBatch& text) { return {text.ids, text.positions, text.bounds}; }

}  // namespace moe
