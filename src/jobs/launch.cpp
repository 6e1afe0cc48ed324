#include "jobs/launch.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "ops/ops.h"

namespace moe {

void check_same_launch(const comm::Group& group, const FieldList& options,
                       const std::function<comm::Facts()>& more) {
  if (group.size == 1) return;
  comm::Facts facts = {{"version", MOE_VERSION}, {"instruction set", ops::isa_name()}};
  for (const Field& f : options)
    if (f.name != "threads") facts.emplace_back(field(f.name), one_line_json(f.get()));
  for (auto& fact : more()) facts.push_back(std::move(fact));
  comm::check_same(group, facts);
}

}  // namespace moe
