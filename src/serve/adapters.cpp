#include "serve/adapters.h"

#include <algorithm>

#include "core/error.h"
#include "core/words.h"
#include "hub/adapter.h"

namespace moe::serve {

NamedAdapters attach_adapters(Model& model, const std::vector<std::string>& asked,
                              const std::string& model_name) {
  NamedAdapters out;
  for (const std::string& each : asked) {
    const size_t at = each.find('=');
    if (at == std::string::npos || at == 0) {
      if (asked.size() > 1)
        fail_usage("@adapter {}: of several adapters each needs a name: @adapter NAME={}", each,
                   each);
      attach_adapter(model, each, 1);
      return out;
    }
    const std::string name = each.substr(0, at), path = each.substr(at + 1);
    if (name == model_name ||
        std::find(out.names.begin(), out.names.end(), name) != out.names.end())
      fail_usage("@adapter {}: '{}' is the name of {}; give it another", each, name,
                 name == model_name ? "the model itself" : "another one");
    const AttachedAdapter attached = attach_adapter(model, path, 1);
    if (attached.whole > 0)
      fail(
          "{}: the adapter brings {} whole (routers, say), which one of several cannot; merge it "
          "into a model of its own (moe convert), or give it alone as @adapter PATH",
          path, counted(attached.whole, "tensor"));
    out.choice.add(attached.terms);
    out.names.push_back(name);
  }
  return out;
}

}  // namespace moe::serve
