// Where the scopes of a micro-batch begin and end.
#include "moe/stages/scope.h"

#include "core/error.h"

namespace moe {

std::vector<int64_t> scope_bounds(const Scope& scope, std::span<const int64_t> bounds,
                                  int64_t tokens) {
  if (scope.kind == Scope::Kind::sequence && !bounds.empty()) {
    if (bounds.front() != 0 || bounds.back() != tokens)
      fail(
          "the sequences span rows {} to {}, but the router was given {} tokens: the bounds must "
          "begin at 0 and end at the number of tokens",
          bounds.front(), bounds.back(), tokens);
    return {bounds.begin(), bounds.end()};
  }
  std::vector<int64_t> out = {0};
  if (scope.kind == Scope::Kind::group) {
    if (scope.group < 1)
      fail_usage("a scope of groups needs a group of at least one token, {} were asked for",
                 scope.group);
    for (int64_t at = scope.group; at < tokens; at += scope.group) out.push_back(at);
  }
  out.push_back(tokens);
  return out;
}

}  // namespace moe
