// Adapters that one server has of its model: a request names one where it names the model.
#pragma once

#include <string>
#include <vector>

#include "model/adapters.h"

namespace moe::serve {

struct NamedAdapters {
  std::vector<std::string> names;  // of what `choice` has, in its order
  AdapterChoice choice;
};

// `asked`: PATH, which then stays on the model for every request and stands alone, or NAME=PATH of
// each. Fails (usage) on a name that is there twice or is `model_name`, and naming the file where
// an adapter does not fit or brings tensors whole, which would be the model's for every request.
NamedAdapters attach_adapters(Model&, const std::vector<std::string>& asked,
                              const std::string& model_name);

}  // namespace moe::serve
